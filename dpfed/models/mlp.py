"""The multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from dpfed.errors import ConfigError


def mlp(input_shape: tuple[int, ...], classes: int, *, hidden: Sequence[int] = (32,)) -> nn.Module:
    """Flatten, then linear layers with ReLU between: 64-32-10 on the 8x8 digits has 2,410 parameters.

    hidden: widths of the hidden layers; empty is multinomial logistic regression. Raises ConfigError.
    """
    if any(width < 1 for width in hidden):
        raise ConfigError(f"hidden={list(hidden)}: every layer of an mlp needs at least one unit. Raise the width.")
    widths = [math.prod(input_shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for entering, leaving in pairwise(widths):
        layers += [nn.Linear(entering, leaving), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def fedscalar_mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """FedScalar's network on the digits, "3 layers, each containing 3 neurons", ReLU between: 259 parameters on 64.

    The paper counts 233, which no reading of its words gives: 64-3-3-3-10 has 259 parameters, 240 without biases;
    64-3-3-10 has 247.
    """
    return mlp(input_shape, classes, hidden=(3, 3, 3))
