"""Custom schemes: a class with `bits`, `encode` and `decode` becomes a scheme like the built-in ones.

    @compress.register("three-levels")
    class ThreeLevels:
        levels: int = 1                      # options: bool, int, float, str; non-default values are sent
        unbiased = True                      # claims without annotation: unbiased, linear, sends_seed; default False

        def bits(self, dimension):           # fields of a payload, computed from public things only
            return {"scale": Floats(count=1, signed=False), "trits": SymbolField(alphabet=3, count=dimension)}

        def encode(self, x, seeds):          # x: float32 [c, d], finite; seeds: int64 [c], for `dpfed.compress.counter`
            ...
            return {"scale": scale, "trits": trits}          # tensors [c, count], or [c] where the count is one

        def decode(self, sent):              # sent["scale"] [c, 1], sent["trits"] [c, d], sent.dimension; with
            return ...                       # sends_seed also sent.seeds [c].  Returns [c, d]

Every client's row must depend on its own row and seed only. Bytes, their parser, `from_bytes`, bounds on a message of
an attacker, and the count of bits follow from `bits`; content that does not fit `bits` is a ConfigError. A class with
`layout` in place of `bits` is used unchanged: it has the whole protocol of `dpfed.compress.payload`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from dpfed.compress.counter import client_seeds
from dpfed.compress.fields import LARGEST, Field, Floats, Indices, SymbolField
from dpfed.compress.payload import Layout, Payload, Payloads, Scheme, Seed, batch, checked_updates, type_and_shape
from dpfed.config import own_code
from dpfed.config.own_code import error_text, errors_of_user_code
from dpfed.errors import ConfigError, WireError

Given = TypeVar("Given", bound=type)

_SMALL, _WHOLE = ("bits", "encode", "decode"), ("layout", "encode", "decode", "mean")
_NOT_FIELDS = ("scheme", "dimension", "seeds")
_MOST_PER_COORDINATE, _MOST_BESIDE = 64, 4096
"""Largest number of values per coordinate, and of further values: bounds the memory that a forged option takes."""


def register(name: str, *, taken: Sequence[str]) -> Callable[[Given], Given]:
    """Return a decorator that registers a class as the scheme `name`, and returns the scheme. Raise ConfigError for an
    unsuitable class, for a name in `taken`, and for a name that is registered already."""

    def add_scheme(given: Given) -> Given:
        made: Given = _scheme_class(name, given)
        own_code.register_object("scheme", name, made, taken=taken)
        return made

    return add_scheme


def _scheme_class(name: str, given: Any) -> Any:
    if not isinstance(given, type):
        raise ConfigError(f"scheme {name!r}: is {type(given).__name__}; must be a class with {', '.join(_SMALL)}.")
    whole = hasattr(given, "layout")
    missing = [part for part in (_WHOLE if whole else _SMALL) if not callable(getattr(given, part, None))]
    if missing:
        raise ConfigError(f"scheme {name!r}: {given.__name__} has no {', '.join(missing)}. Define them as methods.")
    if "__dataclass_fields__" not in vars(given):
        given = dataclasses.dataclass(frozen=True, kw_only=True)(given)
    if not given.__dataclass_params__.frozen:
        raise ConfigError(f"scheme {name!r}: {given.__name__} is a mutable dataclass. Give it frozen=True.")
    claims = {claim: False for claim in ("linear", "unbiased") if not hasattr(given, claim)}
    # The class is found, shown and pickled as the one that it is made from.
    kept = {"__module__": given.__module__, "__qualname__": given.__qualname__, "__doc__": given.__doc__, "name": name}
    return type(given.__name__, (given,), kept | claims | ({} if whole else _protocol_methods(given)))


def _protocol_methods(given: Any) -> dict[str, object]:
    """Return the protocol's methods, which call those of a user's class."""

    def layout(self: Scheme, dimension: int) -> Layout:
        return _checked_layout(self, given.bits, dimension)

    def encode(self: Scheme, x: Tensor, *, seed: Seed = 0) -> Payloads:
        x = checked_updates(x)
        seeds = client_seeds(seed, len(x)).to(x.device)
        fields = given.encode(self, x.clone(), seeds.clone())
        own = {"seeds": seeds} if getattr(self, "sends_seed", False) else {}
        return Payloads.of(self, x.shape[1], **own, **_checked_fields(self, fields, x))

    def decode(self: Scheme, payloads: Sequence[Payload]) -> Tensor:
        sent = batch(payloads, self)
        try:
            rows = given.decode(self, sent)
        except Exception as error:  # content may come from an attacker, and a user's code may raise any exception
            raise WireError(f"{self.name}: a payload that its decode cannot take: {error_text(error)}.") from error
        if not isinstance(rows, Tensor) or rows.shape != (len(sent), sent.dimension):
            raise WireError(
                f"{self.name}: decode gives {type_and_shape(rows)}; must be a tensor [{len(sent)}, {sent.dimension}], "
                "a row for each payload."
            )
        return rows.to(torch.float32)

    return {"layout": layout, "encode": encode, "decode": decode, "mean": Scheme.mean}


def _checked_layout(scheme: Scheme, bits: Callable[[Scheme, int], Layout], dimension: int) -> Layout:
    with errors_of_user_code(f"scheme {scheme.name!r}: its bits of d={dimension} fail"):
        layout = bits(scheme, dimension)
    parts = ("count", "dtype", "most_bytes", "write", "read")
    given = layout if isinstance(layout, Mapping) else {}
    if not given or not all(hasattr(one, p) for one in given.values() for p in parts):
        raise ConfigError(
            f"scheme {scheme.name!r}: its bits are {layout!r}; must be a dictionary of names and fields (Floats, "
            "SymbolField, Indices of dpfed.compress)."
        )
    if any(name in _NOT_FIELDS for name in layout):
        raise ConfigError(f"scheme {scheme.name!r}: a field must not be called {', '.join(_NOT_FIELDS)}. Rename it.")
    count = sum(one.count for one in layout.values())
    if not 0 < count <= _MOST_PER_COORDINATE * dimension + _MOST_BESIDE:
        raise ConfigError(
            f"scheme {scheme.name!r}: {count} values of d={dimension} coordinates; at most {_MOST_PER_COORDINATE} per "
            f"coordinate, and {_MOST_BESIDE} further values."
        )
    return layout


def _checked_fields(scheme: Scheme, fields: object, x: Tensor) -> dict[str, Tensor]:
    """Return the fields of `encode` in the form of the layout. Raise ConfigError for content that cannot be sent."""
    layout = scheme.layout(x.shape[1])
    if not isinstance(fields, Mapping) or fields.keys() != layout.keys():
        given = ", ".join(map(str, fields)) if isinstance(fields, Mapping) else type(fields).__name__
        raise ConfigError(f"scheme {scheme.name!r}: encode gives {given}; its bits are {', '.join(layout)}.")
    return {
        name: _checked_content(f"scheme {scheme.name!r}: its {name}", part, fields[name], x)
        for name, part in layout.items()
    }


def _checked_content(what: str, part: Field, values: object, x: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or values.numel() != len(x) * part.count or values.shape[:1] != x.shape[:1]:
        raise ConfigError(f"{what} are {type_and_shape(values)}; must be a tensor [{len(x)}, {part.count}] ({part}).")
    values = values.reshape(len(x), part.count)
    match part:
        case Floats():
            return _checked_floats(what, part, values)
        case SymbolField():
            return _checked_symbols(what, part, values)
        case Indices():
            return _checked_indices(what, part, values)
    return values


def _checked_floats(what: str, part: Floats, values: Tensor) -> Tensor:
    values = values.to(torch.float16 if part.half else torch.float32)
    limit = float(torch.finfo(torch.float16).max) if part.half else LARGEST
    if not bool((values.abs() <= limit).all()):
        raise ConfigError(f"{what} hold NaN or more than ±{limit:g}, which is not sent. Scale or bound them.")
    if not part.signed and bool((values < 0).any()):
        raise ConfigError(f"{what} hold a number below zero, and are not signed. Send them with signed=True.")
    return values


def _checked_symbols(what: str, part: SymbolField, values: Tensor) -> Tensor:
    if values.is_floating_point() or values.is_complex():
        raise ConfigError(f"{what} are {values.dtype}; symbols must be whole numbers of an integer type.")
    values = values.to(torch.int64)
    if bool(((values < 0) | (values >= part.alphabet)).any()):
        raise ConfigError(
            f"{what} hold {int(values.min())} to {int(values.max())}; {part.alphabet} symbols are from 0 to "
            f"{part.alphabet - 1}."
        )
    return values.to(torch.uint8 if part.alphabet <= 256 else torch.int32)


def _checked_indices(what: str, part: Indices, values: Tensor) -> Tensor:
    values = values.to(torch.int64)
    inside = bool(((values >= 0) & (values < part.size)).all())
    if not inside or not bool((values.diff(dim=1) > 0).all()):
        raise ConfigError(f"{what} must be distinct coordinates below {part.size}, sorted in every row.")
    return values
