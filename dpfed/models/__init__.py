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
from dpfed.models.char_lstm import char_lstm
from dpfed.models.conv_n import conv4, conv6, conv10
from dpfed.models.fed_smp_cnn import fed_smp_cnn, fed_smp_svhn_cnn, unpadded_fed_smp_cnn
from dpfed.models.flat import Block, FlatModel
from dpfed.models.mlp import fedscalar_mlp, mlp
from dpfed.models.strided_cnn import strided_cnn

__all__ = ["MODELS", "Block", "FlatModel", "build", "register"]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "fedscalar-mlp": fedscalar_mlp,
    "conv-4": conv4,
    "conv-6": conv6,
    "conv-10": conv10,
    "strided-cnn": strided_cnn,
    "fed-smp-cnn": fed_smp_cnn,
    "fed-smp-cnn-unpadded": unpadded_fed_smp_cnn,
    "fed-smp-svhn-cnn": fed_smp_svhn_cnn,
    "cnn-4-bn": cnn_4_bn,
    "cnn-8-bn": cnn_8_bn,
    "char-lstm": char_lstm,
}
"""Name -> function (input_shape, classes, **options) that makes the module."""

_own: dict[str, Callable[..., nn.Module]] = {}


def register(name: str, maker: Callable[..., nn.Module]) -> None:
    """Make a network of one's own known as model.name in this process; a second one of the name replaces the first.

    maker: function (input_shape, classes, **options) that makes the module with fresh random weights, with inputs
    float32 [b, *input_shape] and logits [b, classes]; `FlatModel` says which modules it cannot be. Raises ConfigError
    for the name of a network that comes with dpfed.
    """
    if name in MODELS:
        raise ConfigError(f"model={name!r}: is the name of a model that is there already. Choose another.")
    _own[name] = maker


def check_name(name: str) -> None:
    """ConfigError with the nearest name unless there is such a network."""
    known = MODELS | _own
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
        raise ConfigError(f"model={name!r}: known models are {', '.join(sorted(known))}. Did you mean {nearest!r}?")


def build(name: str, input_shape: tuple[int, ...], classes: int, **options: Any) -> FlatModel:
    """The model `name` for samples of `input_shape` in `classes` classes.

    options: the model's own (`mlp`: hidden=(32,)). Raises ConfigError for an unknown name or option.
    """
    check_name(name)
    maker = (MODELS | _own)[name]
    allowed = [key for key in inspect.signature(maker).parameters if key not in ("input_shape", "classes")]
    for option in options:
        if option not in allowed:
            raise ConfigError(
                f"{option}={options[option]!r}: model {name!r} takes {', '.join(allowed) or 'no options'}. Remove it."
            )
    return FlatModel(partial(maker, input_shape, classes, **options))
