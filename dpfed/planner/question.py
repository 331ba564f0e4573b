"""Question of the planner: the options of `dpfed budget` that describe a plan, and two of its three numbers."""

from __future__ import annotations

import dataclasses
import json
import shlex
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

from cyclopts import Parameter

from accounting.budget import Plan
from dpfed.errors import ConfigError
from dpfed.planner.plan_options import Mechanism, PlanOptions, Sampling, Solved, flag, wanted

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
        """The one of the three numbers to solve for. ConfigError unless exactly one lacks."""
        return wanted(self.plan(), rounds=self.rounds, noise_multiplier=self.noise_multiplier, epsilon=self.epsilon)

    @property
    def given(self) -> dict[str, Any]:
        """The options that are not at their defaults."""
        named = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: getattr(self, name) for name, default in named.items() if getattr(self, name) != default}

    @property
    def texts(self) -> dict[str, str]:
        """The same as text that reads back as it is: for a link, a page, a command."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in self.given.items()
        }

    @property
    def command(self) -> str:
        """Command line of `dpfed budget` that prints the answer."""
        words = ["dpfed", "budget"]
        for name, value in self.given.items():
            if isinstance(value, bool):
                words.append(flag(name if value else f"no_{name}"))
            else:
                words += [flag(name), str(value)]
        return shlex.join(words)

    @property
    def python(self) -> str:
        """Lines of Python whose last prints the very number."""
        two = ", ".join(
            f"{name}={getattr(self, name)!r}" for name in get_args(Solved) if getattr(self, name) is not None
        )
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
        """Return the text of a plan file."""
        return json.dumps({"format": _FORMAT, "options": self.given}, indent=2) + "\n"

    def at(self, *, rounds: int | None = None, noise_multiplier: float | None = None) -> Question:
        """Return the same plan with these rounds and this noise; epsilon is to be solved for."""
        return replace(self, rounds=rounds, noise_multiplier=noise_multiplier, epsilon=None)


def question_of(options: Mapping[str, object]) -> Question:
    """Read names and values, as a page, a link or a file has them. ConfigError names the option that is wrong."""
    readers = _readers()
    read: dict[str, Any] = {}
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
    """Read a plan file, or a link whose fragment has the plan. ConfigError where there is none."""
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


_Reader = tuple[Callable[[str], Any], str]
_OF_TYPE: dict[type, _Reader] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    bool: (lambda text: {"true": True, "false": False}[text.lower()], "true or false"),
}


@cache
def _readers() -> dict[str, _Reader]:
    """Converter of each option's text (KeyError or ValueError for a wrong one), and the allowed texts."""
    found = {}
    for name, hint in get_type_hints(Question).items():
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(one for one in get_args(hint) if one is not type(None))
        words = {word: word for word in get_args(hint)}
        found[name] = (words.__getitem__, f"one of {', '.join(words)}") if words else _OF_TYPE[hint]
    return found
