"""What the planner is asked: the options of `dpfed budget` that describe a plan, and two of its three numbers."""

from __future__ import annotations

import dataclasses
import json
import shlex
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import EnumType
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, urlencode

from cyclopts import Parameter

from accounting.budget import Plan
from accounting.budget.options import Option
from accounting.budget.plan import command_options
from dpfed.errors import ConfigError

Solved = Literal["epsilon", "noise_multiplier", "rounds"]
_THREE: tuple[Solved, ...] = get_args(Solved)
_FORMAT = "dpfed plan 1"
LARGEST_FILE = 65536


_EPSILON = Option(
    hint=float,
    default=None,
    help="The target, if the noise multiplier or the rounds are wanted. From the ledger, where there is one.",
)
_OF_PLANS = command_options()
OPTIONS = {
    **{name: _OF_PLANS[name] for name in ("clients", "cohort", "rounds", "noise_multiplier")},
    "epsilon": _EPSILON,
    **{name: _OF_PLANS[name] for name in ("delta", "sampling", "participations", "separation", "adjacency")},
    **{name: _OF_PLANS[name] for name in ("mechanism", "noise")},
    **_OF_PLANS,
}
"""Options that describe a plan, and the three numbers of which two are given: those of the classes of `Plan`."""


def _field(name: str, one: Option) -> tuple[str, Any, Any]:
    words = tuple(map(str, one.hint)) if isinstance(one.hint, EnumType) else ()
    hint: Any = Literal[words] if words else one.hint
    return name, Annotated[hint if one.default is not None else hint | None, Parameter(help=one.help)], one.default


