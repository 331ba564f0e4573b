"""Who is trained how: one client after the other, or side by side, and how many at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dpfed.clients.graphs import LANES
from dpfed.models.flat import FlatModel

Strategy = Literal["auto", "loop", "vmap", "graphs"]

_STATE = 8
"""Vectors of a client under vmap: weights, their gradient, velocity or moments, coins, the move, one for passing."""
_ACTIVATIONS = 3
"""Numbers of a client's batch for each number that its forward pass keeps: with their gradients, and what passes."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How clients train, and why so. chunk: clients side by side at a time; None in a loop."""

    strategy: Literal["loop", "vmap", "graphs"]
    chunk: int | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one client's step is made of.

    dense, convolutions: layers of each kind;  products, convolved: their multiply-adds in the forward pass of a batch
    kept:                numbers that the forward pass keeps for the backward pass
    """

    weights: int
    dense: int
    convolutions: int
    products: int
    convolved: int
    kept: int

    def milliseconds_in_a_loop(self) -> float:
        """Of one client and step on two cores, each with a client of its own (fitted: benchmarks/README.md)."""
        arithmetic = 0.7e-7 * (self.products + self.convolved)
        return (0.1 * self.dense + 0.35 * self.convolutions + 0.7e-6 * self.weights + arithmetic) / 2

    def milliseconds_side_by_side(self, clients: int) -> float:
        """Of one client and step among `clients` on one core; convolutions under weights of one's own are grouped."""
        started = (0.25 * self.dense + 0.6 * self.convolutions) / clients
        arithmetic = 1e-7 * self.products + 3.5e-7 * self.convolved
        return started + 0.012 * self.dense + 2e-6 * self.weights + arithmetic

    def milliseconds_started_together(self, clients: int) -> float:
        """Of one client and step by vmap on a GPU. Estimated, not measured, as is the next."""
        arithmetic = 6e-10 * (self.products + 5 * self.convolved)
        return 0.010 * self._operations / clients + arithmetic + 1.2e-8 * self.weights

    def milliseconds_recorded(self, clients: int) -> float:
        """Of one client and step from a CUDA graph, with 6 flops a multiply-add at 10 Tflop/s, 24 bytes a weight at
        2 TB/s."""
        arithmetic = 6e-10 * (self.products + self.convolved)
        return 0.003 * self._operations / min(clients, LANES) + arithmetic + 1.2e-8 * self.weights

    @property
    def _operations(self) -> int:
        """Kernels of a step, forward and backward."""
        return 10 * self.dense + 15 * self.convolutions + 15

    def bytes(self, size: int) -> int:
        """Of a client under vmap whose course moves `size` numbers."""
        return 4 * (_STATE * max(size, self.weights) + _ACTIVATIONS * self.kept)


def cost_of(model: FlatModel, inputs: Tensor, batch: int) -> Cost:
    """What a step on `batch` rows like those of inputs [N, ...] costs, from a forward pass of one."""
    module = model.bind(model.initial(0)).eval()
    counts = {"dense": 0, "convolutions": 0, "products": 0, "convolved": 0, "kept": 0}

    def count(part: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        if isinstance(part, nn.Linear):
            counts["dense"] += 1
            counts["products"] += made.numel() * part.in_features
        else:
            counts["convolutions"] += 1
            counts["convolved"] += made.numel() * part.weight[0].numel()  # type: ignore[index]

    def keep(tensor: Tensor) -> Tensor:
        counts["kept"] += tensor.numel()
        return tensor

    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            part.register_forward_hook(count)
    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor):
        module(torch.zeros(1, *inputs.shape[1:], dtype=inputs.dtype))
    kept = max(counts["kept"] - model.parameters_size, 0)
    return Cost(
        weights=model.size,
        dense=counts["dense"],
        convolutions=counts["convolutions"],
        products=batch * counts["products"],
        convolved=batch * counts["convolved"],
        kept=batch * kept,
    )


def cheapest(cost: Cost, clients: int, chunk: int, device: torch.device) -> TrainingPlan:
    """The strategy for about `clients` at a time that should take less; the same on every machine of that kind."""
    together = max(1, min(clients, chunk))
    if device.type == "cuda":
        return _cheapest_on_a_gpu(cost, together, chunk)
    loop, vmap = cost.milliseconds_in_a_loop(), cost.milliseconds_side_by_side(together)
    words = f"expected of a client and step: {loop:.3f} ms in a loop, {vmap:.3f} ms {together} side by side"
    return (
        TrainingPlan(strategy="vmap", chunk=chunk, why=words)
        if vmap < loop
        else TrainingPlan(strategy="loop", chunk=None, why=words)
    )


def _cheapest_on_a_gpu(cost: Cost, together: int, chunk: int) -> TrainingPlan:
    vmap, graphs = cost.milliseconds_started_together(together), cost.milliseconds_recorded(together)
    words = f"expected of a client and step: {vmap:.3f} ms by vmap, {graphs:.3f} ms recorded, {together} side by side"
    return TrainingPlan(strategy="vmap" if vmap < graphs else "graphs", chunk=chunk, why=words)
