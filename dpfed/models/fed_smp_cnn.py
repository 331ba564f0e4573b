"""The convolutional network of McMahan et al. (2017), as Fed-SMP uses it."""

from __future__ import annotations

from torch import nn

from dpfed.errors import ConfigError


def fed_smp_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's network: 1,663,370 parameters on 28x28x1 images in 10 classes.

    5x5 convolution to 32 channels with padding 2, ReLU, 2x2 max-pooling; the same to 64; 512 hidden units;
    logits. Raises ConfigError unless the input is [channels, height, width] and survives both poolings.
    """
    return _cnn(input_shape, classes, padding=2)


def unpadded_fed_smp_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The same network without padding, as common benchmarks have it: 582,026 parameters on 28x28x1."""
    return _cnn(input_shape, classes, padding=0)


def _cnn(input_shape: tuple[int, ...], classes: int, *, padding: int) -> nn.Module:
    if len(input_shape) != 3:
        raise ConfigError(
            f"input_shape={input_shape}: a convolutional network needs [channels, height, width]. Use the model 'mlp'."
        )
    channels, *sides = input_shape
    pooled = [_pooled(_pooled(side, padding), padding) for side in sides]
    if min(pooled) < 1:
        raise ConfigError(
            f"input_shape={input_shape}: too small, nothing is left after two 5x5 convolutions "
            f"(padding {padding}) and two poolings. Use the model 'mlp'."
        )
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * pooled[0] * pooled[1], 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


def _pooled(side: int, padding: int) -> int:
    return (side + 2 * padding - 4) // 2
