"""The networks of the papers, as functions of one flat weight vector."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from dpfed.config import own_code
from dpfed.config.own_code import errors_of_user_code
from dpfed.data.dataset import Part
from dpfed.errors import CUSTOM, ConfigError, require_name
from dpfed.models import networks
from dpfed.models.flat import Block, FlatModel
from dpfed.models.networks import char_lstm

__all__ = ["MODELS", "Block", "FlatModel", "build", "build_own", "register"]

MOST_PARAMETERS = 2**30
"""Largest number of parameters of a built-in network: 4 GB."""

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": networks.mlp,
    # "3 layers, each containing 3 neurons": 259 parameters on the digits. The paper counts 233 on 64 inputs, which no
    # reading of its text gives: 64-3-3-3-10 has 240 without biases; 64-3-3-10 has 247.
    "fedscalar-mlp": partial(networks.mlp, hidden=(3, 3, 3)),
    # 1,933,258 parameters on 28x28x1 in 10 classes, 1,942,767 in EMNIST's 47
    "conv-4": partial(networks.convolution_pairs, widths=(64, 128)),
    # 2,262,602 parameters on 32x32x3 in 10 classes (FedPM, CIFAR-10)
    "conv-6": partial(networks.convolution_pairs, widths=(64, 128, 256)),
    # 19,197,092 parameters on 32x32x3 in 100 classes (CIFAR-100)
    "conv-10": partial(networks.convolution_pairs, widths=(64, 128, 256, 512, 1024)),
    "strided-cnn": networks.strided_cnn,
    # Network for Fashion-MNIST of McMahan et al. (2017): 1,663,370 parameters on 28x28x1 images in 10 classes
    "fed-smp-cnn": partial(networks.two_layer_cnn, channels=(32, 64), hidden=(512,), padding=2),
    # Without padding, as common benchmarks use it: 582,026 parameters on 28x28x1
    "fed-smp-cnn-unpadded": partial(networks.two_layer_cnn, channels=(32, 64), hidden=(512,), padding=0),
    # 3,431,754 parameters on 32x32x3 images in 10 classes, "about 3.4 million". The paper states no padding; with
    # padding 2 a dense upload of 180 rounds has exactly the 41.18 MB of its table II.
    "fed-smp-svhn-cnn": partial(networks.two_layer_cnn, channels=(64, 128), hidden=(384, 192), padding=2),
    # 390,880 parameters on 28x28x1 and 399,136 on 32x32x3, and 960 running statistics
    "cnn-4-bn": partial(networks.batch_norm_cnn, stages=((32,), (64,), (128,), (256,))),
    # 1,183,456 parameters on 32x32x3 in 10 classes, and 1,920 running statistics
    "cnn-8-bn": partial(networks.batch_norm_cnn, stages=((32, 32), (64, 64), (128, 128), (256, 256))),
    "char-lstm": char_lstm,
}
"""Function (input_shape, classes, **options) that makes the module, by the network's name."""


def register(name: str, maker: Callable[..., nn.Module]) -> None:
    """Register a custom network as model.name in this process.

    maker: function (input_shape, classes, **options) that makes the module with fresh random weights. Inputs are
    float32 [b, *input_shape], or int64 if the data have integers and the module accepts them. Outputs are logits
    [b, classes], or [b, classes, ...] if a sample has several labels. If targets are not classes, `classes` is the
    number of values in a target, and outputs are of the form that the loss accepts. `FlatModel` lists the modules
    that it refuses. Raises ConfigError for the name of a built-in network, or a name that another line of code has
    registered.
    """
    if not callable(maker):
        raise ConfigError(f"model {name!r}: is {type(maker).__name__}; must be a function that makes a module.")
    own_code.register_object("model", name, maker, taken=MODELS)


def check_name(name: str) -> None:
    """Raise ConfigError with the nearest known name if there is no such network."""
    require_name(f"model={name!r}: known models are", name, sorted(_known_models()), CUSTOM)