_Options: Any = dataclasses.make_dataclass(
    "_Options",
    [_field(name, one) for name, one in OPTIONS.items() if name != "noise_schedule"],
    frozen=True,
    kw_only=True,
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Question(_Options):  # type: ignore[misc]
    """Two of epsilon, noise multiplier and rounds, or one with coins; the rest describes the plan (`OPTIONS`)."""

    def plan(self, **more: Any) -> Plan:
        """Return the plan, without the three numbers; `more`: options that are not on the page.

        Errors: ConfigError, AccountingError for what describes no plan.
        """
        if self.clients is None:
            raise ConfigError("--clients is missing: how many there are.")
        options = {**self.given, **{name: value for name, value in more.items() if value is not None}}
        if before := more.get("before"):
            options.setdefault("adjacency", before.adjacency)
        if self.noise != "independent" and self.sampling == "poisson" and self.separation is not None:
            options |= {"sampling": "cyclic", "cohort": self.cohort or max(self.clients // self.separation, 1)}
        elif self.cohort is None and self.sampling != "all":
            options["cohort"] = self._cohort_of_participations()
        return Plan.from_options({k: v for k, v in options.items() if k not in _THREE}, written=_as_flag)

    def changed(self, **options: Any) -> Question:
        """Return the question with other values of these options."""
        return replace(self, **options)

    def _cohort_of_participations(self) -> int:
        """Return the cohort, to whole clients, that so many participations in so many rounds come to."""
        times, rounds = self.participations, self.rounds
        if times is None or rounds is None:
            raise ConfigError("--cohort is missing: how many clients take part in a round.")
        if times < 1 or rounds % times or self.clients * times < rounds:
            raise ConfigError(
                f"--participations {times} in --rounds {rounds} of --clients {self.clients}: rounds must be a multiple "
                "of it, and every round needs a client. Change one of them, or give --cohort."
            )
        cohort: int = round(self.clients * times / rounds)
        return cohort

    @property
    def solved(self) -> Solved:
        """Which of the three is wanted. ConfigError unless just one is."""
        wanted = [name for name in _THREE if getattr(self, name) is None]
        if self.plan().has_noise_multiplier and len(wanted) == 1:
            return wanted[0]
        if not self.plan().has_noise_multiplier and len(wanted) == 2 and self.noise_multiplier is None:
            return wanted[0] if wanted[0] != "noise_multiplier" else "rounds"
        given = ", ".join(_flag(name) for name in _THREE if name not in wanted) or "none of them"
        raise ConfigError(
            f"given {given}: give exactly two of --rounds, --noise-multiplier and --epsilon (of coins, which have no "
            "noise multiplier, --rounds or --epsilon); the other is what you get."
        )

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        named = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: getattr(self, name) for name, default in named.items() if getattr(self, name) != default}

    @property
    def arguments(self) -> list[str]:
        """For `dpfed budget` and `dpfed plan`; numbers are written so that they read back as they are."""
        found: list[str] = []
        for name, value in self.given.items():
            switch = _flag(name) if value is not False else f"--no-{name.replace('_', '-')}"
            found += [switch] if isinstance(value, bool) else [switch, _text(value)]
        return found

    @property
    def command(self) -> str:
        """The command line that answers it."""
        return shlex.join(["dpfed", "budget", *self.arguments])

    @property
    def fragment(self) -> str:
        """What stands behind the # of a link."""
        return urlencode({name: _text(value) for name, value in self.given.items()})

    @property
    def python(self) -> str:
        """Lines of Python whose last prints the very number."""
        two = ", ".join(f"{name}={getattr(self, name)!r}" for name in _THREE if getattr(self, name) is not None)
        return f"{self.python_plan}\nprint(budget.{self.solved}(plan, {two}))"

    @property
    def python_plan(self) -> str:
        """Lines of Python that make the plan."""
        resolved = {"adjacency": self.adjacency, "delta": self.delta, "scale": self.scale}
        told = {name: resolved.get(name, value) for name, value in self.plan().options.items()}
        arguments = ", ".join(f"{name}={value!r}" for name, value in told.items() if value is not None)
        return f"from accounting import Plan, budget\n\nplan = Plan({arguments})"

    def to_json(self) -> str:
        """What a plan file holds."""
        return json.dumps({"format": _FORMAT, "options": self.given}, indent=2) + "\n"


def question_of(options: Mapping[str, object]) -> Question:
    """From names and values, as a page, a link or a file has them. ConfigError names the option that is wrong."""
    known, read = _kinds(), {}
    for name, value in options.items():
        if name not in known:
            raise ConfigError(f"{str(name)[:40]!r} is no option of a plan. There are: {', '.join(known)}.")
        if value is not None and value != "":
            read[name] = _value(name, value, known[name])
    return Question(**read)


def opened(where: str) -> Question:
    """From a plan file, or from a link whose fragment has the plan. ConfigError where there is none."""
    before, mark, fragment = where.partition("#")
    if mark and (not before or "://" in before):
        return question_of(dict(parse_qsl(fragment, keep_blank_values=True)))
    return _from_file(Path(where))


def _from_file(file: Path) -> Question:
    try:
        with file.open("rb") as stream:
            record = json.loads(stream.read(LARGEST_FILE + 1).decode())
        if not isinstance(record, dict) or record.get("format") != _FORMAT or not isinstance(record["options"], dict):
            raise ValueError(f'it must be {{"format": "{_FORMAT}", "options": {{...}}}}')
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}). Give a plan file, or a link.") from None
    except (ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"{file}: holds no plan ({str(error)[:200]}). The planner's page saves them.") from None
    return question_of(record["options"])


@cache
def _kinds() -> dict[str, tuple[type, tuple[Any, ...]]]:
    """Return the type of each option, and its words where there are only so many."""
    hints = get_type_hints(_Options)
    return {field.name: _kind(hints[field.name]) for field in dataclasses.fields(Question)}


def _kind(hint: Any) -> tuple[type, tuple[Any, ...]]:
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(one for one in get_args(hint) if one is not type(None))
    return (str, get_args(hint)) if get_origin(hint) is Literal else (hint, ())


def _value(name: str, given: object, kind: tuple[type, tuple[Any, ...]]) -> Any:
    wanted, words = kind
    text = str(given)
    if words:
        if text in words:
            return text
        raise _wrong(name, text, f"one of {', '.join(words)}")
    if wanted is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise _wrong(name, text, "true or false")
    try:
        return wanted(text)
    except ValueError:
        raise _wrong(name, text, "a whole number" if wanted is int else "a number") from None


def _wrong(name: str, text: str, allowed: str) -> ConfigError:
    return ConfigError(f"{_flag(name)} {text[:40]!r}: must be {allowed}.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _as_flag(name: str, *value: object) -> str:
    """Return an option as it is written on the command line."""
    return " ".join([_flag(name), *map(_text, value)])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_numbers(question: Question, *, rounds: int | None, noise_multiplier: float | None) -> Question:
    """The same plan with these rounds and this noise: epsilon is what is wanted, or nothing yet."""
    return question.changed(rounds=rounds, noise_multiplier=noise_multiplier, epsilon=None)
