"""Networks with fixed weights under a mask, and the file of a trained mask.

File of a trained mask: a seed, a few names and less than one bit per weight are the whole network.

The format is safetensors with two arrays, `mask` (range-coded bytes) and `steps` (the fraction of ones in each context,
in 1/4096), and as metadata the values that rebuild the frozen network. A context is a layer and public information on a
weight: its initial probability, and the distance of the weight's public die below it. Of three ways to form contexts
the file uses the one with the shortest content. A weight that training hardly moved takes next to no bytes.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save
from scipy.special import expit, ndtri
from torch import Tensor

from accounting.ledger.regular_file import LARGEST_ARRAYS, require_input
from dpfed import models
from dpfed.compress.mask_schemes import PROBABILITY_STEPS, mask_from_bytes, mask_to_bytes
from dpfed.config.limits import MOST_LAYERS
from dpfed.errors import ConfigError, DataError
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
    sizes = [block.stop - block.start for block in model.layout]
    constants = np.where(signs == 1, scale, -scale) * np.repeat(_scales(model, constant), sizes)
    kinds = ("weight", "bias") if biases == "masked" else ("weight",)
    covered = np.repeat([block.kind in kinds for block in model.layout], sizes)
    for block in model.layout:
        if block.kind == "normalisation":
            constants[block.start : block.stop] = 1.0 if block.name.endswith("weight") else 0.0
        elif not covered[block.start]:
            constants[block.start : block.stop] = 0.0
    masked = np.flatnonzero(covered)
    words = _random_integers(seeds, "frozen.scores", model.size)[masked]
    return FrozenNetwork(
        model=model,
        constants=torch.from_numpy(constants.astype(np.float32)),
        masked=torch.from_numpy(masked),
        initial=torch.from_numpy(expit(spread * ndtri(_open_uniforms(words))).astype(np.float32)),
        dice=torch.from_numpy(_open_uniforms(_random_integers(seeds, "frozen.dice", model.size)[masked])),
        layers=np.repeat(np.arange(len(sizes)), sizes)[masked],
    )


def _random_integers(seeds: Seeds, purpose: str, count: int) -> NDArray[np.uint64]:
    words: NDArray[np.uint64] = seeds.keys(purpose, 0, np.zeros(1, dtype=np.int64), (count,))[0]
    return words


def _open_uniforms(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return uniforms in (0, 1), without the ends: the largest sum would round to 1."""
    uniform: NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54
    return np.minimum(uniform, 1 - 2.0**-53)


def _scales(model: FlatModel, constant: Constant) -> list[float]:
    """Return s of every block."""
    fans = [_fan_in(model, block) for block in model.layout]
    if constant == "published":
        sizes = [math.e / math.sqrt(fan_in) for fan_in in fans]
    else:
        sizes = [math.sqrt(2 / fan_in) for fan_in in fans]
    if constant == "even":
        weights = [size for size, block in zip(sizes, model.layout, strict=True) if block.kind == "weight"]
        sizes = [math.exp(math.fsum(map(math.log, weights)) / len(weights))] * len(sizes)
    return sizes


def _fan_in(model: FlatModel, block: Block) -> int:
    """Return the fan-in of the weight matrix of the block's layer; 1 for a layer without one."""
    layer = block.name.rpartition(".")[0]
    matrices = (b for b in model.layout if b.name.rpartition(".")[0] == layer and len(b.shape) > 1)
    return next((math.prod(matrix.shape[1:]) for matrix in matrices), 1)


_FORMAT = "dpfed-mask-4"
_BUCKETS = 16
_KINDS = ("initial", "die", "both")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Values from which this version's code rebuilds the frozen network."""

    model: str
    input_shape: tuple[int, ...]
    classes: int
    options: dict[str, object]
    seed: int
    constant: str
    biases: str
    scale: float
    spread: float

    def build(self) -> FrozenNetwork:
        """Return the frozen network; raise ConfigError for names that do not exist, and for too many layers."""
        hidden = self.options.get("hidden")
        if isinstance(hidden, list) and len(hidden) > MOST_LAYERS:
            raise ConfigError(f"hidden: {len(hidden)} layers; at most {MOST_LAYERS}.")
        fixed_seed = Seeds(root=self.seed).integer("weights")
        model = models.build(
            self.model, self.input_shape, self.classes, fixed_seed=fixed_seed, parts=(), labels=None, **self.options
        )
        return freeze(
            model,
            Seeds(root=self.seed),
            constant=self.constant,  # type: ignore[arg-type]
            biases=self.biases,  # type: ignore[arg-type]
            scale=self.scale,
            spread=self.spread,
        )


