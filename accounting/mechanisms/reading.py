"""Mechanisms from the dictionaries that `to_dict` writes."""

import reprlib
from collections.abc import Mapping
from typing import Any

from accounting.errors import InvalidParameter
from accounting.mechanisms.descriptions import Composed, SingleRelease, Subsampled, Unsampled
from accounting.mechanisms.kinds import KINDS
from accounting.mechanisms.samplings import FixedSizeSampling, FullParticipation, PoissonSampling, Sampling
from accounting.mechanisms.schedules import SCHEDULES


def _unknown(name: str, record: object) -> InvalidParameter:
    return InvalidParameter(f"{name}={reprlib.repr(record)}: not a {name} that this version knows.")


def _sampling_from(record: Any) -> Sampling:
    match record:
        case {"name": "poisson", "probability": probability, **rest} if not rest:
            return PoissonSampling(probability=probability)
        case {"name": "fixed", "cohort": cohort, "clients": clients, **rest} if not rest:
            return FixedSizeSampling(cohort=cohort, clients=clients)
        case {"name": "all", **rest} if not rest:
            return FullParticipation()
        case {"name": str(name), **rest} if name in SCHEDULES:
            fields: Any = rest
            try:
                return SCHEDULES[name](**fields)
            except TypeError:
                raise _unknown("sampling", record) from None
    raise _unknown("sampling", record)


def _unsampled_from(record: Any) -> Unsampled:
    match record:
        case {"kind": str(kind), **rest} if kind in KINDS:
            fields: Any = rest
            try:
                made: Unsampled = KINDS[kind].description(**fields)
                return made
            except TypeError:
                raise _unknown("mechanism", record) from None
    raise _unknown("mechanism", record)


def _round_from(record: Any) -> SingleRelease:
    match record:
        case {"kind": "subsampled", "mechanism": inner, "sampling": sampling, **rest} if not rest:
            return Subsampled(mechanism=_unsampled_from(inner), sampling=_sampling_from(sampling))
    return _unsampled_from(record)


def from_dict(record: Mapping[str, Any]) -> SingleRelease | Composed:
    """The mechanism that `to_dict` wrote. Whatever else is there is an error, never a guess."""
    match record:
        case {"kind": "composed", "parts": [*parts], **rest} if rest.keys() <= {"order"}:
            return Composed(parts=tuple(_counted_from(part) for part in parts), order=rest.get("order", ()))
    return _round_from(record)


def _counted_from(record: Any) -> tuple[SingleRelease, int]:
    match record:
        case [part, count]:
            return _round_from(part), count
    raise _unknown("mechanism", record)
