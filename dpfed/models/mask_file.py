"""File of a trained mask: a seed, a few names and less than one bit per weight are the whole network.

The format is safetensors with two arrays, `mask` (range-coded bytes) and `steps` (the fraction of ones in each context,
in 1/4096), and as metadata the values that rebuild the frozen network. A context is a layer and public information on a
weight: its initial probability, and the distance of the weight's public die below it. Of three ways to form contexts
the file uses the one with the shortest content. A weight that training hardly moved takes next to no bytes.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from accounting.ledger.regular_file import LARGEST_ARRAYS, require_input
from dpfed import models
from dpfed.compress.mask_bytes import PROBABILITY_STEPS, mask_from_bytes, mask_to_bytes
from dpfed.errors import DataError
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import FrozenNetwork, freeze
from dpfed.seeds import Seeds

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
        """Return the frozen network; raise ConfigError for names that do not exist."""
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
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
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
