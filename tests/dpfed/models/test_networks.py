"""The networks have the papers' sizes."""

from itertools import pairwise
from math import prod
from typing import Any

import pytest
import torch
from refusals import refused

from dpfed.errors import ConfigError
from dpfed.models import build
from dpfed.models.frozen import Biases, freeze
from dpfed.seeds import Seeds


@pytest.mark.parametrize(
    ("name", "shape", "options", "size"),
    [
        ("mlp", (1, 8, 8), {}, 2_410),
        ("mlp", (64,), {"hidden": ()}, 650),
        ("mlp", (1, 28, 28), {"hidden": [200, 200]}, 199_210),
        ("fed-smp-cnn", (1, 28, 28), {}, 1_663_370),
        ("fed-smp-cnn-unpadded", (1, 28, 28), {}, 582_026),
        ("fed-smp-cnn", (3, 32, 32), {}, 2_156_490),
        ("fed-smp-svhn-cnn", (3, 32, 32), {}, 3_431_754),
        ("fedscalar-mlp", (1, 8, 8), {}, 259),
        ("conv-4", (1, 28, 28), {}, 1_933_258),
        ("conv-6", (3, 32, 32), {}, 2_262_602),
    ],
)
def test_build_gives_the_published_size(name: str, shape: tuple[int, ...], options: dict[str, Any], size: int) -> None:
    model = build(name, shape, 10, **options)
    assert model.size == size
    assert model.forward(model.initial(0), torch.zeros(3, *shape)).shape == (3, 10)


@pytest.mark.parametrize(
    ("name", "shape", "parameters", "channels"),
    [
        ("cnn-4-bn", (1, 28, 28), 390_880, 480),
        ("cnn-4-bn", (3, 32, 32), 399_136, 480),
        ("cnn-8-bn", (3, 32, 32), 1_183_456, 960),
    ],
)
def test_networks_with_batch_norm(name: str, shape: tuple[int, ...], parameters: int, channels: int) -> None:
    """A scale, a shift and two statistics a channel are dense, everything else can be masked."""
    model = build(name, shape, 10)
    assert (model.parameters_size, model.size) == (parameters, parameters + 2 * channels)
    assert len(model.dense) == 4 * channels
    assert len(model.indices("weight")) == len(model.compressible) == parameters - 2 * channels
    weights = model.initial(0)
    assert weights[model.compressible].std() == pytest.approx(0.01, rel=0.01)
    assert model.forward(weights, torch.zeros(3, *shape)).shape == (3, 10)
    assert model.trains_on_one(torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)))


def test_fedpms_networks_have_the_layers_of_its_table() -> None:
    """Table 2, counted by hand: 3x3 convolutions with biases, then dense layers 256, 256, classes."""
    for name, shape, classes, widths in (
        ("conv-4", (1, 28, 28), 47, (64, 64, 128, 128)),
        ("conv-6", (3, 32, 32), 10, (64, 64, 128, 128, 256, 256)),
        ("conv-10", (3, 32, 32), 100, (64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024)),
    ):
        side = shape[1] // 2 ** (len(widths) // 2)
        channels = (shape[0], *widths)
        size = sum((9 * a + 1) * b for a, b in pairwise(channels))
        size += sum((a + 1) * b for a, b in pairwise((side * side * widths[-1], 256, 256, classes)))
        assert build(name, shape, classes).size == size


@pytest.mark.parametrize("biases", ["absent", pytest.param("masked", marks=pytest.mark.slow)])
def test_fedpms_networks_can_be_frozen(biases: Biases) -> None:
    """Signed constants by fan-in, which keep a random mask's signals of the same order."""
    model = build("conv-6", (3, 32, 32), 10)
    network = freeze(model, Seeds(root=1), biases=biases)
    for block in model.layout:
        fan_in = prod(next(b for b in model.layout if b.name == block.name.replace("bias", "weight")).shape[1:])
        expected = 0.0 if block.kind == "bias" and biases == "absent" else (2 / fan_in) ** 0.5
        assert network.constants[block.start : block.stop].abs().unique().tolist() == pytest.approx([expected])
    assert network.size == (model.size if biases == "masked" else len(model.indices("weight")))
    mask = torch.bernoulli(network.initial, generator=torch.Generator().manual_seed(0))
    inputs = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    logits = model.forward(network.weights(mask), inputs)
    assert logits.shape == (2, 10)
    assert 0 < logits.std() < 10


def test_build_raises_on_unknown_names_and_options() -> None:
    refused(ConfigError, r"model='fed_smp_cnn'.*Did you mean 'fed-smp-cnn'", build, "fed_smp_cnn", (1, 28, 28), 10)
    refused(ConfigError, r"width=3.*accepts hidden", build, "mlp", (4,), 2, width=3)
    refused(ConfigError, "accepts no options", build, "fed-smp-cnn", (1, 28, 28), 10, hidden=(3,))


def test_networks_raise_on_shapes_they_cannot_take() -> None:
    refused(ConfigError, "channels, height, width", build, "fed-smp-cnn", (64,), 10)
    refused(ConfigError, "too small", build, "fed-smp-cnn-unpadded", (1, 8, 8), 10)
    refused(ConfigError, r"CONV-10 needs.*at least 32 x 32", build, "conv-10", (1, 28, 28), 10)
    refused(ConfigError, "at least 16 x 16", build, "cnn-4-bn", (1, 8, 8), 10)
    refused(ConfigError, "at least one unit", build, "mlp", (64,), 10, hidden=(0,))
