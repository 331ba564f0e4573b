"""The convolutional networks of Fed-SMP: 5x5 convolutions, each followed by ReLU and 2x2 max-pooling, then dense."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from dpfed.errors import ConfigError


def fed_smp_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The one for Fashion-MNIST, of McMahan et al. (2017): 1,663,370 parameters on 28x28x1 images in 10 classes.

    5x5 convolution to 32 channels with padding 2, ReLU, 2x2 max-pooling; the same to 64; 512 hidden units;
    logits. Raises ConfigError unless the input is [channels, height, width] and survives both poolings.
    """
    return _cnn(input_shape, classes, channels=(32, 64), hidden=(512,), padding=2)


def unpadded_fed_smp_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same network without padding, as common benchmarks have it: 582,026 parameters on 28x28x1."""
    return _cnn(input_shape, classes, channels=(32, 64), hidden=(512,), padding=0)


def fed_smp_svhn_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The one for SVHN: 3,431,754 parameters on 32x32x3 images in 10 classes, "about 3.4 million".

    5x5 convolutions to 64 and 128 channels, 384 and 192 hidden units. The paper states no padding; with padding 2 a
    dense upload of 180 rounds costs the 41.18 MB of its table II to the last digit.
    """
    return _cnn(input_shape, classes, channels=(64, 128), hidden=(384, 192), padding=2)


def _cnn(
    input_shape: tuple[int, ...], classes: int, *, channels: Sequence[int], hidden: Sequence[int], padding: int
) -> nn.Module:
    if len(input_shape) != 3:
        raise ConfigError(
            f"input_shape={input_shape}: a convolutional network needs [channels, height, width]. Use the model 'mlp'."
        )
    first, *sides = input_shape
    pooled = [_pooled(_pooled(side, padding), padding) for side in sides]
    if min(pooled) < 1:
        raise ConfigError(
            f"input_shape={input_shape}: too small, nothing is left after two 5x5 convolutions "
            f"(padding {padding}) and two poolings. Use the model 'mlp'."
        )
    layers: list[nn.Module] = []
    for entering, leaving in pairwise((first, *channels)):
        layers += [nn.Conv2d(entering, leaving, 5, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for entering, leaving in pairwise((channels[-1] * pooled[0] * pooled[1], *hidden)):
        layers += [nn.Linear(entering, leaving), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], classes))


def _pooled(side: int, padding: int) -> int:
    return (side + 2 * padding - 4) // 2
