"""A mask in a file is the whole network: bit-equal weights, below one bit an entry, hostile files refused."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from dpfed.errors import DataError
from dpfed.mask_file import Recipe, load_mask, mask_file

RECIPE = Recipe(
    model="mlp",
    input_shape=(8, 8),
    classes=10,
    options={"hidden": [200]},
    seed=5,
    constant="kaiming",
    biases="masked",
    scale=1.5,
    spread=1.0,
)

GOLDEN_SIGNS = [1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, -1.0]
GOLDEN_INITIAL = [0.3051493, 0.1746533, 0.8170552, 0.2216066]


def drawn(network, seed=0):
    return torch.rand(network.size, generator=torch.Generator().manual_seed(seed)).lt(network.initial)


@pytest.mark.parametrize("biases", ["masked", "absent"])
def test_the_file_alone_gives_the_weights_bit_for_bit(tmp_path, biases):
    recipe = Recipe(**{**vars(RECIPE), "biases": biases})
    network = recipe.build()
    mask = drawn(network)
    (tmp_path / "m").write_bytes(mask_file(recipe, network, mask))
    model, weights = load_mask(tmp_path / "m")
    assert torch.equal(weights, network.weights(mask.float()))
    assert model.size == network.model.size


def test_size_is_the_entropy_given_the_seed():
    """A mask drawn from sigmoid(N(0, 1)) has .864 bits an entry; without the seed's help it would be 1."""
    recipe = Recipe(**{**vars(RECIPE), "options": {"hidden": [1000]}})
    network = recipe.build()
    p = network.initial.double().numpy()
    entropy = float(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)).mean())
    bits = 8 * len(load(mask_file(recipe, network, drawn(network)))["mask"]) / network.size
    assert bits == pytest.approx(entropy, rel=0.01)
    assert len(mask_file(recipe, network, drawn(network))) < network.size / 8 * 0.95  # with all names and counts


@pytest.mark.parametrize("change", ["format", "seed type", "model", "cut mask", "steps", "no json", "not safetensors"])
def test_files_of_another_form_are_refused(tmp_path, change):
    network = RECIPE.build()
    content = mask_file(RECIPE, network, drawn(network))
    arrays = load(content)
    facts = {"format": "dpfed-mask-1", "recipe": json.dumps(vars(RECIPE))}
    match change:
        case "format":
            facts["format"] = "other"
        case "seed type":
            facts["recipe"] = json.dumps({**vars(RECIPE), "seed": None})
        case "model":
            facts["recipe"] = json.dumps({**vars(RECIPE), "model": "resnet"})
        case "cut mask":
            arrays["mask"] = arrays["mask"][:-1]
        case "steps":
            arrays["steps"] = arrays["steps"][:-1]
        case "no json":
            facts["recipe"] = "{"
    path = tmp_path / "m"
    path.write_bytes(b"\0" * 100 if change == "not safetensors" else save(arrays, metadata=facts))
    with pytest.raises(DataError, match="not a mask file"):
        load_mask(path)


def test_probabilities_of_initial_scores_need_no_library_generator():
    """The frozen network is part of the format: these numbers must never change."""
    network = RECIPE.build()
    scale = 1.5 * math.sqrt(2 / 64)
    assert network.constants[:8].div(scale).round().tolist() == GOLDEN_SIGNS
    torch.testing.assert_close(network.initial[:4], torch.tensor(GOLDEN_INITIAL), atol=1e-6, rtol=0)
