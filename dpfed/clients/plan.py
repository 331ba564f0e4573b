"""Plan of local training: clients in a loop, or side by side in chunks of a given size."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dpfed.errors import ConfigError
from dpfed.models.flat import FlatModel

Strategy = Literal["auto", "loop", "vmap"]
Precision = Literal["float32", "bf16", "tf32"]
"""Number format in which a client computes its gradients; weights, sums and later steps are float32."""

_STATE = 8
"""Vectors kept for a client under vmap: weights, gradient, velocity or moments, mask, move, and one temporary."""
_ACTIVATIONS = 3
"""Numbers in memory for each number that a batch's forward pass keeps: with gradients and temporaries.
"""


@dataclass(frozen=True, kw_only=True)
class LoopReason:
    """Training that "auto" runs in a loop, one client after another, in Markdown; and the reason in a plan."""

    training: str
    why: str


LOOPS = {
    "secure": LoopReason(
        training='private runs with `run.randomness = "secure"`, so every private release',
        why="in one vectorised pass the last bits of a client's update, and at a kink of the network the whole update, "
        "depend on the other clients' numbers of samples",
    ),
    "records": LoopReason(
        training="private records (`[local.record]`)", why="per-record gradients are computed for one client at a time"
    ),
    "statistics": LoopReason(
        training='networks with BatchNorm, with `local.precision = "bf16"`',
        why="side by side the variances of BatchNorm would be computed in bf16",
    ),
    "recurrent": LoopReason(
        training="networks with recurrent layers (LSTM, GRU, RNN)",
        why="recurrent layers have fused kernels, for one client only",
    ),
    "trial": LoopReason(
        training="custom networks and losses that fail the trial side by side, or keep state from step to step",
        why="clients cannot be trained side by side",
    ),
}
"""Every training that cannot be vectorised. None depends on the method or its compressor."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Strategy of local training, and the reason. chunk: number of clients side by side; None in a loop."""

    strategy: Literal["loop", "vmap"]
    chunk: int | None
    why: str


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Operations and memory of one client's step.

    dense, convolutions: number of layers of each kind
    products, convolved: multiply-adds of dense layers and of convolutions in the forward pass of a batch
    windowed:            numbers in all windows of these convolutions' images (`dpfed.clients.gradients`)
    kept:                numbers that the forward pass keeps for the backward pass
    """

    weights: int
    dense: int
    convolutions: int
    products: int
    convolved: int
    windowed: int
    kept: int

    def milliseconds_in_a_loop(self) -> float:
        """Return the time of one client and step on two cores, one client a core (fitted: benchmarks/README.md)."""
        arithmetic = 0.7e-7 * (self.products + self.convolved)
        return (0.1 * self.dense + 0.35 * self.convolutions + 0.7e-6 * self.weights + arithmetic) / 2

    def milliseconds_side_by_side(self, clients: int) -> float:
        """Return the time of one client and step among `clients` on one core, where convolutions are grouped by
        client."""
        started = (0.25 * self.dense + 0.6 * self.convolutions) / clients
        arithmetic = 1e-7 * self.products + 3.5e-7 * self.convolved
        return started + 0.012 * self.dense + 2e-6 * self.weights + arithmetic

    def convolution_milliseconds(self, *, windows: bool) -> float:
        """Return the time of one client's convolutions in a step on a GPU: by windows, or one kernel a client (fitted
        to one GPU: benchmarks/gpu.md)."""
        if windows:
            return 2.7e-8 * self.windowed
        return max(0.015 * self.convolutions, 5.5e-10 * self.convolved)

    def takes_windows(self, device: torch.device) -> bool:
        """Return True if clients side by side convolve faster by windows; on a CPU groups were faster throughout."""
        times = [self.convolution_milliseconds(windows=one) for one in (True, False)]
        return device.type == "cuda" and times[0] < times[1]

    def bytes(self, size: int, device: torch.device) -> int:
        """Return the memory in bytes of a client under vmap whose course trains `size` numbers."""
        windows = 2 * self.windowed if self.takes_windows(device) else 0
        return 4 * (_STATE * max(size, self.weights) + _ACTIVATIONS * self.kept + windows)


def check_strategy(
    strategy: Strategy, precision: Precision, model: FlatModel, device: torch.device, *, private_records: bool
) -> None:
    """Raise ConfigError for a strategy or a precision that this network, device or private records do not allow."""
    if model.has_fused_layers and (strategy == "vmap" or private_records):
        raise ConfigError(
            "model: has torch's LSTM, GRU or RNN, whose fused kernels do not separate clients or records: neither "
            "strategy='vmap' nor private records work. Use strategy 'auto' without [local.record], or build the "
            "network from dpfed.models.networks.LstmLayer, where both do."
        )
    if strategy == "vmap" and private_records:
        raise ConfigError(
            "strategy='vmap' with private records: per-record gradients are computed one client after the other. Use "
            "'loop' or 'auto'."
        )
    if model.has_statistics and private_records:
        raise ConfigError(
            "model: has BatchNorm, whose statistics mix the records of a batch, so per-record gradients do not exist. "
            "Use a model with GroupNorm or without normalisation."
        )
    if precision != "float32" and private_records:
        raise ConfigError(
            f"precision={precision!r} with private records: gradients must be exact to be clipped. Use 'float32'."
        )
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError(
            f"precision='tf32' on {device}: only CUDA GPUs have it. Use 'float32' or 'bf16', or run.device='cuda'."
        )
    if precision == "bf16" and model.has_statistics and strategy == "vmap":
        raise ConfigError(
            "precision='bf16' with strategy='vmap': the model has BatchNorm, whose variances would be computed in "
            "bf16. Use strategy 'auto' or 'loop', or 'float32'."
        )


def step_cost(model: FlatModel, inputs: Tensor, batch: int) -> StepCost:
    """Return the cost of a step on `batch` rows of the shape of inputs [N, ...], measured by a forward pass of one
    row."""
    module = model.bind(model.initial(0)).eval()
    counts: Counter[str] = Counter()

    def count_operations(part: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        if isinstance(part, nn.Linear):
            counts["dense"] += 1
            counts["products"] += made.numel() * part.in_features
        else:
            counts["convolutions"] += 1
            each = part.weight[0].numel()  # type: ignore[index]
            counts["convolved"] += made.numel() * each
            counts["windowed"] += made.numel() * each // len(part.weight)  # type: ignore[arg-type]

    def count_kept(tensor: Tensor) -> Tensor:
        counts["kept"] += tensor.numel()
        return tensor

    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            part.register_forward_hook(count_operations)
    with torch.enable_grad(), saved_tensors_hooks(count_kept, lambda tensor: tensor):
        module(inputs[:1].cpu())
    counts["kept"] = max(counts["kept"] - model.parameters_size, 0)
    grown = {name: batch * counts[name] for name in ("products", "convolved", "windowed", "kept")}
    return StepCost(weights=model.size, dense=counts["dense"], convolutions=counts["convolutions"], **grown)


def fastest_plan(cost: StepCost, clients: int, chunk: int, device: torch.device) -> TrainingPlan:
    """Return the strategy expected to be faster for about `clients` at a time, equal on all machines of that kind."""
    together = max(1, min(clients, chunk))
    if device.type == "cuda":
        words = "a GPU trains clients side by side"
        if cost.convolutions:
            windows, groups = (cost.convolution_milliseconds(windows=one) for one in (True, False))
            words += f"; convolutions expected of a client and step: {windows:.3f} ms by windows, {groups:.3f} ms apart"
        return TrainingPlan(strategy="vmap", chunk=chunk, why=words)
    loop, vmap = cost.milliseconds_in_a_loop(), cost.milliseconds_side_by_side(together)
    words = f"expected of a client and step: {loop:.3f} ms in a loop, {vmap:.3f} ms {together} side by side"
    if vmap < loop:
        return TrainingPlan(strategy="vmap", chunk=chunk, why=words)
    return TrainingPlan(strategy="loop", chunk=None, why=words)


_CACHED = 20_000_000
"""Largest chunk in bytes that stays in a CPU's caches: larger chunks are slower (benchmarks/README.md)."""
_SHARE = 4


