"""Networks of the papers (convolutional and recurrent networks, perceptrons), and networks with named inputs.

Fed-SMP's networks: 5x5 convolutions, each followed by ReLU and 2x2 max-pooling, then dense layers. FedMRN's: BatchNorm
after every convolution, and no biases, so every weight is masked. CONV-4, -6 and -10: the networks without BatchNorm
that FedPM trains. `strided_cnn`: a small network without biases, for masks and for CPUs.

Networks with named inputs and outputs, such as those of transformers: hooks that convert rows of numbers to their
inputs, and return the logits of their outputs.

The recurrent network predicts the next character of Shakespeare's plays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from dpfed.data.dataset import Part
from dpfed.errors import ConfigError

_EMBEDDING = 8


def char_lstm(input_shape: tuple[int, ...], classes: int, *, hidden: Sequence[int] = (256, 256)) -> nn.Module:
    """Return the network: embedding to 8 numbers, LSTM layers, logits from the last state; 819,920 parameters.

    inputs are numbers 0 .. classes-1 of letters, [80]; hidden: units of the layers; the count is for 80 letters and two
    layers of 256. The network of LEAF (Caldas et al. 2018) and FedMRN has 817,872 parameters. Here, as in
    torch.nn.LSTM, each layer has two biases, of which only the sum has an effect, hence 2 · 4 · 256 more. Fed-SMP's
    bytes (46.02 MB, table III) fit this network in torch with the 90 letters of Reddi et al. (2021): 822,570. Raises
    ConfigError.
    """
    if len(input_shape) != 1:
        raise ConfigError(f"input_shape={input_shape}: char-lstm needs texts, numbers of letters [length].")
    if not hidden or min(hidden) < 1:
        raise ConfigError(f"hidden={list(hidden)}: char-lstm needs layers of at least one unit. Change model.hidden.")
    return CharLstm(classes, hidden)


class CharLstm(nn.Module):
    """Network from letters [b, length] to logits [b, letters]."""

    def __init__(self, letters: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(letters, _EMBEDDING)
        self.layers = nn.Sequential(*(LstmLayer(*widths) for widths in pairwise((_EMBEDDING, *hidden))))
        self.logits = nn.Linear(hidden[-1], letters)

    def forward(self, inputs: Tensor) -> Tensor:
        states = self.layers(self.embedding(inputs.long()))
        logits: Tensor = self.logits(states[:, -1])
        return logits


class LstmLayer(nn.Module):
    """LSTM layer of torch.nn.LSTM, batch first, from states 0 (Hochreiter, Schmidhuber 1997).

        i, f, g, o = input(x_t) + recurrent(h);   c = sigmoid(f) c + sigmoid(i) tanh(g);   h = sigmoid(o) tanh(c)

    stepwise: True: compute step by step with two linear layers, which vmap and Opacus support; False: use torch's fused
    kernel, which is about three times as fast on a CPU.
    """

    def __init__(self, entering: int, units: int) -> None:
        super().__init__()
        self.input = nn.Linear(entering, 4 * units)
        self.recurrent = nn.Linear(units, 4 * units)
        self.units = units
        self.stepwise = False
        bound = 1 / math.sqrt(units)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return states [b, length, units] of inputs [b, length, entering]."""
        return self._run_by_steps(inputs) if self.stepwise else self._run_fused(inputs)

    def _run_fused(self, inputs: Tensor) -> Tensor:
        start = inputs.new_zeros(1, len(inputs), self.units)
        weights = [self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias]
        states: Tensor = torch.lstm(
            inputs,
            (start, start),
            weights,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=torch.is_grad_enabled(),
            bidirectional=False,
            batch_first=True,
        )[0]
        return states

    def _run_by_steps(self, inputs: Tensor) -> Tensor:
        state = memory = inputs.new_zeros(len(inputs), self.units)
        states: list[Tensor] = []
        for entered in self.input(inputs).unbind(1):
            i, f, g, o = (entered + self.recurrent(state)).chunk(4, dim=1)
            memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
            state = o.sigmoid() * memory.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


def make_stepwise(module: nn.Module) -> nn.Module:
    """Return the module itself, with its LSTM layers set to compute step by step."""
    for part in module.modules():
        if isinstance(part, LstmLayer):
            part.stepwise = True
    return module


_POOLINGS = 4
_WEIGHT_STD = 0.01  # equal to the size of the noise that masks select from


def two_layer_cnn(
    input_shape: tuple[int, ...], classes: int, *, channels: Sequence[int], hidden: Sequence[int], padding: int
) -> nn.Module:
    """Build two 5x5 convolutions, each with ReLU and 2x2 max-pooling; hidden layers with ReLU; logits.

    Raises ConfigError unless the input is [channels, height, width] and large enough for both poolings.
    """
    first, *sides = _require_image(input_shape)
    pooled = [_pooled_side(_pooled_side(side, padding), padding) for side in sides]
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


