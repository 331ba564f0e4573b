"""Kinds of releases: the description of each, the module of its account, and reading and writing of its dictionary.

A new kind is a file with description and account, and an entry here. Modules of accounts are loaded when an account is
requested, because they load the numerics.
"""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from accounting.arrays import Floats
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from accounting.mechanisms.descriptions import Composed, SingleRelease, Subsampled, Unsampled
from accounting.mechanisms.gaussian import Gaussian, GaussianShares
from accounting.mechanisms.integers import DiscreteGaussian, Skellam
from accounting.mechanisms.samplings import (
    CappedPoissonSampling,
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    Sampling,
)
from accounting.mechanisms.schedules import SCHEDULES


@dataclass(frozen=True, kw_only=True)
class Account:
    """Account of a kind of release for `accounting.compose`; None for unknown parts. All are upper bounds.

    renyi:   (orders, release) -> Renyi divergences, unsampled, in both orders of the neighbours, over all neighbours
    sampled: (orders, release, sampling) -> those of a sampled round; infinite at orders without a bound
    orders:  orders to compute, unsampled and sampled, if each order is a search; else None
    twin:    (release, count) -> (Gaussian, closeness): each of `count` releases has distributions within
             e^±closeness of post-processings of the Gaussian. So it has the Gaussian's privacy loss distribution, but
             not its lower bound
    above:   (release, in_clips, lost) -> mu of a Gaussian pair N(mu), N(0): for neighbours at most `in_clips` clips
             apart, gamma >= 0 and both orders, H_gamma of the release is at most H_gamma of that pair plus `lost`;
             None if no such mu is known. Accounts that compare three vectors at once do not apply
    words:   (release, closeness) -> remark on the twin for a reader, `closeness` that of the whole run
    exact:   (release, rounds, delta) -> epsilon by the exact distribution; `exact_fits`: (release, rounds) -> True if
             it can be computed
    """

    renyi: Callable[[Floats, Any], Floats]
    sampled: Callable[[Floats, Any, Any], Floats] | None = None
    orders: tuple[Floats, Floats] | None = None
    twin: Callable[[Any, int], tuple[Any, float]] | None = None
    above: Callable[[Any, float, float], float | None] | None = None
    words: Callable[[Any, float], str] | None = None
    exact: Callable[[Any, int, float], float] | None = None
    exact_fits: Callable[[Any, int], bool] = lambda release, rounds: False


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Description of a kind, and the place of its `Account`: "module:NAME"."""

    description: type[Any]
    account: str


KINDS: dict[str, Kind] = {
    kind.description.kind: kind
    for kind in (
        Kind(description=Gaussian, account="accounting.gaussian.account:GAUSSIAN"),
        Kind(description=GaussianShares, account="accounting.gaussian.account:SHARES"),
        Kind(description=DiscreteGaussian, account="accounting.integers.discrete_gaussian:ACCOUNT"),
        Kind(description=Skellam, account="accounting.integers.skellam:ACCOUNT"),
        Kind(description=BernoulliChannel, account="accounting.bernoulli.accounts:CHANNEL"),
        Kind(description=BernoulliAggregate, account="accounting.bernoulli.accounts:AGGREGATE"),
    )
}


def account_of(release: SingleRelease) -> Account:
    """Return the account of an unsampled release. Errors: UnsupportedMechanism for a kind without one."""
    kind = getattr(type(release), "kind", None)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnsupportedMechanism(f"{type(release).__name__}: no Renyi curve is implemented.")
    return _account(kind)


@cache
def _account(kind: str) -> Account:
    module, name = KINDS[kind].account.split(":")
    found: Account = getattr(import_module(module), name)
    return found


def _unknown(name: str, record: object) -> InvalidParameter:
    return InvalidParameter(f"{name}={reprlib.repr(record)}: not a {name} that this version knows.")


def _sampling_from(record: object) -> Sampling:
    match record:
        case {"name": "poisson", "probability": probability, **rest} if not rest:
            return PoissonSampling(probability=probability)
        case {"name": "capped-poisson", "probability": probability, "cap": cap, "clients": clients, **rest} if not rest:
            return CappedPoissonSampling(probability=probability, cap=cap, clients=clients)
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


def _unsampled_from(record: object) -> Unsampled:
    match record:
        case {"kind": str(kind), **rest} if kind in KINDS:
            fields: Any = rest
            try:
                made: Unsampled = KINDS[kind].description(**fields)
                return made
            except TypeError:
                raise _unknown("mechanism", record) from None
    raise _unknown("mechanism", record)


def _round_from(record: object) -> SingleRelease:
    match record:
        case {"kind": "subsampled", "mechanism": inner, "sampling": sampling, **rest} if not rest:
            return Subsampled(mechanism=_unsampled_from(inner), sampling=_sampling_from(sampling))
    return _unsampled_from(record)


def from_dict(record: Mapping[str, Any]) -> SingleRelease | Composed:
    """Return the mechanism that `to_dict` wrote. Errors: InvalidParameter for any other record; nothing is guessed.

    >>> from accounting.mechanisms import from_dict
    >>> from_dict({"kind": "gaussian", "noise_multiplier": 1.4, "adjacency": "add-remove"})
    Gaussian(noise_multiplier=1.4, adjacency=<Adjacency.ADD_REMOVE: 'add-remove'>)
    """
    match record:
        case {"kind": "composed", "parts": [*parts], **rest} if rest.keys() <= {"order"}:
            return Composed(parts=tuple(_counted_from(part) for part in parts), order=rest.get("order", ()))
    return _round_from(record)


def _counted_from(record: Any) -> tuple[SingleRelease, int]:
    match record:
        case [part, count]:
            return _round_from(part), count
    raise _unknown("mechanism", record)
