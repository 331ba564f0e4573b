"""CONV-4, -6 and -10: the plain convolutional networks that FedPM trains."""

from __future__ import annotations

from torch import nn

from dpfed.errors import ConfigError


def conv4(input_shape: tuple[int, ...], classes: int, *, bias: bool = True) -> nn.Module:
    """Pairs of 3x3 convolutions to 64 and 128 channels, each pair pooled, then 256, 256 and logits.

    1,933,258 parameters on 28x28x1 in 10 classes, 1,942,767 in EMNIST's 47 (Frankle, Carbin 2019; Isik et al. 2023,
    table 2). Convolutions are padded, after each and each hidden layer ReLU, pooling is 2x2 maxima. Raises ConfigError
    unless the input is [channels, height, width] and survives the poolings.
    """
    return _pairs(input_shape, classes, (64, 128), bias)


def conv6(input_shape: tuple[int, ...], classes: int, *, bias: bool = True) -> nn.Module:
    """`conv4` with a third pair, to 256 channels: 2,262,602 parameters on 32x32x3 in 10 classes (FedPM, CIFAR-10)."""
    return _pairs(input_shape, classes, (64, 128, 256), bias)


def conv10(input_shape: tuple[int, ...], classes: int, *, bias: bool = True) -> nn.Module:
    """`conv4` with pairs to 256, 512 and 1,024 channels: 19,197,092 parameters on 32x32x3 in 100 (FedPM, CIFAR-100)."""
    return _pairs(input_shape, classes, (64, 128, 256, 512, 1024), bias)


def _pairs(input_shape: tuple[int, ...], classes: int, widths: tuple[int, ...], bias: bool) -> nn.Module:
    least = 2 ** len(widths)
    if len(input_shape) != 3 or min(input_shape[1:]) < least:
        raise ConfigError(
            f"input_shape={input_shape}: CONV-{2 * len(widths)} needs [channels, height, width] of at least "
            f"{least} x {least}. Use a shallower one, or 'mlp'."
        )
    entering, height, width = input_shape
    layers: list[nn.Module] = []
    for leaving in widths:
        for channels in (entering, leaving):
            layers += [nn.Conv2d(channels, leaving, 3, padding=1, bias=bias), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        entering = leaving
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(entering * (height // least) * (width // least), 256, bias=bias),
        nn.ReLU(),
        nn.Linear(256, 256, bias=bias),
        nn.ReLU(),
        nn.Linear(256, classes, bias=bias),
    )
