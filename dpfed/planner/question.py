"""What the planner is asked: the options of `dpfed budget` that describe a plan, and two of its three numbers."""

from __future__ import annotations

import dataclasses
import json
import shlex
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, urlencode

from cyclopts import Parameter

from accounting.budget import Plan
from dpfed.planner.plan_options import Mechanism, PlanOptions, Sampling
from dpfed.errors import ConfigError

Solved = Literal["epsilon", "noise_multiplier", "rounds"]
_THREE: tuple[Solved, ...] = get_args(Solved)
_FORMAT = "dpfed plan 1"
LARGEST_FILE = 65536


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Question:
    """Two of epsilon, noise multiplier and rounds, or one with coins; the rest describes the plan.

    Parameters
    ----------
    clients
        Clients in the population, n.
    cohort
        Clients a round: the expected number under poisson, the exact one under fixed.
    rounds
        Training rounds, T.
    noise_multiplier
        Noise standard deviation on the sum over the clip norm C.
    epsilon
        The target, if the noise multiplier or the rounds are wanted.
    delta
        Default: the smaller of clients^-1.1 and 1e-4.
    sampling
        How a cohort is drawn; docs/participation.md says which is for whom.
    participations
        balls-and-bins, allocation: in how many rounds a client takes part. banded, blt: in how many at most.
    separation
        min-separation, banded, blt: a client that took part stays away from the next separation - 1 rounds.
    adjacency
        Default: add-remove for poisson and all, replace-one for fixed.
    mechanism
        Gaussian noise from the server or in shares of the clients, integer noise, or coins.
    noise
        Independent over rounds, or correlated so that it cancels in the model: in so many --bands, or by so many
        --buffers (blt).
    bands
        banded: rounds over which noise is taken back.
    buffers
        blt: vectors that the noise needs, whatever the rounds. Default: 3.
    factorisation
        banded: the matrix of least error for these rounds, or the square root of prefix sums, in closed form.
    server_momentum
        banded, blt: of the server's step, for which the matrix is made.
    server_decay
        banded, blt: factor of the server's learning rate, a round.
    dropout
        Fraction of noise shares that may be missing.
    dimension
        Integer noise and coins: number of coordinates, d.
    scale
        Integer noise: steps per clip norm.
    rotate
        Integer noise: a random rotation before rounding.
    placement
        Integer noise: in shares by the clients, or added by the server.
    slots
        Under poisson, with coins or noise shares: the fixed number of uploads.
    edge
        Coins: c, all probabilities lie in [c, 1-c].
    clip_norm
        Coins: how far a client's probabilities may lie from the public ones, in L2.
    l2_sensitivity
        Coins: the L2 sensitivity itself, instead of clip_norm.
    linf_clip
        Coins: how far one coordinate may lie from the public one.
    noise_std
        Coins: Gaussian noise on the probabilities before they are clipped.
    clip_metric
        Coins: fisher has both clips of the move over sqrt(theta (1 - theta)).
    others
        Coins: near-reference relies on all clients of a sum to keep to linf_clip.
    """

    clients: int | None = None
    cohort: int | None = None
    rounds: int | None = None
    noise_multiplier: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    sampling: Sampling = "poisson"
    participations: int | None = None
    separation: int | None = None
    adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None
    mechanism: Mechanism = "gaussian"
    noise: Literal["independent", "banded", "blt"] = "independent"
    bands: int | None = None
    buffers: int | None = None
    factorisation: Literal["optimised", "square-root"] = "optimised"
    server_momentum: float = 0.0
    server_decay: float = 1.0
    dropout: float = 0.0
    dimension: int | None = None
    scale: float | None = None
    rotate: bool | None = None
    placement: Literal["clients", "server"] | None = None
    slots: int | None = None
    edge: float | None = None
    clip_norm: float | None = None
    l2_sensitivity: float | None = None
    linf_clip: float | None = None
    noise_std: float = 0.0
    clip_metric: Literal["euclidean", "fisher"] | None = None
    others: Literal["anywhere", "near-reference"] | None = None

    def plan(self) -> Plan:
        """ConfigError, AccountingError for what describes no plan."""
        if self.clients is None:
            raise ConfigError("--clients is missing: how many there are.")
        names = {field.name for field in dataclasses.fields(PlanOptions)} - {"before", "noise_schedule"}
        return PlanOptions(**{name: getattr(self, name) for name in names}).plan()

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
        plan, more = self.plan(), {"adjacency": self.adjacency, "delta": self.delta, "scale": self.scale}
        fields = {one.name: (getattr(plan, one.name), one.default) for one in dataclasses.fields(plan)}
        told = {name: more.get(name, value) for name, (value, default) in fields.items() if value != default}
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
    """Of each option: its type, and its words where there are only so many."""
    hints = get_type_hints(Question)
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


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def with_numbers(question: Question, *, rounds: int | None, noise_multiplier: float | None) -> Question:
    """The same plan with these rounds and this noise: epsilon is what is wanted, or nothing yet."""
    return replace(question, rounds=rounds, noise_multiplier=noise_multiplier, epsilon=None)
