"""Fed-SMP: all clients of a round send the same k coordinates, so that their sum and its noise have k coordinates
only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.method import FederatedMethod
from dpfed.methods.specification import COMPRESSED, NOISELESS, PUBLIC, SPARSE, STAYS, MethodSpecification

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_FED_SMP = "Hu, Guo, Gong: Federated Learning with Sparsified Model Perturbation"


def random_shared_mask(s: Settings) -> Stages:
    """Return the chain that sends k coordinates drawn from the round's public seed, times d/k."""
    return s.updates(stages.RandomSharedMask(size=s.size, kept=s.kept, stays=s.config.method.stays))


def top_mask_of_public_data(s: Settings) -> Stages:
    """Return the chain that sends the k coordinates that change most when the server trains on public data."""
    return s.updates(s.largest_in_public(s.kept))


METHODS = (
    FederatedMethod(
        specification=MethodSpecification(
            name="fed-smp-randk",
            paper=_FED_SMP,
            unbiased=True,
            nominal_bits_per_parameter=0.4 * 32,
            linear=True,
            what="k coordinates that the round's public seed draws, times d/k, clipped",
            scheme="dense",
            privacy="required",
            sparse="yes",
            takes=(*SPARSE, *COMPRESSED, *STAYS, *NOISELESS),
            presets={
                "fed-smp-randk": {"method": {"keep": 0.4}},
                "fed-smp-randk-noiseless": {"privacy": False, "method": {"keep": 0.4, "noiseless": True}},
            },
        ),
        stages=random_shared_mask,
    ),
    FederatedMethod(
        specification=MethodSpecification(
            name="fed-smp-topk",
            paper=_FED_SMP,
            unbiased=False,
            nominal_bits_per_parameter=0.005 * 32,
            linear=True,
            what="k coordinates that a public data set ranks highest, clipped",
            scheme="dense",
            privacy="required",
            sparse="yes",
            needs_public_data=True,
            takes=(*SPARSE, *COMPRESSED, *PUBLIC, *NOISELESS),
            # The public samples are taken out of the training half and are not protected.
            presets={
                "fed-smp-topk": {"data": {"public": 1000}, "method": {"keep": 0.005}},
                "fed-smp-topk-noiseless": {
                    "privacy": False,
                    "data": {"public": 1000},
                    "method": {"keep": 0.005, "noiseless": True},
                },
            },
        ),
        stages=top_mask_of_public_data,
    ),
)