def build(
    name: str,
    input_shape: tuple[int, ...],
    classes: int,
    *,
    fixed_seed: int = 0,
    parts: Sequence[Part] = (),
    labels: tuple[int, ...] | None = None,
    **options: object,
) -> FlatModel:
    """Build the model `name` for samples of `input_shape` in `classes` classes.

    options: the model's own options (`mlp`: hidden=(32,)); fixed_seed: seed of parameters that are not trained; parts:
    parts of a sample, which the module takes as arguments by name; labels: shape of a sample's labels, None if targets
    are numbers. Raises ConfigError for an unknown name or option,
    and for a shape or a number of classes that is not made of whole numbers from 1.
    """
    check_name(name)
    if not all(isinstance(side, int) and side >= 1 for side in (*input_shape, classes)):
        raise ConfigError(
            f"samples of shape {tuple(input_shape)} in {classes} classes: must be whole numbers from 1. Check the data."
        )
    maker = _known_models()[name]
    made = partial(_make_module, name, partial(maker, input_shape, classes, **options))
    fixed = {"input_shape", "classes", *getattr(MODELS.get(name), "keywords", ())}
    allowed = [key for key in inspect.signature(maker).parameters if key not in fixed]
    for option in options:
        if option not in allowed:
            raise ConfigError(
                f"{option}={options[option]!r}: model {name!r} accepts {', '.join(allowed) or 'no options'}. Remove it."
            )
    if name in MODELS:
        _check_size(name, made)
        return _flat_model(name, partial(networks.with_named_inputs, made, parts), fixed_seed)
    return _flat_model(name, partial(_custom_module, made, parts, classes, labels), fixed_seed)


def build_own(
    name: str,
    maker: Callable[..., nn.Module],
    input_shape: tuple[int, ...],
    classes: int,
    *,
    fixed_seed: int = 0,
    parts: Sequence[Part] = (),
    labels: tuple[int, ...] | None = None,
) -> FlatModel:
    """Return the model that a custom maker makes, registered or not; raise ConfigError if it makes none."""
    made = partial(_make_module, name, partial(maker, input_shape, classes))
    return _flat_model(name, partial(_custom_module, made, parts, classes, labels), fixed_seed)


def _flat_model(name: str, made: Callable[[], nn.Module], fixed_seed: int) -> FlatModel:
    with errors_of_user_code(f"model={name!r}: is no network that can be trained"):
        return FlatModel(made, seed=fixed_seed)


def _custom_module(
    made: Callable[[], nn.Module], parts: Sequence[Part], classes: int, labels: tuple[int, ...] | None
) -> nn.Module:
    return networks.with_logits(networks.with_named_inputs(made, parts), None if labels is None else (classes, *labels))


def _known_models() -> dict[str, Callable[..., nn.Module]]:
    return {**MODELS, **own_code.objects_of_kind("model")}


def check_outputs(name: str, model: FlatModel, inputs: Tensor, form: tuple[int, ...] | None) -> Tensor:
    """Return the network's outputs for public `inputs` [n, ...]. Raise ConfigError unless they are floating, one row
    per sample, and logits of the given form (None: any)."""
    with errors_of_user_code(f"model={name!r}: fails on {len(inputs)} test samples, {tuple(inputs.shape)}"):
        outputs = model.evaluate_as_made(inputs)
    found = type(outputs).__name__
    if isinstance(outputs, Tensor):
        floats = outputs.is_floating_point() and outputs.dim() > 0
        if floats and outputs.shape == (len(inputs), *(form or outputs.shape[1:])):
            return outputs
        found = f"{outputs.dtype} of shape {tuple(outputs.shape)}"
    wanted = "one row per sample" if form is None else f"logits, floating, {[len(inputs), *form]}: one for each class"
    raise ConfigError(f"model={name!r}: gives {found} for {len(inputs)} samples; must give {wanted}.")


def _make_module(name: str, maker: Callable[[], nn.Module]) -> nn.Module:
    """Return the maker's module; raise ConfigError if the maker raises, or returns no module."""
    with errors_of_user_code(f"model={name!r}: cannot be made"):
        module = maker()
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model={name!r}: its maker gives {type(module).__name__}, not a torch.nn.Module.")
    return _unwrapped(name, module)


def _unwrapped(name: str, module: nn.Module) -> nn.Module:
    """Return the network without wrappers that train on several devices or compile it, at any depth.

    Raises ConfigError for a scripted or traced part, whose calls cannot be separated by clients.
    """
    while True:
        inner = module.module if isinstance(module, _PARALLEL) else getattr(module, "_orig_mod", None)
        if not isinstance(inner, nn.Module):
            break
        module = inner
    if isinstance(module, torch.jit.ScriptModule):
        raise ConfigError(
            f"model={name!r}: {getattr(module, 'original_name', 'a part')} is a module of torch.jit, whose weights "
            "cannot be replaced by a client's. Give the module from which it was scripted or traced."
        )
    for child_name, child in list(module.named_children()):
        if (bare := _unwrapped(name, child)) is not child:
            setattr(module, child_name, bare)
    return module


def _check_size(name: str, made: Callable[[], nn.Module]) -> None:
    """Raise ConfigError for a built-in network with too many weights, before memory for them is allocated."""
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        size = sum(parameter.numel() for parameter in made().parameters())
    if size > MOST_PARAMETERS:
        raise ConfigError(
            f"model={name!r}: {size:,} parameters for these inputs and classes; at most {MOST_PARAMETERS:,}. Choose a "
            "smaller model.hidden."
        )
