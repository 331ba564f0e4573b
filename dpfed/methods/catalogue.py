"""All methods by name; each is in the file of its family."""

from __future__ import annotations

import difflib

from dpfed.errors import ConfigError
from dpfed.methods import fed_avg, fed_smp, fedmrn, fedpm, fedscalar, fedsparsify, quantisers
from dpfed.methods.facts import MethodFacts

FAMILIES = (fed_avg, fed_smp, fedpm, fedmrn, fedscalar, quantisers, fedsparsify)

METHODS: dict[str, MethodFacts] = {facts.name: facts for family in FAMILIES for facts in family.METHODS}


def method(name: str) -> MethodFacts:
    """The method of this name; ConfigError with the nearest one otherwise."""
    if name not in METHODS:
        nearest = difflib.get_close_matches(name, METHODS, n=1, cutoff=0)[0]
        raise ConfigError(f"method.name={name!r}: known are {', '.join(METHODS)}. Did you mean {nearest!r}?")
    return METHODS[name]
