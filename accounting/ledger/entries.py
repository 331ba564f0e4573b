"""Lines of a ledger: a header, then one entry for every round that released a result or was aborted.

With unit "client" an entry is a `Release`, which covers all clients of a round. With unit "record" it is a
`LocalRelease`, which has the releases of each client about its records.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from accounting import mechanisms, require
from accounting.compose.histories import Steps
from accounting.errors import InvalidParameter
from accounting.ledger.planned import Planned, planned_from
from accounting.mechanisms import Composed, SingleRelease, unsampled
from accounting.rounding import upwards

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """First line of a ledger, which applies to the whole file.

    randomness: "simulated" (seeded, not for release) or "secure" (from the operating system).
    population: keyed fingerprint of the clients and their data.
    binding: hashes of the other inputs of the run (configuration, initial model), by name.
    solved: numbers that were calibrated before the first round (noise multiplier, coefficients, clip norm), by name. A
    later process reads them instead of calibrating again.
    plan: largest set of releases, fixed before the first result (`ledger.planned`). Ledgers of version 0.1 lack
    population, binding and plan; ledgers of version 0.2 lack the plan.

    >>> from accounting import Header
    >>> Header(unit="client", clients=6000, randomness="secure").to_dict()["version"]
    1
    """

    unit: str
    clients: int
    randomness: str
    about: Mapping[str, Any] = field(default_factory=dict)
    population: str | None = None
    binding: Mapping[str, str] | None = None
    plan: Planned | None = None
    solved: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, object]:
        return {
            "kind": "header",
            "version": VERSION,
            "unit": self.unit,
            "clients": self.clients,
            "randomness": self.randomness,
            "about": dict(self.about),
            **({} if self.population is None else {"population": self.population}),
            **({} if self.binding is None else {"binding": dict(self.binding)}),
            **({} if self.plan is None else {"plan": self.plan.to_dict()}),
            **({} if not self.solved else {"solved": dict(self.solved)}),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One release to be charged. `mechanism` has adjacency, sampler and noise; the other fields record its execution.

    noise_std: standard deviation of the noise on the sum. noise_placement: "server" or "clients" (shares). detail:
    other properties fixed in advance (dimension, denominators, parts of a joint release). nonce: identifies one draw of
    noise in the ledgers of the run and of the project; lines with equal nonces are one release.
    Units: clip_norm and noise_std in the units of the updates.

    >>> from accounting import Gaussian, Release
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="add-remove")
    >>> release = Release(round=0, mechanism=noise, clip_norm=0.5, noise_std=1.0, noise_placement="server")
    >>> release.to_dict()["sensitivity_in_clips"]
    1.0
    """

    round: int
    mechanism: SingleRelease
    clip_norm: float
    noise_std: float
    noise_placement: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    nonce: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "release",
            "round": self.round,
            "mechanism": self.mechanism.to_dict(),
            "sensitivity_in_clips": self.mechanism.adjacency.sensitivity_in_clips,
            "clip_norm": self.clip_norm,
            "noise_std": self.noise_std,
            "noise_placement": self.noise_placement,
            "detail": dict(self.detail),
            **_nonce_field(self.nonce),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRelease:
    """Round in which each client trains with record-level privacy. Clients that are missing in `steps` made no step.

    noise_std: standard deviation of the noise on the sum over a batch.
    Units: clip_norm and noise_std in the units of the gradients.

    >>> from accounting import Gaussian, LocalRelease, Steps
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="add-remove")
    >>> steps = Steps(mechanism=noise, count=5, clients=(0, 2))
    >>> LocalRelease(round=0, steps=(steps,), clip_norm=0.5, noise_std=1.0).to_dict()["steps"][0]["count"]
    5
    """

    round: int
    steps: tuple[Steps, ...]
    clip_norm: float
    noise_std: float
    detail: Mapping[str, object] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        return {
            "kind": "local-release",
            "round": self.round,
            "steps": [
                {"mechanism": part.mechanism.to_dict(), "count": part.count, "clients": list(part.clients)}
                for part in self.steps
            ],
            "clip_norm": self.clip_norm,
            "noise_std": self.noise_std,
            "detail": dict(self.detail),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Aborted:
    """Round that ended without a result: nothing was released, so epsilon does not increase.

    This is sound if the abort depends neither on the data nor on the drawn clients: too many of a fixed number of
    clients dropped out (`dpfed.methods.choices` rejects all other settings). reason: public text without counts,
    clients or steps.
    nonce: revokes the release with this nonce. The project was never charged for that release, so it was not made.
    noise_drawn: states that the round's correlated noise was drawn, and is subtracted again in later rounds as planned.
    Without this statement no epsilon is known for later rounds of such noise.

    >>> from accounting import Aborted
    >>> Aborted(round=3, reason="too few uploads").to_dict()
    {'kind': 'aborted', 'round': 3, 'reason': 'too few uploads'}
    """

    round: int
    reason: str
    nonce: str | None = None
    noise_drawn: bool = False

    def to_dict(self) -> dict[str, object]:
        drawn = {"noise_drawn": True} if self.noise_drawn else {}
        return {"kind": "aborted", "round": self.round, "reason": self.reason, **drawn, **_nonce_field(self.nonce)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    """Releases that differ from a project's unit, bought together for `units` before the first of these releases.

    round: first round of the purchased releases. rounds: the rounds of the plan's schedule, as pairs (first, number);
    None for a plan without a schedule, and in ledgers up to version 0.3, where they are the first rounds. detail: run
    name and population, as in the releases of a project.

    >>> from accounting import Gaussian
    >>> from accounting.ledger import Purchase
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="add-remove")
    >>> Purchase(round=0, units=10, plan=((noise, 5),)).to_dict()["units"]
    10
    """

    round: int
    units: int
    plan: tuple[tuple[SingleRelease, int], ...]
    rounds: tuple[tuple[int, int], ...] | None = None
    detail: Mapping[str, object] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        return {
            "kind": "purchase",
            "round": self.round,
            "units": self.units,
            "plan": plan_to_list(self.plan),
            **({} if self.rounds is None else {"rounds": [list(one) for one in self.rounds]}),
            "detail": dict(self.detail),
        }


Entry = Release | LocalRelease | Aborted | Purchase
"""Line of a ledger after its header."""


def plan_to_list(plan: Iterable[tuple[SingleRelease, int]]) -> list[list[object]]:
    """Return the JSON list of a plan: pairs of a mechanism and a count."""
    return [[mechanism.to_dict(), count] for mechanism, count in plan]


def plan_from(record: object) -> tuple[tuple[SingleRelease, int], ...]:
    """Return the plan of a list that `plan_to_list` wrote. Errors: InvalidParameter for any other object."""
    pairs = _required_pairs(record, "plan: must be a list of pairs of a mechanism and a count.")
    return Composed(parts=tuple((single_release_from(one), require.count(count=count)) for one, count in pairs)).parts


def _rounds_from(record: object) -> tuple[tuple[int, int], ...]:
    pairs = _required_pairs(record, "rounds: must be a list of pairs of a first round and a number of rounds.")
    return tuple((require.count(0, round=first), require.count(count=count)) for first, count in pairs)


def _required_pairs(record: object, error_text: str) -> list[list[Any]]:
    if not isinstance(record, list) or not record or any(not isinstance(one, list) or len(one) != 2 for one in record):
        raise InvalidParameter(error_text)
    return record


def _nonce_field(nonce: str | None) -> dict[str, str]:
    return {} if nonce is None else {"nonce": nonce}


def placement_error(header: Header, entry: Entry) -> str | None:
    """Return an error text if an entry must not be in a ledger with this header, else None."""
    if isinstance(entry, Aborted):
        return None
    if isinstance(entry, Purchase):
        return None if "project" in header.about else "a purchase is not allowed in the ledger of a run."
    if isinstance(entry, LocalRelease) != (header.unit == "record"):
        kind = "local release" if isinstance(entry, LocalRelease) else "release of all clients"
        return f"a {kind} is not allowed in a ledger of unit {header.unit!r}."
    if isinstance(entry, LocalRelease):
        largest = max((max(part.clients, default=0) for part in entry.steps), default=0)
        if largest >= header.clients:
            return f"client {largest} of {header.clients} clients: client numbers start at 0."
    return None


_ROUNDING = 1e-9
"""Relative tolerance between two computations of one standard deviation."""


_LARGE_COUNT = 1e100
"""Standard deviation of a count above which it reveals nothing."""


def noise_error(entry: Entry) -> str | None:
    """Return an error text if an entry states less noise than its mechanism is charged with, else None.

    noise_std must be at least `least_noise_std` of each mechanism, up to a relative 1e-9. For Gaussians that is z C;
    noise_std and the `count_noise_std` of `detail` then count together. For integers it is the standard deviation of
    the sum of all shares in clip norms, with the step size of `detail` if given. For Bernoulli samples it is the noise
    on the probabilities.
    """
    if isinstance(entry, Aborted | Purchase):
        return None
    charged = entry.steps if isinstance(entry, LocalRelease) else (entry,)
    least = max((_least_noise_std_of(part.mechanism, entry) for part in charged), default=0.0)
    stated = _noise_std_with_count(entry)
    if stated >= least * (1 - _ROUNDING):
        return None
    beside = "" if stated == entry.noise_std else f" and a count with noise, together {stated}"
    return (
        f"noise_std={entry.noise_std}{beside}: the charged mechanism has noise of standard deviation {upwards(least)} "
        f"at clip_norm={entry.clip_norm}. State the noise that is added, and charge a mechanism with no more noise."
    )


def _noise_std_with_count(entry: Release | LocalRelease) -> float:
    """Return noise_std; if a noisy count is released too, the noise_std of one sum that is as private as both."""
    count_std = entry.detail.get("count_noise_std")
    if not isinstance(count_std, int | float) or count_std > _LARGE_COUNT:
        return entry.noise_std
    stated = entry.noise_std, 2 * count_std * entry.clip_norm
    return 1 / math.hypot(1 / stated[0], 1 / stated[1]) if min(stated) > 0 else 0.0


def _least_noise_std_of(mechanism: SingleRelease, entry: Release | LocalRelease) -> float:
    steps = entry.detail.get("steps_per_unit")
    known = steps if isinstance(steps, int | float) and 0 < steps < math.inf else 0.0
    return unsampled(mechanism).least_noise_std(entry.clip_norm, known)


def header_from(record: Mapping[str, object]) -> Header:
    """Return the header of a record that `to_dict` wrote. Errors: InvalidParameter for any other record."""
    match record:
        case {"unit": "client" | "record" as unit, "clients": clients, "randomness": str(where), "about": dict(about)}:
            return Header(
                unit=unit,
                clients=require.count(clients=clients),
                randomness=where,
                about=about,
                population=_required_text(population=record["population"]) if "population" in record else None,
                binding=_required_texts(binding=record["binding"]) if "binding" in record else None,
                plan=planned_from(_required_object(plan=record["plan"])) if "plan" in record else None,
                solved=_solved_from(_required_object(solved=record["solved"])) if "solved" in record else None,
            )
    raise InvalidParameter("not a header: it needs unit (client or record), clients, randomness and about.")


def _solved_from(record: Mapping[str, object]) -> dict[str, object]:
    """Return calibrated numbers: positive numbers by name, and the columns of a matrix. Errors: InvalidParameter."""
    columns = _required_object(matrix=record.get("matrix", {}))
    for name, column in columns.items():
        if not isinstance(column, list):
            raise InvalidParameter(f"solved.matrix.{name}: must be a list of numbers.")
        for number in column:
            require.nonnegative(**{f"solved.matrix.{name}": number})
    numbers = {name: require.positive(**{f"solved.{name}": one}) for name, one in record.items() if name != "matrix"}
    return numbers | ({"matrix": columns} if columns else {})


class EntryParser:
    """Parser of the records of a ledger, in order.

    An entry that equals the previous entry except for round and nonce shares its objects, so that a million equal
    rounds need little memory.
    """

    def __init__(self) -> None:
        self._before: tuple[Mapping[str, object], Entry] | None = None

    def read(self, record: dict[str, object]) -> Entry:
        """Return the entry of a record that `to_dict` wrote. Errors: InvalidParameter for any other record."""
        round = require.count(0, round=record.pop("round", None))
        nonce = _required_text(nonce=record.pop("nonce")) if "nonce" in record else None
        if self._before is None or self._before[0] != record:
            try:
                self._before = record, _entry_with_round_0(record)
            except (KeyError, TypeError) as error:
                raise InvalidParameter(f"this version does not support the entry ({error}).") from None
        entry = replace(self._before[1], round=round)
        if nonce is None:
            return entry
        if isinstance(entry, LocalRelease | Purchase):
            raise InvalidParameter("a local release or a purchase has no nonce.")
        return replace(entry, nonce=nonce)


def _entry_with_round_0(record: Mapping[str, Any]) -> Entry:
    if record["kind"] == "aborted":
        drawn = record.get("noise_drawn") is True
        return Aborted(round=0, reason=_required_text(reason=record["reason"]), noise_drawn=drawn)
    if record["kind"] == "purchase":
        return Purchase(
            round=0,
            units=require.count(units=record["units"]),
            plan=plan_from(record["plan"]),
            rounds=_rounds_from(record["rounds"]) if "rounds" in record else None,
            detail=_required_object(detail=record["detail"]),
        )
    if record["kind"] not in ("release", "local-release"):
        raise InvalidParameter("this version does not support the entry (kind).")
    common: Any = {
        "round": 0,
        "clip_norm": require.nonnegative(clip_norm=record["clip_norm"]),
        "noise_std": require.nonnegative(noise_std=record["noise_std"]),
        "detail": _required_object(detail=record["detail"]),
    }
    if record["kind"] == "local-release":
        return LocalRelease(steps=tuple(_steps_from(part) for part in record["steps"]), **common)
    placement = _required_text(noise_placement=record["noise_placement"])
    return Release(mechanism=single_release_from(record["mechanism"]), noise_placement=placement, **common)


def _steps_from(record: Mapping[str, Any]) -> Steps:
    return Steps(
        mechanism=single_release_from(record["mechanism"]), count=record["count"], clients=tuple(record["clients"])
    )


def single_release_from(record: Mapping[str, object]) -> SingleRelease:
    """Return the release that a mechanism's `to_dict` wrote. Errors: InvalidParameter for a composition."""
    mechanism = mechanisms.from_dict(record)
    if isinstance(mechanism, Composed):
        raise InvalidParameter("a composition was given where one release is needed.")
    return mechanism


def _required_object(**named: object) -> dict[str, object]:
    ((name, value),) = named.items()
    if not isinstance(value, dict):
        raise InvalidParameter(f"{name}: must be an object.")
    return value


def _required_texts(**named: object) -> dict[str, str]:
    (name,) = named
    return {key: _required_text(**{f"{name}.{key}": one}) for key, one in _required_object(**named).items()}


def _required_text(**named: object) -> str:
    ((name, value),) = named.items()
    if not isinstance(value, str):
        raise InvalidParameter(f"{name}: must be text.")
    return value
