"""FedScalar: a client sends its update's products with p random directions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.facts import COMPRESSED, SHARED, STAYS, compressed

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_FEDSCALAR = "Rostami, Kia 2024: FedScalar: A Communication Efficient Federated Learning"


def projections(s: Settings) -> Stages:
    """Directions of each client, or (method.shared) of the round, whose products can be summed before decoding."""
    return s.updates(s.shared_directions() if s.config.method.shared else stages.SendAll(size=s.size))


METHODS = (
    compressed(
        "fedscalar",
        "fedscalar",
        _FEDSCALAR,
        bits=0.0,
        unbiased=True,
        what="the update's products with p random directions, the client's or (method.shared) the round's",
        summed=True,
        takes=(*COMPRESSED, *SHARED, *STAYS),
        stages=projections,
    ),
)
