"""Methods that send updates: FedAvg and DP-FedAvg, baselines in which each client chooses its coordinates, and Fed-SMP,
where all clients of a round send the same k coordinates, so that their sum and its noise have k coordinates only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.specification import MethodSpecification

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
    MethodSpecification(
        name="fedavg",
        paper="McMahan et al. 2017: Communication-Efficient Learning of Deep Networks",
        unbiased=True,
        nominal_bits_per_parameter=32.0,
        linear=True,
        what="the whole update",
        scheme="dense",
        privacy="never",
    ),
    MethodSpecification(
        name="dp-fedavg",
        paper="McMahan et al. 2018: Learning Differentially Private Recurrent Language Models",
        unbiased=True,
        nominal_bits_per_parameter=32.0,
        linear=True,
        what="the whole update, clipped",
        same_coordinates=True,
        scheme="dense",
        privacy="required",
    ),
    MethodSpecification(
        name="fedavg-topk",
        paper=_FED_SMP + " (baseline)",
        unbiased=False,
        nominal_bits_per_parameter=0.05 * 32 + 0.29,
        what="each client's own k largest coordinates, with their indices",
        scheme="topk",
        sparse="yes",
        presets={"fedavg-topk": {"method": {"keep": 0.05}}},
    ),
    MethodSpecification(
        name="fedavg-randk",
        paper=_FED_SMP + " (baseline)",
        unbiased=True,
        nominal_bits_per_parameter=0.4 * 32,
        what="each client's own k random coordinates times d/k, with the seed",
        nearest_private="fed-smp-randk",
        scheme="randk",
        privacy="never",
        sparse="yes",
        presets={"fedavg-randk": {"method": {"keep": 0.4}}},
    ),
    MethodSpecification(
        name="fed-smp-randk",
        paper=_FED_SMP,
        unbiased=True,
        nominal_bits_per_parameter=0.4 * 32,
        linear=True,
        what="k coordinates that the round's public seed draws, times d/k, clipped",
        scheme="dense",
        privacy="required",
        sparse="yes",
        keys=("method.stays", "method.noiseless"),
        presets={
            "fed-smp-randk": {"method": {"keep": 0.4}},
            "fed-smp-randk-noiseless": {"privacy": False, "method": {"keep": 0.4, "noiseless": True}},
        },
        stages=random_shared_mask,
    ),
    MethodSpecification(
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
        keys=("method.public_epochs", "method.noiseless"),
        # The public samples are taken out of the training half and are not protected.
        presets={
            "fed-smp-topk": {"data": {"public": 1000}, "method": {"keep": 0.005}},
            "fed-smp-topk-noiseless": {
                "privacy": False,
                "data": {"public": 1000},
                "method": {"keep": 0.005, "noiseless": True},
            },
        },
        stages=top_mask_of_public_data,
    ),
)
