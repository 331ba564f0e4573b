"""Convolutions of many clients, each with weights of its own, as one product of matrices over all clients.

Torch runs a convolution under vmap as a grouped convolution, which cuDNN computes client by client. Here the windows of
all images are copied side by side, and one batched product multiplies them by the weights, so that the number of
operators does not depend on the number of clients. Channels are the innermost dimension, so that a copied run of
numbers is long, and no output is copied again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

Sides = tuple[int, int]


def convolve_by_windows(args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor | None:
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
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing: the derivative is that of `_OfClients`."""

    @staticmethod
    def vmap(
        info: Any, in_dims: Sequence[int], images: Tensor, weights: Tensor, stride: Sides, dilation: Sides
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
