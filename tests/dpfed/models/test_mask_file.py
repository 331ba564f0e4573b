"""A mask in a file is the whole network: bit-equal weights, below one bit an entry, hostile files refused."""

import json
import math

import pytest
import torch
from safetensors.numpy import load, save

from dpfed.errors import DataError
from dpfed.models.frozen import Recipe, load_mask, mask_file

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
    """A mask of probabilities that training moved a little."""
    noise = torch.randn(network.size, generator=torch.Generator().manual_seed(seed))
    return network.dice.lt(torch.sigmoid(torch.logit(network.initial) + 0.5 * noise).double())


@pytest.mark.parametrize("biases", ["masked", "absent"])
def test_the_file_alone_gives_the_weights_bit_for_bit(tmp_path, biases):
    recipe = Recipe(**{**vars(RECIPE), "biases": biases})
    network = recipe.build()
    mask = drawn(network)
    (tmp_path / "m").write_bytes(mask_file(recipe, network, mask))
    model, weights = load_mask(tmp_path / "m")
    assert torch.equal(weights, network.weights(mask.float()))
    assert model.size == network.model.size


def test_what_training_left_alone_costs_little():
    """Scores moved by N(0, 1/4): well below the probabilities' .86 bits, and less the less they moved."""
    recipe = Recipe(**{**vars(RECIPE), "options": {"hidden": [1000]}})
    network = recipe.build()
    sizes = []
    for spread in (0.0, 0.5, 1.0, 20.0):
        noise = torch.randn(network.size, generator=torch.Generator().manual_seed(0))
        theta = torch.sigmoid(torch.logit(network.initial) + spread * noise).double()
        content = mask_file(recipe, network, network.dice.lt(theta))
        sizes.append(8 * len(load(content)["mask"]) / network.size)
    assert sizes == sorted(sizes)
    assert sizes[0] < 0.2
    assert sizes[1] < 0.55
    assert sizes[3] < 1.01
    assert 8 * len(content) / network.size < sizes[3] + 0.15  # with all names and counts


def test_a_thresholded_mask_is_coded_by_the_initial_probability(tmp_path):
    network = RECIPE.build()
    mask = torch.sigmoid(torch.logit(network.initial) + 0.5 * torch.randn(network.size)).ge(0.5)
    content = mask_file(RECIPE, network, mask)
    (tmp_path / "m").write_bytes(content)
    assert torch.equal(load_mask(tmp_path / "m")[1], network.weights(mask.float()))
    assert 8 * len(load(content)["mask"]) / network.size < 0.75


def test_a_drawn_mask_has_the_law_of_its_probabilities():
    """Dice against theta: each probability bin's share of ones within the limit of a false-alarm rate of 1e-6."""
    from scipy.stats import norm

    network = Recipe(**{**vars(RECIPE), "options": {"hidden": [1000]}}).build()
    theta = torch.linspace(0, 1, network.size, dtype=torch.float64)[torch.randperm(network.size)]
    excess = (network.dice.lt(theta).double() - theta).reshape(10, -1).mean(dim=1)
    assert float(excess.abs().max()) < norm.isf(1e-6 / 20) * 0.5 / (network.size / 10) ** 0.5


@pytest.mark.parametrize(
    "change",
    ["format", "seed type", "model", "model type", "layers", "scale", "cut mask", "contexts", "steps", "no json",
     "deep json", "not safetensors"],
)  # fmt: skip
def test_files_of_another_form_are_refused(tmp_path, change):
    network = RECIPE.build()
    content = mask_file(RECIPE, network, drawn(network))
    arrays = load(content)
    facts = {"format": "dpfed-mask-4", "contexts": "die", "crc": "0", "recipe": json.dumps(vars(RECIPE))}
    match change:
        case "format":
            facts["format"] = "other"
        case "seed type":
            facts["recipe"] = json.dumps({**vars(RECIPE), "seed": None})
        case "model":
            facts["recipe"] = json.dumps({**vars(RECIPE), "model": "resnet"})
        case "model type":
            facts["recipe"] = json.dumps({**vars(RECIPE), "model": []})
        case "layers":
            facts["recipe"] = json.dumps({**vars(RECIPE), "options": {"hidden": [1] * 100_000}})
        case "scale":
            facts["recipe"] = json.dumps({**vars(RECIPE), "scale": 10**400})
        case "cut mask":
            arrays["mask"] = arrays["mask"][:-1]
        case "contexts":
            facts["contexts"] = "other"
        case "steps":
            arrays["steps"] = arrays["steps"][:-1]
        case "no json":
            facts["recipe"] = "{"
        case "deep json":
            facts["recipe"] = "[" * 100_000
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
