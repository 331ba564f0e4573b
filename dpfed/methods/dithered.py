"""DP-FedAvg whose privacy noise is the error of a dithered quantiser; the update needs less than one bit per
parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.config.noise_of_methods import NOISE
from dpfed.methods.method import FederatedMethod
from dpfed.methods.specification import MethodSpecification

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages


def dithered_update(s: Settings) -> Stages:
    """Return the chain that clips all d coordinates and quantises them; the decoding error is the Gaussian noise."""
    return s.dithered(stages.SendAll(size=s.size))


METHODS = (
    FederatedMethod(
        specification=MethodSpecification(
            name="dp-dithered",
            paper="Hegazy et al. 2024: Compression with Exact Error Distribution for Federated Learning",
            unbiased=True,
            nominal_bits_per_parameter=0.88,
            what="the whole update, clipped, through a quantiser with Gaussian error",
            scheme=None,
            takes=(),
            privacy="required",
            noise=NOISE["dp-dithered"],
        ),
        stages=dithered_update,
    ),
)
