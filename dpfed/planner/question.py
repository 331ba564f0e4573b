"""Question of the planner: options of `dpfed budget` for a plan, and two of epsilon, noise multiplier and rounds."""

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

from cyclopts import Group, Parameter

from accounting import budget, require
from accounting.budget import Budget, Plan
from accounting.budget.plan import command_options
from accounting.compose.accountant import Accountant
from accounting.ledger.regular_file import read_text
from accounting.options import Option
from dpfed.errors import ConfigError
from dpfed.planner.plan_options import Solved, number_to_solve, option_flag
from dpfed.planner.whole_numbers import parse_whole

_FORMAT = "dpfed plan 1"
LARGEST_FILE = 65536


EXAMPLES: dict[str, dict[str, int | float]] = {
    "client": {"clients": 6000, "cohort": 100, "rounds": 180, "noise_multiplier": 1.4},
    "record": {"clients": 10, "records": 143, "batch_size": 72, "rounds": 20, "noise_multiplier": 4.0},
}
"""Plan that a page begins with, by the unit of privacy."""

_EPSILON = Option(
    hint=float,
    default=None,
    help="Target epsilon, if noise multiplier or rounds are computed. With --ledger, the ledger has the target.",
)
_FIRST = (
    *("clients", "cohort", "rounds", "noise_multiplier", "epsilon", "unit", "records", "batch_size", "local_steps"),
    *("delta", "sampling", "participations", "separation", "adjacency", "mechanism", "noise"),
)
_KNOWN = {**command_options(), "epsilon": _EPSILON}
OPTIONS = {name: _KNOWN[name] for name in dict.fromkeys((*_FIRST, *_KNOWN))}
"""Options that describe a plan, from the classes of `Plan`, and epsilon, noise multiplier and rounds."""


_GROUPS = {
    "Plan: two of the last three give the third": ("clients", "cohort", "rounds", "noise_multiplier", "epsilon"),
    "Conditions": ("unit", "sampling", "adjacency", "delta", "mechanism", "noise"),
    "With --unit record": ("records", "batch_size", "local_steps"),
    "Schedules and caps of cohorts": ("participations", "separation", "cohort_cap", "lanes", "secret_lanes"),
    "Noise that differs between rounds": (
        "noise_schedule", "bands", "buffers", "factorisation", "factorisation_power", "server_momentum", "server_decay",
    ),
    "Integer noise, noise in shares": ("dimension", "scale", "rotate", "placement", "dropout"),
    "Bernoulli samples": (
        "edge", "clip_norm", "l2_sensitivity", "linf_clip", "noise_std", "clip_metric", "others",
    ),
}  # fmt: skip
"""Options of each group of a help page, in the order of the page."""


def group_of(name: str) -> Group:
    """Return the group of an option on the help pages of `dpfed budget` and `dpfed plan`."""
    place, title = next((k, title) for k, (title, names) in enumerate(_GROUPS.items()) if name in names)
    return Group(title, sort_key=place)


def _option_field(name: str, one: Option) -> tuple[str, object, object]:
    words = tuple(map(str, one.hint)) if isinstance(one.hint, EnumType) else ()
    hint: Any = Literal[words] if words else one.hint
    converter = parse_whole if hint in (int, int | None) else None
    parameter = Parameter(help=one.help, alias=one.alias, converter=converter, group=group_of(name))
    return name, Annotated[hint if one.default is not None else hint | None, parameter], one.default


