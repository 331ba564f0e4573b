"""The networks of the papers, as functions of one flat weight vector."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpfed.config.own_code import words_of
from dpfed.errors import ConfigError, DpfedError
from dpfed.models.batch_norm_cnn import cnn_4_bn, cnn_8_bn
from dpfed.models.char_lstm import char_lstm
from dpfed.models.conv_n import conv4, conv6, conv10
from dpfed.models.fed_smp_cnn import fed_smp_cnn, fed_smp_svhn_cnn, unpadded_fed_smp_cnn
from dpfed.models.flat import Block, FlatModel
from dpfed.models.mlp import fedscalar_mlp, mlp
from dpfed.models.strided_cnn import strided_cnn

__all__ = ["MODELS", "Block", "FlatModel", "build", "build_own", "register"]

MOST_PARAMETERS = 2**30
"""Of a network that comes with dpfed: 4 GB."""

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

    options: the model's own (`mlp`: hidden=(32,)). Raises ConfigError for an unknown name or option, and for
    a shape or a number of classes that is not made of whole numbers from 1.
    """
    check_name(name)
    if not all(isinstance(side, int) and side >= 1 for side in (*input_shape, classes)):
        raise ConfigError(
            f"samples of shape {tuple(input_shape)} in {classes} classes: must be whole numbers from 1. Check the data."
        )
    maker = (MODELS | _own)[name]
    made = partial(_made, name, partial(maker, input_shape, classes, **options))
    allowed = [key for key in inspect.signature(maker).parameters if key not in ("input_shape", "classes")]
    for option in options:
        if option not in allowed:
            raise ConfigError(
                f"{option}={options[option]!r}: model {name!r} takes {', '.join(allowed) or 'no options'}. Remove it."
            )
    if name in MODELS:
        _check_size(name, made)
    return _flat(name, made)


def build_own(name: str, maker: Callable[..., nn.Module], input_shape: tuple[int, ...], classes: int) -> FlatModel:
    """The model that a maker of one's own makes, registered or not; ConfigError where there is none."""
    return _flat(name, partial(_made, name, partial(maker, input_shape, classes)))


def _flat(name: str, made: Callable[[], nn.Module]) -> FlatModel:
    try:
        return FlatModel(made)
    except DpfedError:
        raise
    except Exception as error:
        raise ConfigError(f"model={name!r}: is no network that can be trained: {words_of(error)}.") from error


def check_outputs(name: str, model: FlatModel, inputs: Tensor, classes: int) -> None:
    """ConfigError unless the network makes logits [n, classes] of `inputs` [n, ...], which are public."""
    try:
        logits = model.try_on(inputs)
    except Exception as error:
        raise ConfigError(
            f"model={name!r}: fails on {len(inputs)} test samples, {tuple(inputs.shape)}: {words_of(error)}."
        ) from error
    form = f"{logits.dtype} of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
    if not (isinstance(logits, Tensor) and logits.is_floating_point() and logits.shape == (len(inputs), classes)):
        raise ConfigError(
            f"model={name!r}: gives {form} for {len(inputs)} samples; must give logits, floating, "
            f"[{len(inputs)}, {classes}]: one for each class."
        )


def _made(name: str, maker: Callable[[], nn.Module]) -> nn.Module:
    """What the maker makes; ConfigError where it raises, or makes something else."""
    try:
        module = maker()
    except DpfedError:
        raise
    except Exception as error:
        raise ConfigError(f"model={name!r}: cannot be made: {words_of(error)}.") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model={name!r}: its maker gives {type(module).__name__}, not a torch.nn.Module.")
    return module


def _check_size(name: str, made: Callable[[], nn.Module]) -> None:
    """ConfigError for a network of ours with too many weights, before there is memory for any."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        size = sum(parameter.numel() for parameter in made().parameters())
    if size > MOST_PARAMETERS:
        raise ConfigError(
            f"model={name!r}: {size:,} parameters for these inputs and classes; at most {MOST_PARAMETERS:,}. Choose a "
            "smaller model.hidden."
        )
