"""Methods whose uploads can have one kind of noise only, in plain values below the tables of a configuration."""

from __future__ import annotations

from typing import Literal

from dpfed.config import registered

Noise = Literal["coins", "dithered"]

NOISE: dict[str, Noise] = {"fedpm": "coins", "fedmask": "coins", "dp-dithered": "dithered"}
"""The noise of methods that come with dpfed; their specifications take it from here."""


def noise_of_method(name: str) -> Noise | None:
    """Return the only noise that uploads of this method can have; None if [privacy] says which."""
    if name in NOISE:
        return NOISE[name]
    method = registered.own("method").get(name)
    noise: Noise | None = None if method is None else method.facts.noise
    return noise
