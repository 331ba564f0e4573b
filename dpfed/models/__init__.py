"""The networks of the papers, as functions of one flat weight vector."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from dpfed.errors import ConfigError
from dpfed.models.batch_norm_cnn import cnn_4_bn, cnn_8_bn
from dpfed.models.conv4 import conv4
from dpfed.models.fed_smp_cnn import fed_smp_cnn, unpadded_fed_smp_cnn
from dpfed.models.flat import Block, FlatModel
from dpfed.models.mlp import mlp
from dpfed.models.strided_cnn import strided_cnn

__all__ = ["MODELS", "Block", "FlatModel", "build"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "conv-4": conv4,
    "strided-cnn": strided_cnn,
    "fed-smp-cnn": fed_smp_cnn,
    "fed-smp-cnn-unpadded": unpadded_fed_smp_cnn,
    "cnn-4-bn": cnn_4_bn,
    "cnn-8-bn": cnn_8_bn,
}
"""Name -> function (input_shape, classes, **options) that makes the module."""


def build(name: str, input_shape: tuple[int, ...], classes: int, **options: Any) -> FlatModel:
    """The model `name` for samples of `input_shape` in `classes` classes.

    options: the model's own (`mlp`: hidden=(32,)). Raises ConfigError for an unknown name or option.
    """
    if name not in MODELS:
        nearest = difflib.get_close_matches(name, MODELS, n=1, cutoff=0)[0]
        raise ConfigError(f"model={name!r}: known models are {', '.join(sorted(MODELS))}. Did you mean {nearest!r}?")
    maker = MODELS[name]
    allowed = [key for key in inspect.signature(maker).parameters if key not in ("input_shape", "classes")]
    for option in options:
        if option not in allowed:
            raise ConfigError(
                f"{option}={options[option]!r}: model {name!r} takes {', '.join(allowed) or 'no options'}. Remove it."
            )
    return FlatModel(partial(maker, input_shape, classes, **options))
