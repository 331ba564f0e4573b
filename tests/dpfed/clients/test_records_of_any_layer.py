"""Per-record gradients of layers that Opacus' hooks do not know, against single backward passes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from custom_networks import Scale
from local_training import training_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfed.clients import Sgd
from dpfed.clients.losses import CROSS_ENTROPY, Loss, custom_loss
from dpfed.clients.network_randomness import ClientRandomness
from dpfed.clients.records import Way, gradients_of_records, has_hooks
from dpfed.clients.records_apart import require_records_apart
from dpfed.mechanisms.records import GaussianRecords, gaussian_noise
from dpfed.models import FlatModel
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

GENERATOR = torch.Generator().manual_seed(2)
ROWS, LABELS = torch.randn(9, 4, 8, generator=GENERATOR), torch.randint(3, (9,), generator=GENERATOR)


class Net(nn.Module):
    """A layer on records [4, 8], then the mean over positions and logits."""

    def __init__(self, layer: nn.Module, use: Callable[[Any, Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.layer, self.use, self.out = layer, use, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.use(self.layer, x).mean(1))
        return made


def steps(cell: Any, x: Tensor) -> Tensor:
    state = x.new_zeros(len(x), 8)
    for place in range(x.shape[1]):
        state = cell(x[:, place], state)
    return state[:, None]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.again, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.again.weight = self.inner.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.out(self.again(self.frozen(self.inner(x).tanh())).mean(1))
        return made


def with_frozen_attention() -> nn.Module:
    net = Net(nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x)[0])
    net.layer.in_proj_weight.requires_grad_(False)  # type: ignore[union-attr]
    return net


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, dropout=0.0, batch_first=True)


def bag(layer: Any, x: Tensor) -> Tensor:
    return layer((x * 3).abs().long().flatten(1) % 10)[:, None]


def plainly(layer: Any, x: Tensor) -> Tensor:
    made: Tensor = layer(x)
    return made


LAYERS: dict[str, tuple[Callable[[], nn.Module], Way]] = {
    "linear": (lambda: Net(nn.Linear(8, 8), plainly), "hooks"),
    "attention": (
        lambda: Net(nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x, need_weights=False)[0]),
        "vmap",
    ),
    "attention, partly frozen": (with_frozen_attention, "vmap"),
    "encoder": (lambda: Net(nn.TransformerEncoder(encoder(), 2, enable_nested_tensor=False), plainly), "vmap"),
    "bilinear": (lambda: Net(nn.Bilinear(8, 8, 8), lambda m, x: m(x, x.flip(1))), "vmap"),
    "GRU cell": (lambda: Net(nn.GRUCell(8, 8), steps), "vmap"),
    "LSTM cell": (lambda: Net(nn.LSTMCell(8, 8), lambda m, x: m(x[:, 0])[0][:, None]), "vmap"),
    "bag of embeddings": (lambda: Net(nn.EmbeddingBag(10, 8), bag), "vmap"),
    "PReLU": (lambda: Net(nn.Sequential(nn.Linear(8, 8), nn.PReLU()), plainly), "vmap"),
    "transposed convolution": (lambda: Net(nn.ConvTranspose1d(4, 4, 3, padding=1), plainly), "vmap"),
    "own parameter": (lambda: Net(Scale(), plainly), "vmap"),
    "in place": (lambda: Net(nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True)), plainly), "vmap"),
    "shared weights, frozen parts": (Tied, "hooks"),
}


def single(model: FlatModel, weights: Tensor, loss: Loss) -> Tensor:
    """Gradients [b, d] from one backward pass of torch for each record."""
    found = []
    for row, label in zip(ROWS, LABELS, strict=True):
        module = model.bind(weights.clone())
        trained = [one for one in module.parameters() if one.requires_grad]
        losses = loss.each(module(row[None]), label[None])
        gradients = torch.autograd.grad(losses.sum(), trained, allow_unused=True, materialize_grads=True)
        found.append(torch.cat([one.flatten() for one in gradients]))
    return torch.stack(found)


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_single_backward_passes(name: str) -> None:
    torch.manual_seed(0)
    maker, expected_way = LAYERS[name]
    model = FlatModel(maker)
    by = require_records_apart(model, CROSS_ENTROPY, ROWS, LABELS, batch_size=6, seeds=Seeds(root=0))
    weights = model.initial(3)
    found = gradients_of_records(model.bind(weights.clone()), loss=CROSS_ENTROPY, by=by)(ROWS, LABELS)
    torch.testing.assert_close(found, single(model, weights, CROSS_ENTROPY), rtol=1e-4, atol=1e-6)
    assert found.abs().max() > 1e-3
    assert by in (expected_way, "single") if expected_way == "vmap" else by == expected_way


def test_layers_without_a_hook_and_layers_in_place_are_seen() -> None:
    assert has_hooks(nn.Sequential(nn.Linear(8, 3), nn.ReLU(), nn.LayerNorm(3)))
    assert not has_hooks(nn.Sequential(nn.Linear(8, 3), nn.ReLU(inplace=True)))
    assert not has_hooks(nn.Bilinear(2, 2, 2))
    assert has_hooks(nn.Bilinear(2, 2, 2).requires_grad_(False))


def test_a_loss_with_conditions_has_single_backward_passes() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        assert bool(outputs.isfinite().all())
        return cross_entropy(outputs, targets, reduction="none")

    own, model = custom_loss(loss), FlatModel(LAYERS["bilinear"][0])
    by = require_records_apart(model, own, ROWS, LABELS, batch_size=6, seeds=Seeds(root=0))
    assert by == "single"
    weights = model.initial(1)
    found = gradients_of_records(model.bind(weights.clone()), loss=own, by=by)(ROWS, LABELS)
    torch.testing.assert_close(found, single(model, weights, own), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("by", ["vmap", "single"])
def test_a_record_without_a_finite_gradient_leaves_the_others_alone(by: Way) -> None:
    model = FlatModel(LAYERS["attention"][0])
    weights, rows = model.initial(3), ROWS.clone()
    rows[4] = torch.inf
    found = gradients_of_records(model.bind(weights.clone()), loss=CROSS_ENTROPY, by=by)(rows, LABELS)
    expected, others = single(model, weights, CROSS_ENTROPY), [0, 1, 2, 3, 5, 6, 7, 8]
    assert not found[4].isfinite().all()
    torch.testing.assert_close(found[others], expected[others], rtol=1e-4, atol=1e-6)


def test_dropout_draws_for_each_record_whichever_the_way() -> None:
    model = FlatModel(lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.Dropout(0.5), nn.Linear(16, 3)))
    weights = model.initial(0)

    def gradients(by: Way, rows: list[int]) -> Tensor:
        drawn = ClientRandomness(Seeds(root=1), "test", number=0, clients=[0], step=0, records=np.array(rows))
        made = gradients_of_records(model.bind(weights.clone()), loss=CROSS_ENTROPY, by=by)
        return made(ROWS[rows], LABELS[rows], drawn)

    whole = gradients("hooks", [0, 1, 2])
    assert not torch.allclose(whole[0], gradients("hooks", [3])[0])
    torch.testing.assert_close(gradients("vmap", [0, 1, 2]), whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradients("vmap", [1])[0], whole[1], rtol=1e-4, atol=1e-6)


def test_single_passes_draw_dropout_for_each_record_of_a_batch() -> None:
    """Training by single passes equals training by hooks, whose batches draw from the same streams of records."""
    model = FlatModel(lambda: nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 4)))
    noiseless = GaussianRecords(clip_norm=1.0, noise=gaussian_noise(1e-9), randomness=Simulated(seeds=Seeds(root=2)))

    def moves(by: Way) -> Tensor:
        course = Sgd(size=model.size, learning_rate=0.3)
        training = training_of(model, course, [12, 7], record=noiseless, gradients_by=by)
        return training.train(model.initial(0), np.arange(2), number=0, seeds=Seeds(root=1))

    torch.testing.assert_close(moves("single"), moves("hooks"), rtol=1e-4, atol=1e-6)
