"""Gradients of linear layers and convolutions for clients and records together.

Torch runs a convolution under vmap as a grouped convolution, which cuDNN computes client by client. Here the windows of
all images are copied side by side, and one batched product multiplies them by the weights, so that the number of
operators does not depend on the number of clients. Channels are the innermost dimension, so that a copied run of
numbers is long, and no output is copied again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, pad

from dpfed.models.flat import FlatModel

Sides = tuple[int, int]


def convolve_by_windows(args: Sequence[Any], kwargs: dict[str, object]) -> Tensor | None:
    """Return torch.conv2d(*args, **kwargs) under vmap by windows; None if weights or images are equal for all clients,
    in groups, or rounded to bf16, where torch's own convolution is used."""
    given = dict(zip(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), args, strict=False))
    given |= kwargs
    images, weights, bias = given["input"], given["weight"], given.get("bias")
    batched = torch._C._functorch.is_batchedtensor
    if not (batched(images) and batched(weights)) or images.dim() != 4 or given.get("groups", 1) != 1:
        return None
    if torch.is_autocast_enabled(images.device.type):
        return None
    dilation = _both(given.get("dilation", 1))
    padding = _padding(given.get("padding", 0), (weights.shape[2], weights.shape[3]), dilation)
    outputs: Tensor = _Convolution.apply(pad(images, padding), weights, _both(given.get("stride", 1)), dilation)  # type: ignore[no-untyped-call]
    return outputs if bias is None else outputs + bias[:, None, None]


def _both(given: int | Sequence[int]) -> Sides:
    sides = (given,) if isinstance(given, int) else tuple(given)
    return sides[0], sides[-1]


def _padding(given: str | int | Sequence[int], kernel: Sides, dilation: Sides) -> tuple[int, int, int, int]:
    """Return the padding left, right, above and below."""
    if given == "same":
        rows, columns = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        return columns // 2, columns - columns // 2, rows // 2, rows - rows // 2
    high, wide = (0, 0) if isinstance(given, str) else _both(given)
    return wide, wide, high, high


class _Convolution(torch.autograd.Function):
    """Convolution of a client's padded images [b, i, h, w] with weights [o, i, k, l]; clients are added by vmap."""

    @staticmethod
    def forward(images: Tensor, weights: Tensor, stride: Sides, dilation: Sides) -> Tensor:
        return conv2d(images, weights, stride=stride, dilation=dilation)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Save nothing: the derivative is that of `_OfClients`."""

    @staticmethod
    def vmap(
        info: object, in_dims: Sequence[int], images: Tensor, weights: Tensor, stride: Sides, dilation: Sides
    ) -> tuple[Tensor, int]:
        images, weights = images.movedim(in_dims[0], 0), weights.movedim(in_dims[1], 0)
        return _OfClients.apply(images, weights, stride, dilation), 0  # type: ignore[no-untyped-call]


class _OfClients(torch.autograd.Function):
    """Convolutions [c, b, o, h, w] of the padded images [c, b, i, h, w] of c clients with their weights
    [c, o, i, k, l]."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weights: Tensor, stride: Sides, dilation: Sides) -> Tensor:
        clients, outputs, *_, rows, columns = weights.shape
        last = images.permute(0, 1, 3, 4, 2).contiguous()
        windows = _windows(last, (rows, columns), stride, dilation)
        high, wide = windows.shape[2:4]
        flat = windows.reshape(clients, -1, rows * columns * last.shape[-1])
        turned = weights.permute(0, 3, 4, 2, 1).reshape(clients, -1, outputs)
        ctx.save_for_backward(flat, turned)
        ctx.shapes = last.shape, weights.shape, (high, wide), stride, dilation
        return torch.bmm(flat, turned).view(clients, -1, high, wide, outputs).permute(0, 1, 4, 2, 3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        flat, turned = ctx.saved_tensors
        last, shape, (high, wide), stride, dilation = ctx.shapes
        clients, outputs, inputs, rows, columns = shape
        slopes = gradient.permute(0, 1, 3, 4, 2).reshape(clients, -1, outputs)
        of_weights = torch.bmm(slopes.mT, flat).view(clients, outputs, rows, columns, inputs).permute(0, 1, 4, 2, 3)
        if not ctx.needs_input_grad[0]:
            return None, of_weights, None, None
        parts = torch.bmm(slopes, turned.mT).view(clients, -1, high, wide, rows, columns, inputs)
        of_images = gradient.new_zeros(last)
        for row in range(rows):
            for column in range(columns):
                at = (slice(None), slice(None), *_strided((row, column), (high, wide), stride, dilation))
                of_images[at].add_(parts[:, :, :, :, row, column])
        return of_images.permute(0, 1, 4, 2, 3), of_weights, None, None


def _windows(images: Tensor, kernel: Sides, stride: Sides, dilation: Sides) -> Tensor:
    """Return a view [c, b, high, wide, k, l, i] of the windows of images [c, b, h, w, i]."""
    clients, batch, *sides, channels = images.shape
    high, wide = ((s - d * (k - 1) - 1) // t + 1 for s, k, t, d in zip(sides, kernel, stride, dilation, strict=True))
    steps = images.stride()
    return images.as_strided(
        (clients, batch, high, wide, *kernel, channels),
        (*steps[:2], steps[2] * stride[0], steps[3] * stride[1], steps[2] * dilation[0], steps[3] * dilation[1], 1),
        images.storage_offset(),
    )


def _strided(place: Sides, counts: Sides, stride: Sides, dilation: Sides) -> tuple[slice, slice]:
    """Return the entries of rows and columns that a kernel's `place` meets in its windows."""
    one, two = (
        slice(p * d, p * d + t * (n - 1) + 1, t) for p, n, t, d in zip(place, counts, stride, dilation, strict=True)
    )
    return one, two


_DENSE_FROM = 200_000
"""Number of weights from which a layer's gradient is kept as two factors (measured: benchmarks/README.md)."""

_ROUNDED_FROM = 64
"""Number of rows from which a large layer's products are faster in bf16 (ibid.)."""

_Factors = list[tuple[nn.Linear, Tensor, Tensor]]


class BatchGradients:
    """Gradients of the loss of one module made by `FlatModel.bind`. An instance is for one thread.

    The gradient of a dense layer's weights is the sum over the batch of g_b x_b^T, with g the slopes of its outputs and
    x its inputs. It has as many entries as the weights, and rank b. For large layers the two factors are kept, and
    their product is added directly to the target. Forward and backward passes equal torch.nn.Linear's, in float32 also
    under torch.autocast if the batch is small: rounding the weights would take longer than their product with it.
    """

    def __init__(self, model: FlatModel, module: nn.Module) -> None:
        self._layout = [block for block in model.layout if block.kind != "statistic"]
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._factors: _Factors = []
        for part in module.modules():
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
    if torch.is_autocast_enabled("cpu") and len(rows) >= _ROUNDED_FROM:
        return linear(inputs, layer.weight, layer.bias)
    outputs: Tensor = _DenseLayer.apply(rows.float(), layer.weight, layer, factors)  # type: ignore[no-untyped-call]
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
