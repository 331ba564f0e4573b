"""What goes on the wire: compressors of updates with real bytes, public maps of an update, and what they cost.

scheme = dpfed.compress.get("drive")
payloads = scheme.encode(x, seed=7)                  # x [clients, d]
message = payloads[0].to_bytes()                     # all that a client sends
payload = dpfed.compress.from_bytes(message)
scheme.decode([payload])                             # [1, d]
scheme.mean(payloads)                                # [d]
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any

from dpfed.compress.dense import Dense
from dpfed.compress.drive import Drive
from dpfed.compress.eden import Eden
from dpfed.compress.levels import Qsgd, TernGrad
from dpfed.compress.masked_noise import FedMrn, FedMrnSigned
from dpfed.compress.masks_of_probabilities import FedMask, FedPm
from dpfed.compress.payload import Payload, Payloads, Scheme, parse
from dpfed.compress.projection import FedScalar
from dpfed.compress.pruned import FedSparsify
from dpfed.compress.sign import SignSgd, StochasticSign
from dpfed.compress.sparse import RandK, SharedRandK, SharedTopK, TopK
from dpfed.errors import ConfigError

__all__ = ["Payload", "Payloads", "Scheme", "from_bytes", "get", "names"]

_SCHEMES: Mapping[str, type[Any]] = {
    scheme.name: scheme
    for scheme in (
        Dense,
        TopK,
        RandK,
        SharedRandK,
        SharedTopK,
        SignSgd,
        StochasticSign,
        TernGrad,
        Qsgd,
        FedSparsify,
        Drive,
        Eden,
        FedMrn,
        FedMrnSigned,
        FedScalar,
        FedPm,
        FedMask,
    )
}


def names() -> tuple[str, ...]:
    """The schemes that `get` knows."""
    return tuple(_SCHEMES)


def get(name: str, **options: Any) -> Scheme:
    """The scheme `name` with these options. ConfigError for an unknown name or option, or a value that cannot work."""
    return _make(name, options)


def from_bytes(message: bytes, *, dimension: int | None = None) -> Payload:
    """The payload whose `to_bytes` gave `message`. WireError for any other bytes, whoever made them.

    A receiver that knows d says so; without it, at most d = 2^24 is believed. Memory is proportional to d.
    """
    return parse(message, _make, dimension=dimension)


def _make(name: str, options: Mapping[str, Any]) -> Scheme:
    if name not in _SCHEMES:
        near = difflib.get_close_matches(name, _SCHEMES, n=1, cutoff=0.0)[0]
        raise ConfigError(f"compressor {name!r}: did you mean {near!r}? There are: {', '.join(_SCHEMES)}.")
    scheme, kinds = _SCHEMES[name], _kinds(name)
    for option, value in options.items():
        if option not in kinds:
            allowed = ", ".join(kinds) or "none"
            raise ConfigError(f"option {option}={value!r} of {name}: not one of its options ({allowed}).")
        if not _is_a(value, kinds[option]):
            raise ConfigError(f"option {option}={value!r} of {name}: must be {_in_words(kinds[option])}.")
    try:
        made: Scheme = scheme(**options)
    except TypeError:
        required = [one.name for one in dataclasses.fields(scheme) if one.default is dataclasses.MISSING]
        raise ConfigError(f"{name} needs its options {', '.join(required)}; given: {', '.join(options)}.") from None
    return made


@functools.cache
def _kinds(name: str) -> Mapping[str, Any]:
    """The types of a scheme's options; every message asks for them."""
    scheme = _SCHEMES[name]
    hints = typing.get_type_hints(scheme)
    return {one.name: hints[one.name] for one in dataclasses.fields(scheme) if one.init}


def _is_a(value: object, kind: Any) -> bool:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(_is_a(value, one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return value is None if kind is type(None) else isinstance(value, kind)


def _in_words(kind: Any) -> str:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_in_words(one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a name", type(None): "none"}
    return words.get(kind, f"a {getattr(kind, '__name__', kind)}")
