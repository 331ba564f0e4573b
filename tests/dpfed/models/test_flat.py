"""A flat model is its module, seen as a function of one vector."""

import pytest
import torch
from refusals import refused
from torch import nn
from torch.nn.utils import parameters_to_vector

from dpfed.errors import ConfigError
from dpfed.models import FlatModel, build

MODELS = [("mlp", (1, 8, 8)), ("fed-smp-cnn-unpadded", (1, 28, 28))]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def test_initial_repeats_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    model = FlatModel(network)
    first, again, other = (model.initial(seed) for seed in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.dtype == torch.float32
    assert not first.requires_grad


def test_initial_equals_torch_seeding() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        reference = parameters_to_vector(network().parameters())
    assert torch.equal(FlatModel(network).initial(5), reference)


def test_layout_covers_the_vector_in_order() -> None:
    model = FlatModel(network)
    assert [(block.name, block.shape) for block in model.layout] == [
        ("0.weight", (4, 3)),
        ("0.bias", (4,)),
        ("2.weight", (2, 4)),
        ("2.bias", (2,)),
    ]
    assert [block.start for block in model.layout] == [0, 12, 16, 24]
    assert model.layout[-1].stop == model.size == 26


@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_forward_equals_the_bound_module(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 10)
    weights = model.initial(1)
    inputs = torch.rand(5, *shape, generator=torch.Generator().manual_seed(0))
    module = model.bind(weights)
    assert torch.equal(module(inputs), model.forward(weights, inputs))
    weights.mul_(0.5)
    assert torch.equal(module(inputs), model.forward(weights, inputs))


def tied() -> nn.Module:
    layers = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3))
    layers[2].weight = layers[0].weight
    return layers


@pytest.mark.parametrize("make", [network, tied, lambda: nn.Sequential(nn.Linear(3, 3).requires_grad_(False), *tied())])
def test_plain_networks_train_as_by_functional_call_and_stay_as_they_were(make) -> None:
    """Tensors of the network itself are back after a call, and after a call that fails."""
    with torch.random.fork_rng():
        model = FlatModel(lambda: make().append(nn.Linear(make()[-1].out_features, 2)).train())
    kept = {name: one.clone() for name, one in model._training.state_dict(keep_vars=True).items()}
    weights, wide = torch.stack([model.initial(seed) for seed in (1, 2)]), model._training[0].in_features
    inputs = torch.rand(2, 5, wide, generator=torch.Generator().manual_seed(0))
    assert model.plain
    plain, _ = model.train_clients(weights, inputs, torch.ones(2, 5))
    model.plain = False
    assert plain.equal(model.train_clients(weights, inputs, torch.ones(2, 5))[0])
    model.plain = True
    refused(RuntimeError, "", model.train_clients, weights, inputs[..., 1:], torch.ones(2, 5))
    now = model._training.state_dict(keep_vars=True)
    assert all(isinstance(one, nn.Parameter) and one.equal(kept[name]) for name, one in now.items())


class Custom(nn.Linear):
    pass


def hooked() -> nn.Module:
    layer = nn.Linear(3, 2)
    layer.register_forward_hook(lambda *given: None)
    return layer


@pytest.mark.parametrize(
    "make", [lambda: Custom(3, 2), hooked, lambda: nn.Embedding(3, 2), lambda: nn.LSTM(3, 2), lambda: nn.BatchNorm1d(3)]
)
def test_networks_with_code_of_others_or_indices_are_not_plain(make) -> None:
    assert not FlatModel(lambda: nn.Sequential(make(), nn.ReLU())).plain


def test_bind_shares_memory_both_ways() -> None:
    model = FlatModel(network)
    weights = model.initial(1)
    with torch.no_grad():
        for parameter in model.bind(weights).parameters():
            parameter.fill_(3)
    assert torch.equal(weights, torch.full((26,), 3.0))


@pytest.mark.parametrize(("name", "shape"), MODELS)
def test_clients_side_by_side_have_the_outputs_of_each_by_itself(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 10)
    weights = torch.stack([model.initial(seed) for seed in range(3)])
    inputs = torch.rand(3, 4, *shape, generator=torch.Generator().manual_seed(0))
    outputs, statistics = model.train_clients(weights, inputs, torch.full((3, 4), 0.25))
    expected = torch.stack([model.bind(own)(some) for own, some in zip(weights, inputs, strict=True)])
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(statistics, weights[:, model.parameters_size :], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "complaint"),
    [
        (nn.InstanceNorm1d(3, track_running_stats=True), "buffers.*GroupNorm"),
        (nn.BatchNorm1d(3, track_running_stats=False), "track_running_stats=True.*GroupNorm"),
        (nn.BatchNorm1d(3, momentum=None), "a number as momentum"),
        (nn.SyncBatchNorm(3), "must be nn.BatchNorm1d"),
        (None, "no parameters"),
    ],
)
def test_flat_model_raises_on_hidden_state(layer: nn.Module | None, complaint: str) -> None:
    refused(ConfigError, complaint, FlatModel, lambda: nn.Sequential(nn.Linear(3, 3), layer) if layer else nn.ReLU())


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2, bias=False), nn.LayerNorm(2))


def test_blocks_know_their_kind_and_statistics_come_last() -> None:
    model = FlatModel(normalised)
    assert [(block.name, block.kind) for block in model.layout] == [
        ("0.weight", "weight"),
        ("0.bias", "bias"),
        ("1.weight", "normalisation"),
        ("1.bias", "normalisation"),
        ("3.weight", "weight"),
        ("4.weight", "normalisation"),
        ("4.bias", "normalisation"),
        ("1.running_mean", "statistic"),
        ("1.running_var", "statistic"),
    ]
    assert (model.parameters_size, model.size) == (36, 44)
    assert model.compressible.tolist() == [*range(16), *range(24, 32)]
    assert model.dense.tolist() == [*range(16, 24), *range(32, 44)]
    assert model.indices("weight").tolist() == [*range(12), *range(24, 32)]
    assert model.initial(0)[36:].tolist() == [0.0] * 4 + [1.0] * 4
    plain = FlatModel(network)
    assert plain.compressible.tolist() == list(range(26))
    assert not len(plain.dense)
    assert not plain.has_statistics


def test_a_model_with_batch_norm_evaluates_with_running_statistics_and_trains_with_the_batch() -> None:
    generator = torch.Generator().manual_seed(3)
    model = FlatModel(normalised)
    weights = model.initial(0)
    weights[36:] = torch.rand(8, generator=generator) + 0.5
    inputs = torch.randn(6, 3, generator=generator)
    module = normalised()
    module.load_state_dict({b.name: weights[b.start : b.stop].view(b.shape) for b in model.layout}, strict=False)
    kept = weights.clone()
    torch.testing.assert_close(model.forward(weights, inputs), module.eval()(inputs))
    assert torch.equal(weights, kept)
    bound = model.bind(weights)
    torch.testing.assert_close(bound(inputs), module.train()(inputs))
    torch.testing.assert_close(weights[36:40], dict(module.named_buffers())["1.running_mean"])
    torch.testing.assert_close(weights[40:], dict(module.named_buffers())["1.running_var"])
    assert torch.equal(weights[:36], kept[:36])
    assert not torch.equal(weights[36:], kept[36:])
