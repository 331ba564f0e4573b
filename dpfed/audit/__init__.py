"""Audits of privacy: tests whether a run keeps the privacy that the accountant claims for it.

    found = dpfed.audit.upload(f, claim=accounting.Gaussian(...))       # a user's function: docs/audit.md
    found = dpfed.audit.upload("fed-smp-randk")                         # a method of this package
    found = dpfed.audit.accountant("dp-accounting")                     # any accountant
    found = dpfed.audit.replay(call)                                    # a training call(data, out): docs/replay.md

`statistics` tests scores without torch, `functions` audits a user's function, `round` a method's round, `evidence` the
files of a run, and `others` accountants and Flower's strategies.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfed.audit.functions.worlds import Worlds as Worlds
    from dpfed.audit.one_call import accountant as accountant
    from dpfed.audit.one_call import claim as claim
    from dpfed.audit.one_call import upload as upload
    from dpfed.audit.replays.audit import replay as replay
    from dpfed.audit.replays.flower_rounds import FlowerNodes as FlowerNodes
    from dpfed.audit.replays.pairs import Pair as Pair
    from dpfed.replayed import mechanism as mechanism
    from dpfed.replayed import outside as outside

_HOMES = {
    "FlowerNodes": "dpfed.audit.replays.flower_rounds",
    "Pair": "dpfed.audit.replays.pairs",
    "Worlds": "dpfed.audit.functions.worlds",
    "accountant": "dpfed.audit.one_call",
    "claim": "dpfed.audit.one_call",
    "mechanism": "dpfed.replayed",
    "outside": "dpfed.replayed",
    "replay": "dpfed.audit.replays.audit",
    "upload": "dpfed.audit.one_call",
}

__all__ = ["FlowerNodes", "Pair", "Worlds", "accountant", "claim", "mechanism", "outside", "replay", "upload"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
