"""Stages of a method, a family per file, each with a client half and a half at the sum; loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accounting import lazy

if TYPE_CHECKING:
    from dpfed.stages.project import RandomSharedMask as RandomSharedMask
    from dpfed.stages.project import SendAll as SendAll

_HOMES = lazy.names("dpfed.stages.project", "RandomSharedMask", "SendAll")


def __getattr__(name: str) -> object:
    return lazy.load_exported(__name__, name, _HOMES)