def default_budget(device: torch.device) -> int:
    """Return the default memory in bytes: a quarter of the machine's main memory, or of a GPU's.

    Free memory does not matter: a resumed run keeps its number of clients side by side. If less is free, chunks are
    halved (`dpfed.clients.side_by_side`).
    """
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) // _SHARE
    if not hasattr(os, "sysconf"):
        return 1 << 30
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _SHARE


def chunk_within(budget: int, each: int, device: torch.device) -> int:
    """Return the number of clients of `each` bytes that fit into `budget` bytes; at least one."""
    fast = 1000 if device.type == "cuda" else min(max(_CACHED // each, 10), 100)
    return max(1, min(budget // each, fast))


def takes_channels_last(model: FlatModel, inputs: Tensor) -> bool:
    """Return True if batches of `inputs` [N, ...] may have channels as the innermost dimension in memory.

    Torch's pooling on a CPU is then about fifteen times as fast (measured: benchmarks/README.md). True for images if a
    forward pass gives an equal result: a module that calls .view on an image instead of .reshape raises an error.
    """
    if inputs.dim() != 4 or inputs.device.type != "cpu" or len(inputs) < 2:
        return False
    some, weights = inputs[:2], model.initial(0)
    try:
        with torch.no_grad():
            as_it_is = model.bind(weights.clone()).eval()(some.clone())
            turned = model.bind(weights).eval()(some.clone(memory_format=torch.channels_last))
    except Exception:  # a user's network may raise any exception for another layout
        return False
    return torch.allclose(as_it_is, turned, rtol=1e-3, atol=1e-5)
