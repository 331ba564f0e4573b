"""Audits of privacy: tests whether a run keeps the privacy that the accountant claims for it.

    found = dpfed.audit.upload(f, claim=accounting.Gaussian(...))       # a user's function: docs/audit.md
    found = dpfed.audit.upload("fed-smp-randk")                         # a method of this package
    found = dpfed.audit.audit("runs/first")                             # anything that `dpfed audit X` takes
    found = dpfed.audit.replay(call)                                    # a training call(data, out): docs/replay.md

`statistics` tests scores without torch, `functions` audits a user's function, `round` a method's round, `evidence` the
files of a run; `others` reads other accountants and Flower's strategies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accounting import lazy

if TYPE_CHECKING:
    from dpfed.audit.functions.outputs import Worlds as Worlds
    from dpfed.audit.one_call import accountant as accountant
    from dpfed.audit.one_call import claim as claim
    from dpfed.audit.one_call import upload as upload
    from dpfed.audit.replays.audit import replay as replay
    from dpfed.audit.replays.flower_rounds import FlowerNodes as FlowerNodes
    from dpfed.audit.replays.pairs import Pair as Pair
    from dpfed.audit.verdict import Verdict as Verdict
    from dpfed.replayed import mechanism as mechanism
    from dpfed.replayed import outside as outside

_HOMES = {
    **lazy.names("dpfed.api.audit", "audit"),
    **lazy.names("dpfed.audit.verdict", "Verdict"),
    **lazy.names("dpfed.audit.functions.outputs", "Worlds"),
    **lazy.names("dpfed.audit.one_call", "accountant", "claim", "upload"),
    **lazy.names("dpfed.audit.replays.audit", "replay"),
    **lazy.names("dpfed.audit.replays.flower_rounds", "FlowerNodes"),
    **lazy.names("dpfed.audit.replays.pairs", "Pair"),
    **lazy.names("dpfed.replayed", "mechanism", "outside"),
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> object:
    return lazy.load_exported(__name__, name, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
