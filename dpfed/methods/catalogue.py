"""All methods by name; each is in the file of its family, or one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpfed.config import registered
from dpfed.config.did_you_mean import did_you_mean
from dpfed.errors import ConfigError
from dpfed.methods import dithered, fed_avg, fed_smp, fedmrn, fedpm, fedscalar, fedsparsify, quantisers
from dpfed.methods.facts import MethodFacts, compressed

FAMILIES = (fed_avg, fed_smp, fedpm, fedmrn, fedscalar, quantisers, dithered, fedsparsify)

METHODS: dict[str, MethodFacts] = {facts.name: facts for family in FAMILIES for facts in family.METHODS}
"""Those that come with dpfed."""

_DIMENSION = 1 << 16


def every_method() -> dict[str, MethodFacts]:
    """They, one's own, and for each scheme of one's own the method of its name: the whole update through it."""
    return {**METHODS, **_of_schemes(), **registered.own("method")}


def method(name: str) -> MethodFacts:
    """The method of this name; ConfigError with the nearest one otherwise."""
    known = METHODS if name in METHODS else every_method()
    if name not in known:
        raise ConfigError(
            f"method.name={name!r}: known are {', '.join(known)}.{did_you_mean(name, known)} One's own are in a file "
            "that --load names."
        )
    return known[name]


def _of_schemes() -> dict[str, MethodFacts]:
    schemes, methods = registered.own("scheme"), registered.own("method")
    taken = [name for name in schemes if name in METHODS]
    if taken:
        raise ConfigError(f"scheme {taken[0]!r}: is the name of a method that is there already. Choose another.")
    return {name: _of_scheme(name, made) for name, made in schemes.items() if name not in methods}


def _of_scheme(name: str, made: Any) -> MethodFacts:
    return compressed(
        name,
        name,
        "one's own",
        bits=most_bits(made),
        unbiased=getattr(made, "unbiased", False) is True,
        what=(made.__doc__ or "one's own scheme").strip().splitlines()[0].rstrip("."),
        stages=quantisers.quantised,
    )


def most_bits(made: Callable[[], Any]) -> float:
    """A parameter, of the scheme that this makes, without headers; 0 where it has no default options."""
    try:
        layout = made().layout(_DIMENSION)
    except (ConfigError, TypeError):
        return 0.0
    return float(8 * sum(part.most_bytes for part in layout.values()) / _DIMENSION)
