"""Noise of methods whose uploads allow one kind of noise only, as plain values that import no configuration table."""

from __future__ import annotations

from typing import Literal

from dpfed.config import own_code

Noise = Literal["coins", "dithered"]

NOISE: dict[str, Noise] = {"fedpm": "coins", "fedmask": "coins", "dp-dithered": "dithered"}
"""Only allowed noise of each such built-in method; the method specifications read it here."""


def noise_of_method(name: str) -> Noise | None:
    """Return the only noise that uploads of this method can have; None if privacy.noise chooses it."""
    if name in NOISE:
        return NOISE[name]
    method = own_code.objects_of_kind("method").get(name)
    noise: Noise | None = None if method is None else method.noise
    return noise
