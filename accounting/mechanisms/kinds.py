"""Accounts of kinds of releases, and the construction of a release from a dictionary.

A new kind is a class derived from `Unsampled`, with a `kind` and an `account`.
"""

import reprlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from accounting.arrays import Floats
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.adjacency import Unsampled
from accounting.mechanisms.descriptions import Composed, SingleRelease, Subsampled
from accounting.mechanisms.gaussian import Gaussian
from accounting.mechanisms.samplings.sampling import Sampling

Noise = TypeVar("Noise", bound=Unsampled)


@dataclass(frozen=True, kw_only=True)
class Account(Generic[Noise]):
    """Functions that bound one kind of release, for `accounting.compose`. All bounds are upper bounds; None: not
    available.

    renyi: (orders, release) -> Renyi divergences, unsampled, in both orders of the neighbours, over all neighbours
    sampled: (orders, release, sampling) -> Renyi divergences of a sampled round; infinite at orders without a bound
    orders: (unsampled orders, sampled orders) to compute, if each order needs a search; else None
    twin: (release, count) -> (Gaussian, closeness): each of `count` releases has distributions within e^±closeness of
    post-processings of the Gaussian. So the privacy loss distribution of the Gaussian bounds the release; its lower
    bound does not hold
    dominating_mu: (release, in_clips, lost) -> mu of a Gaussian pair N(mu), N(0): for neighbours at most `in_clips`
    clips apart, gamma >= 0 and both orders, H_gamma of the release is at most H_gamma of that pair plus `lost`; None if
    no such mu is known. Accounts that compare three vectors at once do not use it
    note: (release, closeness) -> note on the twin for a guarantee, `closeness` that of the whole run
    exact: (release, rounds, delta) -> epsilon by the exact distribution; `exact_fits`: (release, rounds) -> True if it
    can be computed"""

    renyi: Callable[[Floats, Noise], Floats]
    sampled: Callable[[Floats, Noise, Any], Floats] | None = None
    orders: tuple[Floats, Floats] | None = None
    twin: Callable[[Noise, int], tuple[Gaussian, float]] | None = None
    dominating_mu: Callable[[Noise, float, float], float | None] | None = None
    note: Callable[[Noise, float], str] | None = None
    exact: Callable[[Noise, int, float], float] | None = None
    exact_fits: Callable[[Noise, int], bool] = lambda release, rounds: False


def account_of(release: SingleRelease) -> Account[Unsampled]:
    """Return the account of an unsampled release. Errors: UnsupportedMechanism for a kind without one."""
    account = getattr(release, "account", None)
    if account is None:
        raise UnsupportedMechanism(f"{type(release).__name__}: no Renyi curve is implemented.")
    return _loaded_account(account) if isinstance(account, str) else account


@cache
def _loaded_account(place: str) -> Account[Unsampled]:
    module, name = place.split(":")
    found: Account[Unsampled] = getattr(import_module(module), name)
    return found


def _unknown_record_error(name: str, record: object) -> InvalidParameter:
    return InvalidParameter(f"{name}={reprlib.repr(record)}: this version does not support this {name}.")


def _from_record(word: str, key: str, classes: Mapping[str, type[Any]], record: object) -> Any:
    """Return an object of the class that `key` names. Errors: InvalidParameter for an unknown class, and missing or
    unknown fields.
    """
    given: dict[str, Any] = dict(record) if isinstance(record, Mapping) else {}
    with suppress(KeyError, TypeError):
        return classes[given.pop(key)](**given)
    raise _unknown_record_error(word, record)


def _unsampled_from_dict(record: object) -> Unsampled:
    made: Unsampled = _from_record("mechanism", "kind", Unsampled.kinds, record)
    return made


def _single_release_from_dict(record: object) -> SingleRelease:
    match record:
        case {"kind": "subsampled", "mechanism": inner, "sampling": sampling, **rest} if not rest:
            drawn = _from_record("sampling", "name", Sampling.kinds, sampling)
            return Subsampled(mechanism=_unsampled_from_dict(inner), sampling=drawn)
    return _unsampled_from_dict(record)


def from_dict(record: Mapping[str, Any]) -> SingleRelease | Composed:
    """Return the mechanism of a record that `to_dict` wrote. Errors: InvalidParameter for any other record.

    >>> from accounting.mechanisms import from_dict
    >>> from_dict({"kind": "gaussian", "noise_multiplier": 1.4, "adjacency": "add-remove"})
    Gaussian(noise_multiplier=1.4, adjacency=<Adjacency.ADD_REMOVE: 'add-remove'>)
    """
    match record:
        case {"kind": "composed", "parts": [*parts], **rest} if rest.keys() <= {"order"}:
            return Composed(parts=tuple(_part_from_list(part) for part in parts), order=rest.get("order", ()))
    return _single_release_from_dict(record)


def _part_from_list(record: Any) -> tuple[SingleRelease, int]:
    match record:
        case [part, count]:
            return _single_release_from_dict(part), count
    raise _unknown_record_error("mechanism", record)
