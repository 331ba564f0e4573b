"""How the rows of a table look in its figures: no two alike, and variants of one method in one colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpfed.report.figures.figure import COLOURS

_STYLES: list[Any] = ["-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1))]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X"]


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour, line style and marker, as matplotlib takes them."""

    colour: str
    style: Any
    marker: str


def looks_of(names: Sequence[str]) -> dict[str, Look]:
    """A look for each of up to 35 names. Up to seven have a colour each.

    More than seven that are variants, "method, variant", have the colour of their method and the style and marker of
    their variant, as far as there are enough of them; others go through the colours again in another style.
    """
    names = list(dict.fromkeys(names))
    found = _by_variant(names) if len(names) > len(COLOURS) else None
    return found or {name: _look(i % len(COLOURS), i // len(COLOURS), i) for i, name in enumerate(names)}


def looks_for(names: Sequence[str], given: Mapping[str, Look]) -> Mapping[str, Look]:
    """The looks that are given for these names, or for what they begin with ("row, keep 0.1"); new ones if that leaves
    a name without one, or two alike."""
    names = list(dict.fromkeys(names))
    rows = {name: _row(name, given) for name in names}
    if None in rows.values() or len(set(rows.values())) < len(names):
        return looks_of(names)
    return {name: given[row] for name, row in rows.items() if row is not None}


def _row(name: str, given: Mapping[str, Look]) -> str | None:
    return max((row for row in given if f"{name}, ".startswith(f"{row}, ")), key=len, default=None)


def _by_variant(names: Sequence[str]) -> dict[str, Look] | None:
    parts = {name: name.partition(", ")[::2] for name in names}
    methods = list(dict.fromkeys(method for method, _ in parts.values()))
    variants = list(dict.fromkeys(variant for _, variant in parts.values() if variant))
    if any(not variant and [one for one, _ in parts.values()].count(method) > 1 for method, variant in parts.values()):
        variants.insert(0, "")
    if len(methods) in (1, len(names)) or len(methods) > len(COLOURS) or len(variants) > len(_STYLES):
        return None
    return {
        name: _look(methods.index(method), variants.index(variant) if variant in variants else 0)
        for name, (method, variant) in parts.items()
    }


def _look(colour: int, style: int, marker: int | None = None) -> Look:
    """`marker`: the place in line, after which colours and markers would come together again; shifted by the style."""
    return Look(
        colour=COLOURS[colour],
        style=_STYLES[style % len(_STYLES)],
        marker=_MARKERS[(style if marker is None else marker + style) % len(_MARKERS)],
    )
