"""Recurrent network that predicts the next character of Shakespeare's plays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

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