def mask_file(recipe: Recipe, network: FrozenNetwork, mask: torch.Tensor) -> bytes:
    """Return the file's content for a mask [n], bool, over the recipe's network."""
    entries = mask.cpu().numpy()
    facts = {"format": _FORMAT, "crc": str(_mask_checksum(entries)), "recipe": json.dumps(vars(recipe))}
    files = [
        _file_content(entries, _contexts(network, kind), _context_count(network), {**facts, "contexts": kind})
        for kind in _KINDS
    ]
    return min(files, key=len)


def _file_content(entries: NDArray[np.bool_], contexts: NDArray[np.int64], count: int, facts: dict[str, str]) -> bytes:
    sizes = np.bincount(contexts, minlength=count)
    ones = np.bincount(contexts, weights=entries, minlength=count)
    steps = np.rint(PROBABILITY_STEPS * ones / np.maximum(sizes, 1)).astype(np.uint16)
    content = np.frombuffer(mask_to_bytes(entries, _probabilities(contexts, steps)), dtype=np.uint8)
    return bytes(save({"mask": content, "steps": steps}, metadata=facts))


def load_mask(path: Path) -> tuple[FlatModel, torch.Tensor]:
    """Load the network and its weights float32 [d] from the file alone; raise DataError for any other file."""
    try:
        require_input(path, at_most=LARGEST_ARRAYS)
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
            if facts.get("format") != _FORMAT:
                raise ValueError("another format")
            content, steps = file.get_tensor("mask"), file.get_tensor("steps")
        fields = json.loads(facts["recipe"])
        network = Recipe(**{**fields, "input_shape": tuple(fields["input_shape"])}).build()
        if content.dtype != np.uint8 or steps.dtype != np.uint16 or steps.shape != (_context_count(network),):
            raise ValueError("arrays of another form")
        mask = mask_from_bytes(content.tobytes(), _probabilities(_contexts(network, facts["contexts"]), steps))
        if str(_mask_checksum(mask)) != facts["crc"]:
            raise ValueError("the mask does not match its checksum")
    except Exception as error:  # a file from a stranger may hold any values
        raise DataError(f"{path}: not a mask file that can be read ({error}). Save it again.") from None
    return network.model, network.weights(torch.from_numpy(mask).float())


def _context_count(network: FrozenNetwork) -> int:
    return _BUCKETS * len(network.model.layout)


def _contexts(network: FrozenNetwork, kind: str) -> NDArray[np.int64]:
    """Return the coder's context of every weight, [n], computed from the seed alone."""
    initial = network.initial.cpu().numpy().astype(np.float64)
    margin = (initial - network.dice.cpu().numpy() + 1) / 2
    match kind:
        case "initial":
            buckets = _bucket_numbers(initial, _BUCKETS)
        case "die":
            buckets = _bucket_numbers(margin, _BUCKETS)
        case "both":
            buckets = 4 * _bucket_numbers(initial, 4) + _bucket_numbers(margin, 4)
        case _:
            raise ValueError(f"contexts {kind!r}, not one of {', '.join(_KINDS)}")
    contexts: NDArray[np.int64] = network.layers * _BUCKETS + buckets
    return contexts


def _bucket_numbers(shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    return np.minimum((shares * count).astype(np.int64), count - 1)


def _probabilities(contexts: NDArray[np.int64], steps: NDArray[np.uint16]) -> NDArray[np.float32]:
    shares: NDArray[np.float32] = (steps[contexts] / PROBABILITY_STEPS).astype(np.float32)
    return shares


def _mask_checksum(mask: NDArray[np.bool_]) -> int:
    return zlib.crc32(np.packbits(mask).tobytes())
