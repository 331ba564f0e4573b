"""Gradients of single records, for DP-SGD on a client's own records (`dpfed.mechanisms.records`)."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn

from dpfed.clients.losses import CROSS_ENTROPY, Loss
from dpfed.models.networks import make_stepwise

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
        for part in module.modules():
            # Opacus skips layers in eval(); the layers that it supports compute alike in both modes.
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
