"""Methods whose uploads can have one kind of noise only, as plain values without imports of tables."""

from __future__ import annotations

from typing import Literal

from dpfed.config import registered

Noise = Literal["coins", "dithered"]

NOISE: dict[str, Noise] = {"fedpm": "coins", "fedmask": "coins", "dp-dithered": "dithered"}
"""Noise of built-in methods, from which their specifications read it."""


def noise_of_method(name: str) -> Noise | None:
    """Return the only noise that uploads of this method can have; None if [privacy] chooses it."""
    if name in NOISE:
        return NOISE[name]
    method = registered.own("method").get(name)
    noise: Noise | None = None if method is None else method.specification.noise
    return noise
