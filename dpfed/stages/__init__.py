"""Stages of a method, one per file, each with a client half and a half at the sum; loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accounting import lazy

if TYPE_CHECKING:
    from dpfed.stages.maps import SendAll as SendAll
    from dpfed.stages.shared_mask import RandomSharedMask as RandomSharedMask

_HOMES = lazy.names("dpfed.stages.shared_mask", "RandomSharedMask") | lazy.names("dpfed.stages.maps", "SendAll")


def __getattr__(name: str) -> object:
    return lazy.load_exported(__name__, name, _HOMES)