def _pooled_side(side: int, padding: int) -> int:
    return (side + 2 * padding - 4) // 2


def batch_norm_cnn(input_shape: tuple[int, ...], classes: int, *, stages: Sequence[tuple[int, ...]]) -> nn.Module:
    """Build 3x3 convolutions with BatchNorm and ReLU, pooled (2x2 maxima) after each stage; then logits.

    Li et al., FedMRN, name the layers; widths and initial weights N(0, 0.01^2) are those of the authors' code. Raises
    ConfigError for images below 16x16.
    """
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


def convolution_pairs(
    input_shape: tuple[int, ...], classes: int, *, widths: tuple[int, ...], bias: bool = True
) -> nn.Module:
    """Build pairs of 3x3 convolutions to these channels, each pair pooled, then 256, 256 hidden units and logits.

    Convolutions are padded; ReLU follows each convolution and hidden layer; pooling takes 2x2 maxima (Frankle, Carbin
    2019; Isik et al. 2023, table 2). Raises ConfigError unless the input is [channels, height, width] and large enough
    for the poolings.
    """
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


def mlp(input_shape: tuple[int, ...], classes: int, *, hidden: Sequence[int] = (32,)) -> nn.Module:
    """Build linear layers with ReLU between, on flattened inputs: 64-32-10 on the 8x8 digits has 2,410 parameters.

    hidden: widths of the hidden layers; without any it is multinomial logistic regression. Raises ConfigError.
    """
    if any(width < 1 for width in hidden):
        raise ConfigError(f"hidden={list(hidden)}: every layer of an mlp needs at least one unit. Raise the width.")
    widths = [math.prod(input_shape), *hidden, classes]
    layers: list[nn.Module] = [nn.Flatten()]
    for entering, leaving in pairwise(widths):
        layers += [nn.Linear(entering, leaving), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def strided_cnn(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build 5x5 convolutions of stride 2 to 16 and 32 channels, 64 hidden units, logits: 114,192 weights on 28x28x1.

    It has no biases, so that every entry is a weight that a mask can select. Raises ConfigError unless the input is
    [channels, height, width].
    """
    channels, height, width = _require_image(input_shape)
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


def _require_image(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(input_shape) != 3:
        raise ConfigError(
            f"input_shape={input_shape}: a convolutional network needs [channels, height, width]. Use the model 'mlp'."
        )
    return input_shape


@dataclass(frozen=True)
class NamedInputs:
    """Forward pre-hook: a batch [b, numbers of a sample] becomes the keyword arguments of the module."""

    parts: tuple[Part, ...]

    def __call__(self, module: nn.Module, args: tuple[Tensor], kwargs: object) -> tuple[tuple[()], dict[str, Tensor]]:
        (rows,) = args
        sides = torch.split(rows, [math.prod(part.shape) for part in self.parts], dim=-1)
        named = {
            part.name: side.reshape(*rows.shape[:-1], *part.shape) for part, side in zip(self.parts, sides, strict=True)
        }
        return (), {part.name: named[part.name].long() if part.integers else named[part.name] for part in self.parts}


@dataclass(frozen=True)
class Logits:
    """Forward hook that returns the logits among a network's outputs, with classes as dimension 1.

    Outputs may be a tensor, a dictionary with the key "logits" or "out", or an object with the attribute `logits`.
    Logits [b, ..., classes] are turned to [b, classes, ...] if only that form fits the labels, or if both fit and the
    outputs are such an object, since transformers have classes last.

    form: (classes, *shape of a sample's labels); None if targets are numbers
    """

    form: tuple[int, ...] | None

    def __call__(self, module: nn.Module, args: object, outputs: object) -> object:
        found = outputs
        if isinstance(outputs, Mapping):
            found = outputs.get("logits", outputs.get("out"))
        elif not isinstance(outputs, Tensor):
            found = getattr(outputs, "logits", None)
        if not isinstance(found, Tensor):
            return outputs
        if self.form is None or found.dim() != len(self.form) + 1 or found.dim() < 3:
            return found
        shape, last = tuple(found.shape[1:]), (*self.form[1:], self.form[0])
        turned = shape == last and (shape != self.form or found is not outputs)
        return found.movedim(-1, 1) if turned else found


def with_logits(module: nn.Module, form: tuple[int, ...] | None) -> nn.Module:
    """Return the module itself with the hook `Logits`, added once."""
    if not any(isinstance(hook, Logits) for hook in module._forward_hooks.values()):
        module.register_forward_hook(Logits(form))
    return module


def with_named_inputs(made: Callable[[], nn.Module], parts: Sequence[Part]) -> nn.Module:
    """Return the module of `made` with a hook that gives it its inputs by name, added once."""
    module = made()
    hooks = module._forward_pre_hooks.values()
    if parts and not any(isinstance(hook, NamedInputs) for hook in hooks):
        module.register_forward_pre_hook(NamedInputs(tuple(parts)), with_kwargs=True)
    return module
