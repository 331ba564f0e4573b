"""Stages of a method: one a file, each with the half of a client and the half of the sum. Loaded when asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfed.stages.maps import SendAll as SendAll
    from dpfed.stages.shared_mask import RandomSharedMask as RandomSharedMask

_HOMES = {"RandomSharedMask": "shared_mask", "SendAll": "maps"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
