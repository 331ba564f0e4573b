"""Compressors of updates; payloads are real bytes of known size.

scheme = dpfed.compress.get("drive")
payloads = scheme.encode(x, seed=7)                  # x [clients, d]
message = payloads[0].to_bytes()                # all bytes that a client sends
payload = dpfed.compress.from_bytes(message)
scheme.decode([payload])                             # [1, d]
scheme.mean(payloads)                                # [d]

A custom scheme is registered by `@dpfed.compress.register("name")` (`dpfed.compress.own_scheme`).
`dpfed.compress.check(scheme)` tests its claims (`dpfed.compress.conformance`).
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from accounting import require
from dpfed.compress import own_scheme
from dpfed.compress.conformance import Conformance, check
from dpfed.compress.fields import Floats, Indices, SymbolField
from dpfed.compress.levels import Dense, Qsgd, SignSgd, StochasticSign, TernGrad
from dpfed.compress.mask_schemes import FedMask, FedMrn, FedMrnSigned, FedPm
from dpfed.compress.payload import Batch, Payload, Payloads, Scheme, parse
from dpfed.compress.rotated_levels import Drive, Eden
from dpfed.compress.rotation import FedScalar
from dpfed.compress.sparse import FedSparsify, RandK, SharedRandK, SharedTopK, TopK
from dpfed.config import own_code
from dpfed.config.own_code import errors_of_user_code, load_own_code
from dpfed.errors import ConfigError, require_name

__all__ = [
    "Batch",
    "Conformance",
    "Floats",
    "Indices",
    "Payload",
    "Payloads",
    "Scheme",
    "SymbolField",
    "check",
    "from_bytes",
    "get",
    "names",
    "register",
]

_SCHEMES: Mapping[str, type[object]] = {
    scheme.name: scheme
    for scheme in (
        *(Dense, TopK, RandK, SharedRandK, SharedTopK, SignSgd, StochasticSign, TernGrad, Qsgd),
        *(FedSparsify, Drive, Eden, FedMrn, FedMrnSigned, FedScalar, FedPm, FedMask),
    )
}


def names() -> tuple[str, ...]:
    """Return the names of the schemes that `get` knows, custom ones last."""
    return tuple(_known_schemes())


def get(name: str, **options: object) -> Scheme:
    """Return the scheme `name` with these options. Raise ConfigError for an unknown name or option, or an invalid
    value."""
    if name not in _known_schemes():
        load_own_code()
    return _make_scheme(name, options)


def register(name: str) -> Callable[[own_scheme.Given], own_scheme.Given]:
    """Register the decorated class as the scheme `name` of this process, and as a method of the same name.
    `dpfed.compress.own_scheme` states the required attributes. Raise ConfigError for a class that lacks them, and for a
    name that is taken."""
    return own_scheme.register(name, taken=tuple(_SCHEMES))


def from_bytes(message: bytes, *, dimension: int | None = None) -> Payload:
    """Return the payload whose `to_bytes` gave `message`. Raise WireError for any other bytes.

    `dimension`: the expected d; if it is None, d is at most 2^24. Memory is proportional to d.
    """
    return parse(message, _make_scheme, dimension=dimension)


def _known_schemes() -> Mapping[str, Any]:
    return {**_SCHEMES, **own_code.objects_of_kind("scheme")}


def _make_scheme(name: str, options: Mapping[str, object]) -> Scheme:
    known = _known_schemes()
    require_name(f"compressor {name!r}: known are", name, known)
    scheme, kinds = known[name], _option_types(known[name])
    for option, value in options.items():
        if option not in kinds:
            allowed = ", ".join(kinds) or "none"
            raise ConfigError(f"option {option}={value!r} of {name}: not one of its options ({allowed}).")
        if not _has_type(value, kinds[option]):
            raise ConfigError(f"option {option}={value!r} of {name}: must be {_options_text(kinds[option])}.")
    with errors_of_user_code(f"{name} with {dict(options)}"):  # scheme and options may come from a user or attacker
        try:
            made: Scheme = scheme(**options)
        except TypeError:
            required = [one.name for one in dataclasses.fields(scheme) if one.default is dataclasses.MISSING]
            raise ConfigError(f"{name} needs its options {', '.join(required)}; given: {', '.join(options)}.") from None
    return made


@functools.cache
def _option_types(scheme: Any) -> Mapping[str, type]:
    """Return the types of a scheme's options, by which options in a message are checked."""
    hints = typing.get_type_hints(scheme)
    return {one.name: hints[one.name] for one in dataclasses.fields(scheme) if one.init}


def _has_type(value: object, kind: type) -> bool:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return any(_has_type(value, one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is typing.Literal:
        return value in typing.get_args(kind)
    if kind is float:
        return require.is_number(value)
    if kind is int:
        return require.is_whole(value)
    return value is None if kind is type(None) else isinstance(value, kind)


def _options_text(kind: type) -> str:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(_options_text(one) for one in typing.get_args(kind))
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a name", type(None): "none"}
    return words.get(kind, f"a {getattr(kind, '__name__', kind)}")
