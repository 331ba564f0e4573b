"""All methods by name: built-in methods from the file of their family, and user-defined methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpfed.config import registered
from dpfed.config.did_you_mean import did_you_mean
from dpfed.errors import ConfigError
from dpfed.methods import dithered, fed_avg, fed_smp, fedmrn, fedpm, fedscalar, fedsparsify, quantisers
from dpfed.methods.method import FederatedMethod
from dpfed.methods.specification import MethodSpecification

FAMILIES = (fed_avg, fed_smp, fedpm, fedmrn, fedscalar, quantisers, dithered, fedsparsify)

_OURS: dict[str, FederatedMethod] = {one.specification.name: one for family in FAMILIES for one in family.METHODS}

METHODS: dict[str, MethodSpecification] = {name: one.specification for name, one in _OURS.items()}
"""Specifications of the built-in methods."""

_DIMENSION = 1 << 16


def all_methods() -> dict[str, MethodSpecification]:
    """Return the specifications of built-in methods, of custom methods, and of one method for each custom scheme.

    The method of a custom scheme has the scheme's name, and compresses the whole update by the scheme.
    """
    return {name: one.specification for name, one in _all_methods().items()}


def method_specification(name: str) -> MethodSpecification:
    """Return the specification of the method of this name; raises ConfigError, which suggests a similar name, if it is
    unknown."""
    return federated_method(name).specification


def federated_method(name: str) -> FederatedMethod:
    """Return the method of this name with its functions; raises ConfigError, which suggests a similar name, if it is
    unknown."""
    known = _OURS if name in _OURS else _all_methods()
    if name not in known:
        raise ConfigError(
            f"method.name={name!r}: known are {', '.join(known)}.{did_you_mean(name, known)} Load "
            "the file of a method of your own by --load FILE.py."
        )
    return known[name]


def _all_methods() -> dict[str, FederatedMethod]:
    return {**_OURS, **_scheme_methods(), **registered.objects_of_kind("method")}


def _scheme_methods() -> dict[str, FederatedMethod]:
    schemes, methods = registered.objects_of_kind("scheme"), registered.objects_of_kind("method")
    taken = [name for name in schemes if name in METHODS]
    if taken:
        raise ConfigError(f"scheme {taken[0]!r}: is the name of an existing method. Choose another name.")
    return {name: _scheme_method(name, made) for name, made in schemes.items() if name not in methods}


def _scheme_method(name: str, made: Any) -> FederatedMethod:
    specification = MethodSpecification(
        name=name,
        scheme=name,
        paper="one's own",
        nominal_bits_per_parameter=most_bits(made),
        unbiased=getattr(made, "unbiased", False) is True,
        what=(made.__doc__ or "user-defined scheme").strip().splitlines()[0].rstrip("."),
    )
    return FederatedMethod(specification=specification, stages=quantisers.quantised_update)


def most_bits(made: Callable[[], Any]) -> float:
    """Return the largest number of bits per parameter of the scheme that `made` returns, without headers.

    Returns 0 if the scheme has options without a default.
    """
    try:
        layout = made().layout(_DIMENSION)
    except (ConfigError, TypeError):
        return 0.0
    return float(8 * sum(part.most_bytes for part in layout.values()) / _DIMENSION)
