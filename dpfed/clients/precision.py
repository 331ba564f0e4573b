"""In which numbers a client computes its gradients; weights, sums and everything after them are float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

Precision = Literal["float32", "bf16", "tf32"]


def forward_pass(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """For a forward pass, in this thread; the backward pass follows it by itself.

    bf16: matrix products and convolutions take inputs rounded to 8 significant bits, and add up in
    float32 (torch.autocast); weights, their gradients and the loss are float32.
    """
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)


@contextmanager
def matrix_products(precision: Precision, device: torch.device) -> Iterator[None]:
    """On a CUDA GPU: TF32, inputs of products rounded to 11 bits, exactly where it was asked for, and sums of bf16
    products in float32. Torch by itself takes TF32 in convolutions. Holds for the whole process; restored after."""
    if device.type != "cuda":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    before = products.allow_tf32, convolutions.allow_tf32, products.allow_bf16_reduced_precision_reduction
    products.allow_tf32 = convolutions.allow_tf32 = precision == "tf32"
    products.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32, products.allow_bf16_reduced_precision_reduction = before
