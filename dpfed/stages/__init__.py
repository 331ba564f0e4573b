"""Stages of a method: one a file, each with the half of a client and the half of the sum. Loaded when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accounting import lazy

if TYPE_CHECKING:
    from dpfed.stages.maps import SendAll as SendAll
    from dpfed.stages.shared_mask import RandomSharedMask as RandomSharedMask

_HOMES = lazy.names("dpfed.stages.shared_mask", "RandomSharedMask") | lazy.names("dpfed.stages.maps", "SendAll")


def __getattr__(name: str) -> object:
    return lazy.found(__name__, name, _HOMES)