_Options: Any = dataclasses.make_dataclass(
    "_Options",
    [_option_field(name, one) for name, one in OPTIONS.items() if name != "noise_schedule"],
    frozen=True,
    kw_only=True,
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Question(_Options):  # type: ignore[misc]
    """A plan (`OPTIONS`), with two of epsilon, noise multiplier and rounds; one of them for Bernoulli samples."""

    @property
    def completed(self) -> Question:
        """Question with what follows from its other options; `dpfed budget`, the page, links and files share this rule.

        One client for records, if no number is given; the cohort of participations in rounds; a public order for a
        separation. ConfigError if the number of clients, or the cohort, is missing.
        """
        if self.unit == "record" and self.clients is None:
            return self.with_options(clients=1)
        if self.clients is None:
            raise ConfigError("--clients is missing: give the number of clients.")
        require.count(clients=self.clients)
        if self.noise != "independent" and self.sampling == "poisson" and self.separation is not None:
            cohort = self.cohort or max(self.clients // require.count(separation=self.separation), 1)
            return self.with_options(sampling="cyclic", cohort=cohort)
        if self.unit == "client" and self.cohort is None and self.sampling != "all":
            return self.with_options(cohort=self._cohort_of_participations())
        return self

    @property
    def with_example(self) -> Question:
        """Question with missing numbers from the example of its unit (`EXAMPLES`), for the first page of a plan."""
        example, is_noise = dict(EXAMPLES[self.unit]), self.mechanism.startswith("bernoulli")
        if self.sampling == "all" or self.participations is not None:
            example.pop("cohort", None)
        if self.epsilon is not None and (self.noise_multiplier is not None or is_noise):
            del example["rounds"]
        if self.epsilon is not None or is_noise:
            del example["noise_multiplier"]
        whole = self.with_options(**{name: value for name, value in example.items() if getattr(self, name) is None})
        if self.cohort is None and whole.cohort is not None:
            whole = whole.with_options(cohort=min(whole.cohort, whole.clients))
        return whole

    def plan(self, **more: Any) -> Plan:
        """Return the plan, without epsilon, noise multiplier and rounds; `more`: options that are not on the page.

        ConfigError or AccountingError if the options describe no plan.
        """
        given = self.completed.given_options
        options = {**given, **{name: value for name, value in more.items() if value is not None}}
        if before := more.get("before"):
            options.setdefault("adjacency", before.adjacency)
        return Plan.from_options({k: v for k, v in options.items() if k not in get_args(Solved)}, written=_option_text)

    def with_options(self, **options: object) -> Question:
        """Return the question with these options changed."""
        return replace(self, **options)

    def _cohort_of_participations(self) -> int:
        """Return the cohort, rounded to an integer, that follows from `participations` and `rounds`."""
        times, rounds = self.participations, self.rounds
        if times is None or rounds is None:
            raise ConfigError("--cohort is missing: give the number of clients per round.")
        if not 1 <= times <= rounds <= self.clients * times or rounds % times:
            raise ConfigError(
                f"--participations {times} in --rounds {rounds} of --clients {self.clients}: rounds must be a multiple "
                "of participations, and every round must have a client. Change one of them, or give --cohort."
            )
        cohort: int = round(self.clients * times / rounds)
        due = self.with_options(cohort=cohort).plan().sampling.most_rounds(self.clients)
        if due not in (None, rounds):
            raise ConfigError(
                f"--participations {times} in --rounds {rounds} of --clients {self.clients}: with whole cohorts, of "
                f"{cohort}, these are {due} rounds. Change one of them, or give --cohort."
            )
        return cohort

    @property
    def solved_number(self) -> Solved:
        """Name of the number to solve for. ConfigError unless exactly one is missing."""
        return number_to_solve(
            self.plan(), rounds=self.rounds, noise_multiplier=self.noise_multiplier, epsilon=self.epsilon
        )

    def solve(self, accountant: Accountant) -> Budget:
        """Return the budget of the plan, with the number that is not given computed, and without a lower bound."""
        return budget.solve(
            self.plan(),
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            rounds=self.rounds,
            accountant=accountant,
            with_lower_bound=False,
        )

    @property
    def given_options(self) -> dict[str, object]:
        """Return the options that are not at their defaults."""
        named = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: getattr(self, name) for name, default in named.items() if getattr(self, name) != default}

    @property
    def option_texts(self) -> dict[str, str]:
        """Return the given options as text that `question_of` reads back, for links, pages and commands."""
        return {name: _value_text(value) for name, value in self.given_options.items()}

    @property
    def command_line(self) -> str:
        """Return the command line of `dpfed budget` that prints the answer."""
        words = ["dpfed", "budget"]
        for name, value in self.given_options.items():
            match value:
                case True | False:
                    words.append(option_flag(name if value else f"no_{name}"))
                case _:
                    words += [option_flag(name), str(value)]
        return shlex.join(words)

    @property
    def python_code(self) -> str:
        """Return Python code that prints the answer."""
        two = ", ".join(
            f"{name}={getattr(self, name)!r}" for name in get_args(Solved) if getattr(self, name) is not None
        )
        return f"{self.plan_code}\nprint(budget.{self.solved_number}(plan, {two}))"

    @property
    def plan_code(self) -> str:
        """Return Python code that creates the plan."""
        resolved = {"adjacency": self.adjacency, "delta": self.delta}
        told = {name: resolved.get(name, value) for name, value in self.plan().options.items()}
        arguments = ", ".join(f"{name}={value!r}" for name, value in told.items() if value is not None)
        return f"from accounting import Plan, budget\n\nplan = Plan({arguments})"

    def to_json(self) -> str:
        """Return the text of a plan file."""
        return json.dumps({"format": _FORMAT, "options": self.given_options}, indent=2) + "\n"

    def at_point(self, *, rounds: int | None = None, noise_multiplier: float | None = None) -> Question:
        """Return this plan with the given rounds and noise multiplier, to be solved for epsilon."""
        return self.with_options(rounds=rounds, noise_multiplier=noise_multiplier, epsilon=None)


def _option_text(name: str, *value: object) -> str:
    """Return an option with its values as it is written on the command line."""
    return " ".join([option_flag(name), *map(_value_text, value)])


def _value_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def question_of(options: Mapping[str, object]) -> Question:
    """Return the question with these options of a page, a link or a file. ConfigError names a wrong option."""
    readers = _option_readers()
    read: dict[str, object] = {}
    for name, value in options.items():
        if name not in readers:
            raise ConfigError(f"{str(name)[:40]!r} is no option of a plan. Options are {', '.join(readers)}.")
        convert, allowed = readers[name]
        try:
            if value is not None and value != "":
                read[name] = convert(str(value))
        except (ValueError, KeyError):
            raise ConfigError(f"{option_flag(name)} {str(value)[:40]!r}: must be {allowed}.") from None
    return Question(**read)


def read_question(where: str) -> Question:
    """Return the question in a plan file, or in the fragment of a link. ConfigError if there is none."""
    before, mark, fragment = where.partition("#")
    if mark and (not before or "://" in before):
        return question_of(dict(parse_qsl(fragment, keep_blank_values=True)))
    file = Path(where)
    try:
        record = json.loads(read_text(file, at_most=LARGEST_FILE))
        if not isinstance(record, dict) or record.get("format") != _FORMAT or not isinstance(record["options"], dict):
            raise ValueError(f'it must be {{"format": "{_FORMAT}", "options": {{...}}}}')
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error.strerror}). Give a plan file, or a link.") from None
    except (ValueError, KeyError, RecursionError) as error:
        raise ConfigError(f"{file}: holds no plan ({str(error)[:200]}). Save one with the planner's page.") from None
    return question_of(record["options"])


_Reader = tuple[Callable[[str], object], str]
_TYPE_READERS: dict[type, _Reader] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
}


@cache
def _option_readers() -> dict[str, _Reader]:
    """Return (converter, allowed texts) of each option; a converter raises KeyError or ValueError for a wrong text."""
    found = {}
    for name, hint in get_type_hints(_Options).items():
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(one for one in get_args(hint) if one is not type(None))
        words = {word: word for word in get_args(hint)}
        found[name] = (words.__getitem__, f"one of {', '.join(words)}") if words else _TYPE_READERS[hint]
    return found
