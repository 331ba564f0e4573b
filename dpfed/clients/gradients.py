"""Gradients of a batch, added to their target without storing the full gradient vector in between."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from dpfed.models.flat import FlatModel

_DENSE_FROM = 200_000
"""Number of weights from which a layer's gradient is kept as two factors (measured: benchmarks/README.md)."""

_Factors = list[tuple[nn.Linear, Tensor, Tensor]]


class BatchGradients:
    """Gradients of the loss of one module made by `FlatModel.bind`. An instance is for one thread.

    The gradient of a dense layer's weights is the sum over the batch of g_b x_b^T, with g the slopes of its outputs and
    x its inputs. It has as many entries as the weights, and rank b. For large layers the two factors are kept, and
    their product is added directly to the target. Forward and backward passes equal torch.nn.Linear's.

    factors: False: autograd computes every gradient
    """

    def __init__(self, model: FlatModel, module: nn.Module, *, factors: bool = True) -> None:
        self._layout = [block for block in model.layout if block.kind != "statistic"]
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._factors: _Factors = []
        for part in module.modules() if factors else ():
            if type(part) is nn.Linear and _is_large(part):
                part.forward = partial(_dense_outputs, part, self._factors)  # type: ignore[method-assign]

    def subtract_gradient(self, loss: Tensor, rate: float) -> None:
        """Subtract rate times the gradient from the parameters, in place."""
        self._add_gradient(loss, [parameter.data for parameter in self._parameters], -rate)

    def write(self, loss: Tensor, gradient: Tensor) -> None:
        """Write the gradient into `gradient` [d], 0 for running statistics."""
        places = [gradient[block.start : block.stop].view(block.shape) for block in self._layout]
        gradient.zero_()
        self._add_gradient(loss, places, 1.0)

    def _add_gradient(self, loss: Tensor, places: Sequence[Tensor], scale: float) -> None:
        found = torch.autograd.grad(loss, self._parameters, allow_unused=True)
        with torch.no_grad():
            for place, gradient in zip(places, found, strict=True):
                if gradient is not None:
                    place.add_(gradient, alpha=scale)
            of: dict[Tensor, Tensor] = dict(zip(self._parameters, places, strict=True))
            for layer, slopes, inputs in self._factors:
                of[layer.weight].addmm_(slopes.t(), inputs, alpha=scale)
                if layer.bias is not None:
                    of[layer.bias].add_(slopes.sum(dim=0), alpha=scale)
        self._factors.clear()


def _is_large(layer: nn.Linear) -> bool:
    """Return True if the layer has at least _DENSE_FROM weights, all of them trained and in main memory."""
    trained = layer.weight.requires_grad and (layer.bias is None or layer.bias.requires_grad)
    here = layer.weight.device.type == "cpu" and layer.weight.dtype == torch.float32
    return trained and here and layer.weight.numel() >= _DENSE_FROM


def _dense_outputs(layer: nn.Linear, factors: _Factors, inputs: Tensor) -> Tensor:
    """Return the layer's outputs for inputs [..., entering]; its backward pass appends the factors of the gradient."""
    rows = inputs.reshape(-1, layer.in_features)
    outputs: Tensor = _DenseLayer.apply(rows, layer.weight, layer, factors)  # type: ignore[no-untyped-call]
    return outputs.view(*inputs.shape[:-1], layer.out_features)


class _DenseLayer(torch.autograd.Function):
    """Dense layer as an autograd function. Its weights are an argument so that autograd reaches the layer, but get no
    gradient.
    """

    @staticmethod
    def forward(context: Any, rows: Tensor, weights: Tensor, layer: nn.Linear, factors: _Factors) -> Tensor:
        context.save_for_backward(rows, weights)
        context.layer, context.factors = layer, factors
        return _linear_product(rows, weights, layer.bias)

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor | None, None, None, None]:
        rows, weights = context.saved_tensors
        slope = slopes[0].contiguous()
        context.factors.append((context.layer, slope, rows))
        entering = _linear_product(slope, weights.t(), None) if context.needs_input_grad[0] else None
        return entering, None, None, None


def _linear_product(rows: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Return linear(rows, weights, bias), computed by oneDNN on processors that are not Intel's.

    oneDNN uses AVX-512 on all processors that have it, MKL only on Intel's: for batches of 10 oneDNN is two to three
    times as fast there.
    """
    if _ONEDNN is None:
        return linear(rows, weights, bias)
    product: Tensor = _ONEDNN(rows, weights, bias, "none", [], "")
    return product


_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
