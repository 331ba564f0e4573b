"""TF32 on CUDA GPUs: inputs of matrix products are rounded to 11 bits if and only if TF32 is requested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def _tf32_switches() -> list[tuple[object, str, object, object]]:
    """Return (object, attribute, value with TF32, value without) for products, convolutions and recurrent layers.

    Torch since 2.9 has one switch for each kind of operation. Reading an older switch raises RuntimeError as soon as a
    process has set one of the new ones.
    """
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        return [(one, "fp32_precision", "tf32", "ieee") for one in (products, cudnn.conv, cudnn.rnn)]
    return [(one, "allow_tf32", True, False) for one in (products, cudnn)]


@contextmanager
def tf32(wanted: bool, device: torch.device) -> Iterator[None]:
    """Use TF32 in products, convolutions and recurrent layers if `wanted`, else float32; sum bf16 products in float32.

    Torch uses TF32 in convolutions by default. Devices other than CUDA GPUs are unchanged. Holds for the whole process;
    the user's settings are restored at the end.
    """
    if device.type != "cuda":
        yield
        return
    switches, products = _tf32_switches(), torch.backends.cuda.matmul
    before = [getattr(one, name) for one, name, *_ in switches]
    reduced = products.allow_bf16_reduced_precision_reduction
    for one, name, on, off in switches:
        setattr(one, name, on if wanted else off)
    products.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        for (one, name, *_), value in zip(switches, before, strict=True):
            setattr(one, name, value)
        products.allow_bf16_reduced_precision_reduction = reduced
