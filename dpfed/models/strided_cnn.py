"""A small convolutional network without biases, for masks and for CPUs."""

from __future__ import annotations

from torch import nn

from dpfed.errors import ConfigError


def strided_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """5x5 convolutions of stride 2 to 16 and 32 channels, 64 hidden units, logits: 114,192 weights on 28x28x1.

    No biases, so that every entry is a weight a mask can choose. Raises ConfigError unless the input is
    [channels, height, width].
    """
    if len(input_shape) != 3:
        raise ConfigError(
            f"input_shape={input_shape}: a convolutional network needs [channels, height, width]. Use the model 'mlp'."
        )
    channels, height, width = input_shape
    features = 32 * (-(-height // 4)) * (-(-width // 4))
    return nn.Sequential(
        nn.Conv2d(channels, 16, 5, stride=2, padding=2, bias=False),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, stride=2, padding=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, 64, bias=False),
        nn.ReLU(),
        nn.Linear(64, classes, bias=False),
    )
