"""Question of the planner: the options of `dpfed budget` that describe a plan, and two of its three numbers."""

from __future__ import annotations

import dataclasses
import json
import shlex
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import EnumType
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from cyclopts import Parameter

from accounting.budget import Plan
from accounting.budget.options import Option
from accounting.budget.plan import command_options
from dpfed.errors import ConfigError
from dpfed.planner.plan_options import Solved, flag, wanted
from dpfed.planner.whole import whole

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
    **{
        name: _OF_PLANS[name]
        for name in (
            "unit",
            "records",
            "batch_size",
            "local_steps",
            "delta",
            "sampling",
            "participations",
            "separation",
            "adjacency",
        )
    },
    **{name: _OF_PLANS[name] for name in ("mechanism", "noise")},
    **_OF_PLANS,
}
"""Options that describe a plan, from the classes of `Plan`, and the three numbers of which two are given."""


def _field(name: str, one: Option) -> tuple[str, object, object]:
    words = tuple(map(str, one.hint)) if isinstance(one.hint, EnumType) else ()
    hint: Any = Literal[words] if words else one.hint
    converter = whole if hint in (int, int | None) else None
    parameter = Parameter(help=one.help, alias=one.alias, converter=converter)
    return name, Annotated[hint if one.default is not None else hint | None, parameter], one.default


_Options: Any = dataclasses.make_dataclass(
    "_Options",
    [_field(name, one) for name, one in OPTIONS.items() if name != "noise_schedule"],
    frozen=True,
    kw_only=True,
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Question(_Options):  # type: ignore[misc]
    """Two of epsilon, noise multiplier and rounds, or one for Bernoulli samples; further options describe the plan
    (`OPTIONS`).
    """

    def plan(self, **more: Any) -> Plan:
        """Return the plan, without the three numbers; `more`: options that are not on the page.

        Errors: ConfigError, AccountingError for options that describe no plan.
        """
        if self.clients is None:
            raise ConfigError("--clients is missing: how many there are.")
        options = {**self.given, **{name: value for name, value in more.items() if value is not None}}
        if before := more.get("before"):
            options.setdefault("adjacency", before.adjacency)
        if self.noise != "independent" and self.sampling == "poisson" and self.separation is not None:
            options |= {"sampling": "cyclic", "cohort": self.cohort or max(self.clients // self.separation, 1)}
        elif self.unit == "client" and self.cohort is None and self.sampling != "all":
            options["cohort"] = self._cohort_of_participations()
        return Plan.from_options({k: v for k, v in options.items() if k not in get_args(Solved)}, written=_as_flag)

    def changed(self, **options: Any) -> Question:
        """Return the question with other values of these options."""
        return replace(self, **options)

    def _cohort_of_participations(self) -> int:
        """Return the cohort, to whole clients, that follows from this number of participations in this number of
        rounds.
        """
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
        """The one of the three numbers to solve for. ConfigError unless exactly one is missing."""
        return wanted(self.plan(), rounds=self.rounds, noise_multiplier=self.noise_multiplier, epsilon=self.epsilon)

    @property
    def given(self) -> dict[str, object]:
        """Return the options that are not at their defaults."""
        named = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: getattr(self, name) for name, default in named.items() if getattr(self, name) != default}

    @property
    def texts(self) -> dict[str, str]:
        """Return the given options as text that parses to equal values: for a link, a page, a command."""
        return {name: _as_text(value) for name, value in self.given.items()}

    @property
    def command(self) -> str:
        """Return the command line of `dpfed budget` that prints the answer."""
        words = ["dpfed", "budget"]
        for name, value in self.given.items():
            match value:
                case True | False:
                    words.append(flag(name if value else f"no_{name}"))
                case _:
                    words += [flag(name), str(value)]
        return shlex.join(words)

    @property
    def python(self) -> str:
        """Return lines of Python, the last of which prints the same number."""
        two = ", ".join(
            f"{name}={getattr(self, name)!r}" for name in get_args(Solved) if getattr(self, name) is not None
        )
        return f"{self.python_plan}\nprint(budget.{self.solved}(plan, {two}))"

    @property
    def python_plan(self) -> str:
        """Return lines of Python that make the plan."""
        resolved = {"adjacency": self.adjacency, "delta": self.delta, "scale": self.scale}
        told = {name: resolved.get(name, value) for name, value in self.plan().options.items()}
        arguments = ", ".join(f"{name}={value!r}" for name, value in told.items() if value is not None)
        return f"from accounting import Plan, budget\n\nplan = Plan({arguments})"

    def to_json(self) -> str:
        """Return the text of a plan file."""
        return json.dumps({"format": _FORMAT, "options": self.given}, indent=2) + "\n"

    def at(self, *, rounds: int | None = None, noise_multiplier: float | None = None) -> Question:
        """Return the same plan with these rounds and this noise; epsilon is to be solved for."""
        return self.changed(rounds=rounds, noise_multiplier=noise_multiplier, epsilon=None)


def _as_flag(name: str, *value: object) -> str:
    """Return an option as it is written on the command line."""
    return " ".join([flag(name), *map(_as_text, value)])


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def question_of(options: Mapping[str, object]) -> Question:
    """Return the question of names and values from a page, a link or a file. ConfigError names the wrong option."""
    readers = _readers()
    read: dict[str, object] = {}
    for name, value in options.items():
        if name not in readers:
            raise ConfigError(f"{str(name)[:40]!r} is no option of a plan. There are: {', '.join(readers)}.")
        convert, allowed = readers[name]
        try:
            if value is not None and value != "":
                read[name] = convert(str(value))
        except (ValueError, KeyError):
            raise ConfigError(f"{flag(name)} {str(value)[:40]!r}: must be {allowed}.") from None
    return Question(**read)


def opened(where: str) -> Question:
    """Return the question in a plan file, or in a link whose fragment has the plan. ConfigError if there is none."""
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


_Reader = tuple[Callable[[str], object], str]
_OF_TYPE: dict[type, _Reader] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
}


@cache
def _readers() -> dict[str, _Reader]:
    """Return the converter of each option's text (KeyError or ValueError for a wrong text), and the allowed texts."""
    found = {}
    for name, hint in get_type_hints(_Options).items():
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(one for one in get_args(hint) if one is not type(None))
        words = {word: word for word in get_args(hint)}
        found[name] = (words.__getitem__, f"one of {', '.join(words)}") if words else _OF_TYPE[hint]
    return found
