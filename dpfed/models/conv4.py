"""CONV-4, the four-convolution network of the lottery-ticket papers that FedPM trains on MNIST."""

from __future__ import annotations

from torch import nn

from dpfed.errors import ConfigError


def conv4(input_shape: tuple[int, ...], classes: int, *, bias: bool = True) -> nn.Module:
    """3x3 convolutions 64, 64, pool, 128, 128, pool, then 256, 256 and logits; 1,933,258 parameters on 28x28x1.

    (Frankle, Carbin 2019; Isik et al. 2023.) Raises ConfigError unless the input is [channels, height, width].
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ConfigError(f"input_shape={input_shape}: CONV-4 needs [channels, height, width] of at least 4 x 4.")
    channels, height, width = input_shape

    def pair(entering: int, leaving: int) -> list[nn.Module]:
        return [
            nn.Conv2d(entering, leaving, 3, padding=1, bias=bias),
            nn.ReLU(),
            nn.Conv2d(leaving, leaving, 3, padding=1, bias=bias),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]

    return nn.Sequential(
        *pair(channels, 64),
        *pair(64, 128),
        nn.Flatten(),
        nn.Linear(128 * (height // 4) * (width // 4), 256, bias=bias),
        nn.ReLU(),
        nn.Linear(256, 256, bias=bias),
        nn.ReLU(),
        nn.Linear(256, classes, bias=bias),
    )
