"""The networks have the papers' sizes."""

from typing import Any

import pytest
import torch

from dpfed.errors import ConfigError
from dpfed.models import build


@pytest.mark.parametrize(
    ("name", "shape", "options", "size"),
    [
        ("mlp", (1, 8, 8), {}, 2_410),
        ("mlp", (64,), {"hidden": ()}, 650),
        ("mlp", (1, 28, 28), {"hidden": [200, 200]}, 199_210),
        ("fed-smp-cnn", (1, 28, 28), {}, 1_663_370),
        ("fed-smp-cnn-unpadded", (1, 28, 28), {}, 582_026),
        ("fed-smp-cnn", (3, 32, 32), {}, 2_156_490),
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


def test_build_raises_on_unknown_names_and_options() -> None:
    with pytest.raises(ConfigError, match=r"model='fed_smp_cnn'.*Did you mean 'fed-smp-cnn'"):
        build("fed_smp_cnn", (1, 28, 28), 10)
    with pytest.raises(ConfigError, match=r"width=3.*takes hidden"):
        build("mlp", (4,), 2, width=3)
    with pytest.raises(ConfigError, match="takes no options"):
        build("fed-smp-cnn", (1, 28, 28), 10, hidden=(3,))


def test_networks_raise_on_shapes_they_cannot_take() -> None:
    with pytest.raises(ConfigError, match="channels, height, width"):
        build("fed-smp-cnn", (64,), 10)
    with pytest.raises(ConfigError, match="too small"):
        build("fed-smp-cnn-unpadded", (1, 8, 8), 10)
    with pytest.raises(ConfigError, match="at least 16 x 16"):
        build("cnn-4-bn", (1, 8, 8), 10)
    with pytest.raises(ConfigError, match="at least one unit"):
        build("mlp", (64,), 10, hidden=(0,))
