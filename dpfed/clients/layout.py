"""How images lie in memory on a CPU, while clients train and while a model is evaluated."""

from __future__ import annotations

import torch
from torch import Tensor

from dpfed.models.flat import FlatModel


def takes_channels_last(model: FlatModel, inputs: Tensor) -> bool:
    """Whether batches of `inputs` [N, ...] may be given with the channels as the innermost dimension in memory.

    Torch's pooling on a CPU is some fifteen times as fast then (measured: benchmarks/README.md). Only images, and only
    where a forward pass gives the same so: a module that calls .view on an image instead of .reshape cannot.
    """
    if inputs.dim() != 4 or inputs.device.type != "cpu" or len(inputs) < 2:
        return False
    some, weights = inputs[:2], model.initial(0)
    try:
        with torch.no_grad():
            as_it_is = model.bind(weights.clone()).eval()(some)
            turned = model.bind(weights).eval()(some.clone(memory_format=torch.channels_last))
    except (RuntimeError, ValueError):  # also BatchNorm that has one value a channel
        return False
    return torch.allclose(as_it_is, turned, rtol=1e-3, atol=1e-5)
