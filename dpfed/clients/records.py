"""Record-level privacy inside a client: DP-SGD on its own records."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from accounting.compose.histories import Steps
from accounting.ledger import LocalRelease
from accounting.mechanisms import DiscreteGaussian, Gaussian, PoissonSampling, SingleRelease, subsample
from accounting.mechanisms.adjacency import Adjacency
from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed import replayed
from dpfed.clients.losses import CROSS_ENTROPY, Loss
from dpfed.clients.schedule import PoissonBatches
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import IntegerRecords
from dpfed.models.networks import make_stepwise
from dpfed.randomness import Randomness
from dpfed.stages.clip import clip_rows

_MOST_NUMBERS = 50_000_000
"""Largest number of entries of per-record gradients in memory at a time, in one thread: 200 MB."""


@dataclass(frozen=True, kw_only=True)
class RecordLevel:
    """DP-SGD on a client's records: how a step bounds and noises their gradients (Abadi et al. 2016).

    Each record is in the batch independently with probability q = min(1, batch_size / n) (`PoissonBatches`). Let h_r be
    the slope of record r: the gradient of the trained numbers (weights, or a mask's scores: `Walk.slope`). A step
    follows
        h = (sum over the batch of clip(h_r, C) + N(0, (z C)^2)) / (q n)
    with the expected batch size as divisor, not the real one; the h of an empty batch is noise alone.

    Claim: under add-remove of one record of one client each h is a Poisson-sampled Gaussian mechanism of noise
    multiplier z and probability q; later computations of the client (momentum, Adam, its update, the upload) are
    post-processing. q, q n and the number of steps are parameters that do not change with the record: sizes of clients
    are public. A slope that is not finite counts as zero. Random numbers of dropout layers, from public seeds, do not
    depend on the other records of the batch (`dpfed.clients.network_randomness`).

    With `integers`, clipped slopes are rounded to integers, and the noise on their sum is a discrete Gaussian that is
    drawn exactly (`dpfed.mechanisms.records`). Then h is a Poisson-sampled discrete Gaussian mechanism, independent of
    floating-point rounding.
    """

    clip_norm: float
    noise_multiplier: float
    randomness: Randomness
    integers: IntegerRecords | None = None

    def __post_init__(self) -> None:
        if not SMALLEST_CLIP <= self.clip_norm <= LARGEST_CLIP:
            raise ConfigError(
                f"local.record.clip_norm={self.clip_norm}: must be from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}."
            )
        if not 0 < self.noise_multiplier < float("inf"):
            raise ConfigError(f"local.record.noise_multiplier={self.noise_multiplier}: must be positive and finite.")

    def release(
        self, sizes: NDArray[np.int64], clients: NDArray[np.int64], batches: PoissonBatches, *, number: int
    ) -> LocalRelease:
        """Return the release of a round of `clients`, whose numbers of records are `sizes`."""
        return LocalRelease(
            round=number,
            steps=tuple(
                Steps(
                    mechanism=step_release(self.noise, batches, int(size)),
                    count=batches.count(int(size)),
                    clients=tuple(map(int, clients[sizes == size])),
                )
                for size in np.unique(sizes[sizes > 0])
            ),
            clip_norm=self.clip_norm,
            noise_std=self.noise_multiplier * self.clip_norm if self.integers is None else self.integers.noise_std,
            detail={} if self.integers is None else self.integers.detail,
        )

    @property
    def noise(self) -> Gaussian | DiscreteGaussian:
        """Return the accountant's description of one step's noise on the sum of a whole batch."""
        return self.integers.noise if self.integers is not None else gaussian_noise(self.noise_multiplier)

    def slope(
        self, slopes: Callable[[Tensor], Tensor], batch: Tensor, *, size: int, expected: int, path: tuple[int, ...]
    ) -> Tensor:
        """Return h [size] of a batch of rows, from the per-record slopes [b, size] of `slopes`. `path` names the noise:
        (round, client, step).
        """
        if self.integers is not None:
            return self._integer_slope(self.integers, slopes, batch, expected=expected, path=path)
        total = torch.zeros(size, device=batch.device)
        replay = replayed.current_replay()
        for rows in torch.split(batch, max(1, _MOST_NUMBERS // size)) if len(batch) else ():
            clipped = clip_rows(slopes(rows), self.clip_norm).rows
            if replay is not None:
                replay.rounds.clipped(clipped, rows, self.clip_norm, path)
            total += clipped.sum(dim=0)
        noise = self.randomness.normal(size, "local.noise", *path, device=str(batch.device))
        if replay is None:
            noisy = total.add_(noise, alpha=self.noise_multiplier * self.clip_norm)
        else:
            noisy = total.add(noise, alpha=self.noise_multiplier * self.clip_norm)
            step, bound = f"step {path[2]} of private records", self.clip_norm
            noisy = replay.mechanism(step, total, noisy, sensitivity=bound, client=path[1])
        return noisy.div_(expected)

    def _integer_slope(
        self,
        integers: IntegerRecords,
        slopes: Callable[[Tensor], Tensor],
        batch: Tensor,
        *,
        expected: int,
        path: tuple[int, ...],
    ) -> Tensor:
        """Return the noisy sum h, in integers until the noise is added. The rounding of a record is named by the
        record.

        Slopes are computed record by record. In a batch their last bits depend on the number of records, and at a
        kink of the network even their leading digits do.
        """
        size, replay = integers.noise.dimension, replayed.current_replay()
        total = torch.zeros(size, dtype=torch.int64, device=batch.device)
        for rows in torch.split(batch, max(1, _MOST_NUMBERS // size)) if len(batch) else ():
            alone = torch.empty(len(rows), size, device=batch.device)
            for place, row in enumerate(torch.split(rows, 1)):
                alone[place] = slopes(row)[0]
            encoded = integers.encode_rows(clip_rows(alone, self.clip_norm).rows, rows.cpu().numpy(), path)
            if replay is not None:
                replay.rounds.clipped(encoded, rows, integers.noise.l2_bound, path)
            total += encoded.sum(dim=0)
        noisy = total + integers.draw_noise(*path).to(total.device)
        if replay is not None:
            step, bound = f"step {path[2]} of private records", integers.noise.l2_bound
            noisy = replay.mechanism(step, total, noisy, sensitivity=bound, client=path[1])
        return integers.decode_sum(noisy).div_(expected)


def gaussian_noise(noise_multiplier: float) -> Gaussian:
    """Return the accountant's description of one step's floating-point noise."""
    return Gaussian(noise_multiplier=noise_multiplier, adjacency=Adjacency.ADD_REMOVE)


def step_release(noise: Gaussian | DiscreteGaussian, batches: PoissonBatches, size: int) -> SingleRelease:
    """Return the accountant's description of one step of a client with `size` records, `size` at least one."""
    return subsample(noise, PoissonSampling(probability=batches.probability(size)))


Way = Literal["hooks", "vmap", "single"]
"""Computation of per-record gradients of a whole network: Opacus' hooks, torch.vmap over batches of one record, or one
backward pass for each record."""


class RecordGradients:
    """Per-record gradients of a module's loss, by Opacus' hooks. An instance is for one thread."""

    def __init__(self, module: nn.Module, *, loss: Loss = CROSS_ENTROPY) -> None:
        from opacus import GradSampleModule  # loading Opacus takes a second

        # An embedding's integer input has no gradient; its hook works without one.
        warnings.filterwarnings("ignore", message="Full backward hook is firing", category=UserWarning)
        self._module = GradSampleModule(make_stepwise(module), loss_reduction="sum")
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for (
            part
        ) in module.modules():  # Opacus skips layers in eval(); the layers that it supports compute alike in both modes
            trained = any(one.requires_grad for one in part.parameters(recurse=False))
            part.training |= trained
            if trained and not hasattr(part, "activations"):
                # Opacus would add this list in the first batch, and it would be mistaken for a state of the network.
                part.activations = []  # type: ignore[assignment]
        self._loss = loss

    def __call__(self, inputs: Tensor, labels: Tensor, within: AbstractContextManager[object] | None = None) -> Tensor:
        """Return gradients [b, d] for inputs [b, ...], b at least 1; the forward pass runs in the context `within`."""
        # Opacus' hooks run when a layer's input gets a gradient, so the first layer's input needs one, too.
        wanted = inputs.detach()
        if wanted.is_floating_point():
            wanted.requires_grad_()
        with torch.enable_grad():
            with within or nullcontext():
                outputs = self._module(wanted)
            loss = self._loss.record_losses(outputs, labels).sum()
        sought = [*self._parameters, wanted] if wanted.requires_grad else self._parameters
        totals = torch.autograd.grad(loss, sought, allow_unused=True)
        rows = [
            self._record_gradients(parameter, total, len(labels))
            for parameter, total in zip(self._parameters, totals, strict=False)
        ]
        return torch.cat(rows, dim=1)

    def _record_gradients(self, parameter: nn.Parameter, total: Tensor | None, batch: int) -> Tensor:
        """Return the per-record gradients of a parameter [b, its size], zeros if the loss does not depend on it, and
        clear them.
        """
        left: Tensor | None = parameter.grad_sample  # type: ignore[attr-defined]
        parameter.grad_sample = None  # type: ignore[attr-defined]
        if total is None:
            return parameter.detach().new_zeros(batch, parameter.numel())
        if left is None:
            raise RuntimeError("Opacus computed no per-record gradients of a trained parameter; nothing is private.")
        return left.reshape(batch, -1)


class WholeGradients:
    """Per-record gradients of a module's loss on batches of one record, equal to single backward passes.

    by: "vmap" computes the records of a batch together, for any layer that torch.vmap supports; "single" computes one
    after the other. An instance is for one thread.
    """

    def __init__(self, module: nn.Module, *, loss: Loss = CROSS_ENTROPY, by: Way = "vmap") -> None:
        # Some operations have no batching rule, and torch.vmap computes them record by record.
        warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
        self._module, self._loss, self._by = make_stepwise(module), loss, by
        self._names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]

    def __call__(self, inputs: Tensor, labels: Tensor, within: AbstractContextManager[object] | None = None) -> Tensor:
        """Return gradients [b, d] for inputs [b, ...], b at least 1; the forward passes run in the context `within`."""
        named = dict(self._module.named_parameters())
        weights = {name: named[name].detach() for name in self._names}
        gradient = torch.func.grad(self._loss_of_record)
        with torch.enable_grad(), within or nullcontext():
            if self._by == "vmap":
                found = torch.func.vmap(gradient, (None, 0, 0), randomness="different")(weights, inputs, labels)
            else:
                each = [self._gradient_of_record(named, one, label) for one, label in zip(inputs, labels, strict=True)]
                found = {name: torch.stack([one[name] for one in each]) for name in self._names}
        return torch.cat([found[name].detach().reshape(len(labels), -1) for name in self._names], dim=1)

    def _loss_of_record(self, weights: dict[str, Tensor], inputs: Tensor, label: Tensor) -> Tensor:
        outputs = torch.func.functional_call(self._module, weights, (inputs[None],))
        return self._loss.each(outputs, label[None]).sum()

    def _gradient_of_record(self, named: dict[str, nn.Parameter], inputs: Tensor, label: Tensor) -> dict[str, Tensor]:
        loss = self._loss.each(self._module(inputs[None]), label[None]).sum()
        trained = [named[name] for name in self._names]
        found = torch.autograd.grad(loss, trained, materialize_grads=True, allow_unused=True)
        return dict(zip(self._names, found, strict=True))


def gradients_of_records(module: nn.Module, *, loss: Loss, by: Way) -> RecordGradients | WholeGradients:
    """Return the per-record gradients of a module, computed in the given way for all its layers."""
    return RecordGradients(module, loss=loss) if by == "hooks" else WholeGradients(module, loss=loss, by=by)


def has_hooks(module: nn.Module) -> bool:
    """Return True if Opacus has a hook for each layer with trained parameters, and no layer works in place."""
    from opacus import GradSampleModule

    trained = [one for one in module.modules() if any(p.requires_grad for p in one.parameters(recurse=False))]
    known = all(type(one) in GradSampleModule.GRAD_SAMPLERS for one in trained)
    return known and not any(getattr(one, "inplace", False) for one in module.modules())
