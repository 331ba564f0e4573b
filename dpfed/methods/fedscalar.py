"""FedScalar: a client sends the inner products of its update with p random directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.method import FederatedMethod
from dpfed.methods.specification import COMPRESSED, SHARED, STAYS, MethodSpecification

if TYPE_CHECKING:
    from dpfed.config.tables import Config
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_FEDSCALAR = "Rostami, Kia 2024: FedScalar: A Communication Efficient Federated Learning"


def inner_products(s: Settings) -> Stages:
    """Return the chain that sends inner products with random directions.

    Each client has its own directions. With method.shared all clients of a round have the same ones, and the server can
    sum the inner products before it decodes.
    """
    return s.updates(s.shared_directions() if s.config.method.shared else stages.SendAll(size=s.size))


def refusals(config: Config) -> Iterator[str]:
    """Yield a message for directions that are kept for the whole run (method.stays) but are not shared."""
    if config.method.stays and not config.method.shared:
        yield (
            "method.stays=True has no effect here: it applies to directions that all clients share. Set "
            "method.shared=true, or remove the key."
        )


METHODS = (
    FederatedMethod(
        specification=MethodSpecification(
            name="fedscalar",
            scheme="fedscalar",
            paper=_FEDSCALAR,
            nominal_bits_per_parameter=0.0,
            unbiased=True,
            what="the update's products with p random directions, the client's or (method.shared) the round's",
            linear_if_shared=True,
            takes=(*COMPRESSED, *SHARED, *STAYS),
        ),
        stages=inner_products,
        refusals=refusals,
    ),
)
