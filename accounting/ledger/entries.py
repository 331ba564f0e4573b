"""Lines of a ledger: a header, then one entry for every round that released something or ended without a result.

Unit "client": a `Release`, about all clients of a round. Unit "record": a `LocalRelease`, the releases of each client
of a round about its records.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from accounting import mechanisms, require
from accounting.compose.histories import Steps
from accounting.errors import AccountingError, InvalidParameter
from accounting.ledger.planned import Planned, planned_from
from accounting.mechanisms import Composed, SingleRelease, unsampled
from accounting.rounding import upwards

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Header:
    """First line of a ledger, which holds for the whole file.

    randomness: "simulated" (seeded, not for release) or "secure" (of the operating system).
    population: fingerprint, under a secret key, of the clients and their data.
    binding:    hashes of everything else the run consists of (configuration, start model), by name.
    plan:       most that may be released, fixed before the first result (`ledger.planned`). Ledgers of 0.1 have none of
    the three, ledgers of 0.2 have no plan.

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
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """One release. `mechanism` has adjacency, sampler and noise; the other fields say how it was carried out.

    noise_std: standard deviation of the noise on the sum. noise_placement: "server" or "clients" (shares). detail:
    anything else fixed beforehand (dimension, denominators, parts of a joint release). nonce: identifies the charge of
    a run's fresh noise, in the run's ledger and in its project's: equal nonces are one release. Units: clip_norm and
    noise_std in those of the updates.

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
            **_nonce_in(self.nonce),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalRelease:
    """Round of clients that train privately by themselves: their steps, none for clients missing in `steps`.

    noise_std: standard deviation of the noise on the sum over a batch. Units: clip_norm and noise_std in those of the
    gradients.

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
    detail: Mapping[str, Any] = field(default_factory=dict)

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
    """Round that ended without a result: nothing of it was released, so epsilon does not grow.

    Sound if ending depends neither on the data nor on the drawn clients: too many clients dropped out of a number that
    is fixed (`dpfed.methods.aborts` rejects everything else). reason: published; it has no counts, clients or steps.
    nonce:
    takes back the line of this nonce: its project was never charged for it, so nothing was released.

    >>> from accounting import Aborted
    >>> Aborted(round=3, reason="too few uploads").to_dict()
    {'kind': 'aborted', 'round': 3, 'reason': 'too few uploads'}
    """

    round: int
    reason: str
    nonce: str | None = None

    def to_dict(self) -> dict[str, object]:
        return {"kind": "aborted", "round": self.round, "reason": self.reason, **_nonce_in(self.nonce)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Purchase:
    """Releases of other kinds than a project's unit, bought together for `units` before the first of them.

    round: the first round they are for. detail: the run and its population, as in the releases of a project.

    >>> from accounting import Gaussian
    >>> from accounting.ledger import Purchase
    >>> noise = Gaussian(noise_multiplier=2.0, adjacency="add-remove")
    >>> Purchase(round=0, units=10, plan=((noise, 5),)).to_dict()["units"]
    10
    """

    round: int
    units: int
    plan: tuple[tuple[SingleRelease, int], ...]
    detail: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        return {
            "kind": "purchase",
            "round": self.round,
            "units": self.units,
            "plan": plan_to_list(self.plan),
            "detail": dict(self.detail),
        }


Entry = Release | LocalRelease | Aborted | Purchase
"""Line of a ledger after its header."""


def plan_to_list(plan: Iterable[tuple[SingleRelease, int]]) -> list[list[object]]:
    """Return a plan as it is written: pairs of a mechanism and a count."""
    return [[mechanism.to_dict(), count] for mechanism, count in plan]


def plan_from(record: Any) -> tuple[tuple[SingleRelease, int], ...]:
    """Return the plan that `plan_to_list` wrote. InvalidParameter for anything else."""
    if not isinstance(record, list) or not record or any(not isinstance(one, list) or len(one) != 2 for one in record):
        raise InvalidParameter("plan: must be a list of pairs of a mechanism and a count.")
    parts = tuple((_single(mechanism), require.count(count=count)) for mechanism, count in record)
    return Composed(parts=parts).parts


def _nonce_in(nonce: str | None) -> dict[str, str]:
    return {} if nonce is None else {"nonce": nonce}


def misplaced(header: Header, entry: Entry) -> str | None:
    """Return the fault of an entry in a ledger of this header, or None."""
    if isinstance(entry, Aborted):
        return None
    if isinstance(entry, Purchase):
        return None if "project" in header.about else "a purchase has no place in the ledger of a run."
    if isinstance(entry, LocalRelease) != (header.unit == "record"):
        kind = "local release" if isinstance(entry, LocalRelease) else "release of all clients"
        return f"a {kind} has no place in a ledger of unit {header.unit!r}."
    if isinstance(entry, LocalRelease):
        largest = max((max(part.clients, default=0) for part in entry.steps), default=0)
        if largest >= header.clients:
            return f"client {largest} of {header.clients} clients, who count from 0."
    return None


_ROUNDING = 1e-9
"""Relative difference of two computations of one standard deviation."""


def lacks_noise(entry: Entry) -> str | None:
    """Return the fault of an entry that states less noise than it charges for, or None.

    noise_std is compared with `least_noise_std` of each mechanism, up to 1e-9 of it: z C for Gaussians (a release that
    shares its noise multiplier with a count states more), the root of what all shares add, in clip norms, for integers
    (in the steps of `detail`, where it states them), the noise on the probabilities for Bernoulli samples.
    """
    if isinstance(entry, Aborted | Purchase):
        return None
    charged = entry.steps if isinstance(entry, LocalRelease) else (entry,)
    least = max((_least_noise_std(part.mechanism, entry) for part in charged), default=0.0)
    if entry.noise_std >= least * (1 - _ROUNDING):
        return None
    return (
        f"noise_std={entry.noise_std}: the mechanism that is charged has noise of standard deviation {upwards(least)} "
        f"at clip_norm={entry.clip_norm}. State the noise that is added, and charge for no more than that."
    )


def _least_noise_std(mechanism: SingleRelease, entry: Release | LocalRelease) -> float:
    steps = entry.detail.get("steps_per_unit")
    known = steps if isinstance(steps, int | float) and 0 < steps < math.inf else 0.0
    return unsampled(mechanism).least_noise_std(entry.clip_norm, known)


def header_from(record: Mapping[str, Any]) -> Header:
    """Return the header that `to_dict` wrote. Errors: InvalidParameter for anything else."""
    match record:
        case {"unit": "client" | "record" as unit, "clients": clients, "randomness": str(where), "about": dict(about)}:
            return Header(
                unit=unit,
                clients=require.count(clients=clients),
                randomness=where,
                about=about,
                population=_text(population=record["population"]) if "population" in record else None,
                binding=_texts(binding=record["binding"]) if "binding" in record else None,
                plan=planned_from(_mapping(plan=record["plan"])) if "plan" in record else None,
            )
    raise InvalidParameter("not a header: it needs unit (client or record), clients, randomness and about.")


class Entries:
    """Reader of records, one by one.

    A record equal to the one before up to round and nonce shares its parts: a million rounds of a run take the memory
    of their numbers.
    """

    def __init__(self) -> None:
        self._before: tuple[Mapping[str, Any], Entry] | None = None

    def read(self, record: dict[str, object]) -> Entry:
        """Return the entry that `to_dict` wrote. Errors: InvalidParameter for anything else."""
        round = require.count(0, round=record.pop("round", None))
        nonce = _text(nonce=record.pop("nonce")) if "nonce" in record else None
        if self._before is None or self._before[0] != record:
            try:
                self._before = record, _entry_of_round_0(record)
            except AccountingError:
                raise
            except (KeyError, TypeError) as error:
                raise InvalidParameter(f"not a release that this version knows ({error}).") from None
        entry = replace(self._before[1], round=round)
        if nonce is None:
            return entry
        if isinstance(entry, LocalRelease | Purchase):
            raise InvalidParameter("a local release or a purchase has no nonce.")
        return replace(entry, nonce=nonce)


def _entry_of_round_0(record: Mapping[str, Any]) -> Entry:
    if record["kind"] == "aborted":
        return Aborted(round=0, reason=_text(reason=record["reason"]))
    if record["kind"] == "purchase":
        units = require.count(units=record["units"])
        return Purchase(round=0, units=units, plan=plan_from(record["plan"]), detail=_mapping(detail=record["detail"]))
    if record["kind"] not in ("release", "local-release"):
        raise InvalidParameter("not a release that this version knows (kind).")
    common: Any = {
        "round": 0,
        "clip_norm": require.nonnegative(clip_norm=record["clip_norm"]),
        "noise_std": require.nonnegative(noise_std=record["noise_std"]),
        "detail": _mapping(detail=record["detail"]),
    }
    if record["kind"] == "local-release":
        return LocalRelease(steps=tuple(_steps_from(part) for part in record["steps"]), **common)
    placement = _text(noise_placement=record["noise_placement"])
    return Release(mechanism=_single(record["mechanism"]), noise_placement=placement, **common)


def _steps_from(record: Mapping[str, Any]) -> Steps:
    return Steps(mechanism=_single(record["mechanism"]), count=record["count"], clients=tuple(record["clients"]))


def _single(record: Mapping[str, Any]) -> SingleRelease:
    mechanism = mechanisms.from_dict(record)
    if isinstance(mechanism, Composed):
        raise InvalidParameter("a composition is not one release.")
    return mechanism


def _mapping(**named: object) -> dict[str, object]:
    ((name, value),) = named.items()
    if not isinstance(value, dict):
        raise InvalidParameter(f"{name}: must be an object.")
    return value


def _texts(**named: object) -> dict[str, str]:
    (name,) = named
    return {key: _text(**{f"{name}.{key}": one}) for key, one in _mapping(**named).items()}


def _text(**named: object) -> str:
    ((name, value),) = named.items()
    if not isinstance(value, str):
        raise InvalidParameter(f"{name}: must be text.")
    return value
