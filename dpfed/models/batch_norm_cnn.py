"""The convolutional networks of FedMRN: BatchNorm after every convolution, and no biases, so every weight is masked."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from dpfed.errors import ConfigError

_POOLINGS = 4
_WEIGHT_STD = 0.01  # of the same size as the noise that masks choose from


def cnn_4_bn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """3x3 convolutions 32, 64, 128, 256, each with BatchNorm, ReLU and 2x2 max-pooling; logits.

    390,880 parameters on 28x28x1 and 399,136 on 32x32x3, and 960 running statistics (Li et al., FedMRN, who name the
    layers; widths and initial weights N(0, 0.01^2) as in the authors' code). Raises ConfigError for images below 16x16.
    """
    return _cnn(input_shape, classes, [(32,), (64,), (128,), (256,)])


def cnn_8_bn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """3x3 convolutions 32, 32, 64, 64, 128, 128, 256, 256, each with BatchNorm and ReLU, pooled after pairs; logits.

    1,183,456 parameters on 32x32x3 in 10 classes, and 1,920 running statistics; see `cnn_4_bn`.
    """
    return _cnn(input_shape, classes, [(32, 32), (64, 64), (128, 128), (256, 256)])


def _cnn(input_shape: tuple[int, ...], classes: int, stages: list[tuple[int, ...]]) -> nn.Module:
    if len(input_shape) != 3 or min(input_shape[1:]) < 2**_POOLINGS:
        raise ConfigError(
            f"input_shape={input_shape}: four poolings need [channels, height, width] of at least 16 x 16. Use 'mlp' "
            "or 'fed-smp-cnn'."
        )
    channels, height, width = input_shape
    layers: list[nn.Module] = []
    for stage in stages:
        for entering, leaving in pairwise((channels, *stage)):
            convolution = nn.Conv2d(entering, leaving, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(leaving), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        channels = stage[-1]
    features = channels * (height // 2**_POOLINGS) * (width // 2**_POOLINGS)
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, classes, bias=False))
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.normal_(layer.weight, std=_WEIGHT_STD)
    return network
