"""Network with fixed weights from a seed; a mask selects among them (FedPM, FedMask)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit, ndtri
from torch import Tensor

from dpfed.errors import ConfigError
from dpfed.models.flat import Block, FlatModel
from dpfed.seeds import Seeds

Constant = Literal["kaiming", "published", "even"]
Biases = Literal["masked", "absent"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenNetwork:
    """Weights +s or -s by the seed's random signs, s by the layer's fan-in; a mask in {0, 1}^n keeps some of them.

    s is the "kaiming" constant sqrt(2 / fan_in) of Isik et al. 2023 (FedPM), or the "published" constant e sqrt(1 /
    fan_in) of its code, 1.92 times as large. "even": one s for all layers, the geometric mean of their "kaiming"
    constants. It keeps the output scale of a network of ReLUs, and gives noise on a probability an equal size in every
    layer. A bias is +s or -s of its layer and masked like a weight, or "absent": zero and not sent. Scales and shifts
    of normalisation layers are 1 and 0, neither masked nor sent.

    constants: float32 [d], the weight of each coordinate if its mask is 1
    masked:    int64 [n], the coordinates that the mask covers; the others keep their constant
    initial:   float32 [n], the initial probabilities of training
    dice:      float64 [n], public uniforms from the seed: the mask of probabilities theta is 1[dice < theta]
    layers:    int64 [n], the block of the model's layout that each masked coordinate belongs to
    """

    model: FlatModel
    constants: Tensor
    masked: Tensor
    initial: Tensor
    dice: Tensor
    layers: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Length n of a mask."""
        return len(self.masked)

    def to(self, device: torch.device) -> FrozenNetwork:
        """Return this network on another device."""
        tensors = {name: getattr(self, name).to(device) for name in ("constants", "masked", "initial", "dice")}
        return replace(self, **tensors)

    def weights(self, mask: Tensor, out: Tensor | None = None) -> Tensor:
        """Return weights [..., d] under masks (or probabilities) [..., n]."""
        if self.size == self.model.size:
            return torch.mul(mask, self.constants, out=out)
        weights = self.constants.repeat(*mask.shape[:-1], 1) if out is None else out.copy_(self.constants)
        weights[..., self.masked] = mask * self.constants[self.masked]
        return weights

    def to_mask_gradient(self, gradient: Tensor) -> Tensor:
        """Return d loss / d mask [..., n] from d loss / d weights [..., d], which may be overwritten."""
        if self.size == self.model.size:
            return gradient.mul_(self.constants)
        return gradient[..., self.masked].mul_(self.constants[self.masked])


def freeze(
    model: FlatModel,
    seeds: Seeds,
    *,
    constant: Constant = "kaiming",
    biases: Biases = "masked",
    scale: float = 1.0,
    spread: float = 1.0,
) -> FrozenNetwork:
    """Return the frozen network of a seed, its constants times `scale`.

    Initial scores are N(0, spread^2), and initial probabilities their sigmoid.

    All values are computed from integer hashes, not from a library's generator: equal on any machine and version.
    Raises ConfigError, also for a network with BatchNorm: its running statistics could not be computed from masks.
    """
    if model.has_statistics:
        raise ConfigError(
            "model: has BatchNorm; with frozen weights only the mask is sent, so the server would not receive "
            "its running statistics. Use GroupNorm, or a model without normalisation."
        )
    if constant not in get_args(Constant) or biases not in get_args(Biases):
        raise ConfigError(f"mask.constant={constant!r}, mask.biases={biases!r}: unknown; see `dpfed run --help`.")
    signs = _random_integers(seeds, "frozen.signs", model.size) >> np.uint64(63)
    scales = _scales(model, constant)
    constants = np.where(signs == 1, scale, -scale) * scales
    covered = np.concatenate([_covered_entries(block, biases) for block in model.layout])
    for block in model.layout:
        if block.kind == "normalisation":
            constants[block.start : block.stop] = 1.0 if block.name.endswith("weight") else 0.0
        elif not covered[block.start]:
            constants[block.start : block.stop] = 0.0
    masked = np.flatnonzero(covered)
    words = _random_integers(seeds, "frozen.scores", model.size)[masked]
    layers = np.concatenate([np.full(block.stop - block.start, i) for i, block in enumerate(model.layout)])[masked]
    return FrozenNetwork(
        model=model,
        constants=torch.from_numpy(constants.astype(np.float32)),
        masked=torch.from_numpy(masked),
        initial=_initial_probabilities(words, spread),
        dice=torch.from_numpy(_open_uniforms(_random_integers(seeds, "frozen.dice", model.size)[masked])),
        layers=layers,
    )


def _random_integers(seeds: Seeds, purpose: str, count: int) -> NDArray[np.uint64]:
    words: NDArray[np.uint64] = seeds.keys(purpose, 0, np.zeros(1, dtype=np.int64), (count,))[0]
    return words


def _initial_probabilities(words: NDArray[np.uint64], spread: float) -> Tensor:
    return torch.from_numpy(expit(spread * ndtri(_open_uniforms(words))).astype(np.float32))


def _open_uniforms(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return uniforms in (0, 1), without the ends."""
    uniform: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    return uniform


def _weight_block(model: FlatModel, block: Block) -> Block | None:
    """Return the layer's weight matrix: the block itself, or another block of its layer."""
    layer = block.name.rpartition(".")[0]
    same = [b for b in model.layout if b.name.rpartition(".")[0] == layer and len(b.shape) > 1]
    return same[0] if same else None


def _covered_entries(block: Block, biases: Biases) -> NDArray[np.bool_]:
    masked = block.kind == "weight" or (block.kind == "bias" and biases == "masked")
    return np.full(block.stop - block.start, masked)


def _scales(model: FlatModel, constant: Constant) -> NDArray[np.float64]:
    """Return s of every coordinate."""
    fans = [_fan_in(model, block) for block in model.layout]
    if constant == "published":
        sizes = [math.e / math.sqrt(fan_in) for fan_in in fans]
    else:
        sizes = [math.sqrt(2 / fan_in) for fan_in in fans]
    if constant == "even":
        weights = [size for size, block in zip(sizes, model.layout, strict=True) if block.kind == "weight"]
        sizes = [math.exp(math.fsum(map(math.log, weights)) / len(weights))] * len(sizes)
    counts = [block.stop - block.start for block in model.layout]
    return np.repeat(np.array(sizes), counts)


def _fan_in(model: FlatModel, block: Block) -> int:
    matrix = _weight_block(model, block)
    return math.prod(matrix.shape[1:]) if matrix else 1
