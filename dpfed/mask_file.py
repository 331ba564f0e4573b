"""A trained mask as a file: a seed, a few names and less than one bit a weight are the whole network.

safetensors with two arrays, `mask` (range-coded bytes) and `steps` (the share of ones in each context, in 1/4096),
and as metadata what rebuilds the frozen network. A context is a layer and the top four bits of a weight's hash, which
set its initial probability: what training left of it makes the mask shorter than one bit a weight.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dpfed import models
from dpfed.compress.mask_bytes import PROBABILITY_STEPS, mask_from_bytes, mask_to_bytes
from dpfed.errors import DataError
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import CONTEXTS_PER_LAYER, FrozenNetwork, freeze
from dpfed.seeds import Seeds

_FORMAT = "dpfed-mask-1"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the frozen network is made from, besides code of this version."""

    model: str
    input_shape: tuple[int, ...]
    classes: int
    options: dict[str, Any]
    seed: int
    constant: str
    biases: str
    scale: float
    spread: float

    def build(self) -> FrozenNetwork:
        """The network; ConfigError for names that do not exist."""
        model = models.build(self.model, self.input_shape, self.classes, **self.options)
        return freeze(
            model,
            Seeds(root=self.seed),
            constant=self.constant,  # type: ignore[arg-type]
            biases=self.biases,  # type: ignore[arg-type]
            scale=self.scale,
            spread=self.spread,
        )


def mask_file(recipe: Recipe, network: FrozenNetwork, mask: torch.Tensor) -> bytes:
    """The file's content for a mask [n], bool, over the recipe's network."""
    entries = mask.cpu().numpy()
    contexts = _contexts(network)
    sizes = np.bincount(network.contexts, minlength=contexts)
    ones = np.bincount(network.contexts, weights=entries, minlength=contexts)
    steps = np.rint(PROBABILITY_STEPS * ones / np.maximum(sizes, 1)).astype(np.uint16)
    content = np.frombuffer(mask_to_bytes(entries, _probabilities(network, steps)), dtype=np.uint8)
    facts = {"format": _FORMAT, "recipe": json.dumps(vars(recipe))}
    return bytes(save({"mask": content, "steps": steps}, metadata=facts))


def load_mask(path: Path) -> tuple[FlatModel, torch.Tensor]:
    """The network and its weights float32 [d] from the file alone; DataError for anything that is not such a file."""
    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
            if facts.get("format") != _FORMAT:
                raise ValueError("another format")
            content, steps = file.get_tensor("mask"), file.get_tensor("steps")
        fields = json.loads(facts["recipe"])
        network = Recipe(**{**fields, "input_shape": tuple(fields["input_shape"])}).build()
        if content.dtype != np.uint8 or steps.dtype != np.uint16 or len(steps) != _contexts(network):
            raise ValueError("arrays of another form")
        mask = mask_from_bytes(content.tobytes(), _probabilities(network, steps))
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a mask file that can be read ({error}). Save it again.") from None
    return network.model, network.weights(torch.from_numpy(mask).float())


def _contexts(network: FrozenNetwork) -> int:
    return CONTEXTS_PER_LAYER * len(network.model.layout)


def _probabilities(network: FrozenNetwork, steps: NDArray[np.uint16]) -> NDArray[np.float32]:
    shares: NDArray[np.float32] = (steps[network.contexts] / PROBABILITY_STEPS).astype(np.float32)
    return shares
