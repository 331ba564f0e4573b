"""FedAvg and DP-FedAvg, which send the whole update, and baselines in which each client chooses its coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.method import FederatedMethod
from dpfed.methods.specification import COMPRESSED, SPARSE, MethodSpecification

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_FED_SMP = "Hu, Guo, Gong: Federated Learning with Sparsified Model Perturbation"


def whole_update(s: Settings) -> Stages:
    """Return the chain that sends all d coordinates; in dp-fedavg they are clipped and noised."""
    return s.updates(stages.SendAll(size=s.size))


def client_chosen_coordinates(s: Settings) -> Stages:
    """Return the chain that sends k coordinates of each client's own choice; the sum of such uploads is not sparse."""
    return s.updates(stages.SendAll(size=s.size))


METHODS = (
    FederatedMethod(
        specification=MethodSpecification(
            name="fedavg",
            paper="McMahan et al. 2017: Communication-Efficient Learning of Deep Networks",
            unbiased=True,
            nominal_bits_per_parameter=32.0,
            linear=True,
            what="the whole update",
            scheme="dense",
            privacy="never",
        ),
        stages=whole_update,
    ),
    FederatedMethod(
        specification=MethodSpecification(
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
        stages=whole_update,
    ),
    FederatedMethod(
        specification=MethodSpecification(
            name="fedavg-topk",
            paper=_FED_SMP + " (baseline)",
            unbiased=False,
            nominal_bits_per_parameter=0.05 * 32 + 0.29,
            what="each client's own k largest coordinates, with their indices",
            scheme="topk",
            sparse="yes",
            takes=(*SPARSE, *COMPRESSED),
            presets={"fedavg-topk": {"method": {"keep": 0.05}}},
        ),
        stages=client_chosen_coordinates,
    ),
    FederatedMethod(
        specification=MethodSpecification(
            name="fedavg-randk",
            paper=_FED_SMP + " (baseline)",
            unbiased=True,
            nominal_bits_per_parameter=0.4 * 32,
            what="each client's own k random coordinates times d/k, with the seed",
            nearest_private="fed-smp-randk",
            scheme="randk",
            privacy="never",
            sparse="yes",
            takes=(*SPARSE, *COMPRESSED),
            presets={"fedavg-randk": {"method": {"keep": 0.4}}},
        ),
        stages=client_chosen_coordinates,
    ),
)
