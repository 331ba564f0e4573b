"""Gradients that are kept as factors, and put in place, are those of autograd."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfed.clients import gradients
from dpfed.clients.gradients import BatchGradients
from dpfed.models.flat import FlatModel


class Twice(nn.Module):
    """One dense layer used twice, on texts [b, 3, 6] the first time; a second layer shares its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.twin, self.last = nn.Linear(6, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 4)
        self.twin.weight = self.layer.weight

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.layer(inputs).tanh().mean(dim=1)
        return self.last(self.layer(hidden).tanh() + self.twin(hidden))


class Direct(nn.Module):
    """A layer that is called, and whose weights are used without calling it as well; another is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(6, 4, bias=False), nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs) + torch.tanh(inputs @ self.layer.weight.t())


CASES = {
    "dense": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4, bias=False)), (6,)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)),
        (2, 8, 8),
    ),
    "batch norm": (lambda: nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 4)), (6,)),
    "shared": (Twice, (3, 6)),
    "direct": (Direct, (6,)),
}


@pytest.fixture(autouse=True, params=[0, 1 << 60], ids=["factors", "autograd"])
def threshold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_DENSE_FROM", request.param)


def case(name: str) -> tuple[FlatModel, Tensor, Tensor, Tensor]:
    factory, shape = CASES[name]
    model, generator = FlatModel(factory), torch.Generator().manual_seed(3)
    inputs = torch.randn(7, *shape, generator=generator)
    return model, model.initial(1), inputs, torch.randint(4, (7,), generator=generator)


def expected(model: FlatModel, weights: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """[d] by backward() on an untouched module, 0 for statistics."""
    module = model.bind(weights.clone())
    cross_entropy(module(inputs), labels).backward()  # type: ignore[no-untyped-call]
    rows = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
    still = torch.zeros(model.size - model.parameters_size)
    return torch.cat([*(row.reshape(-1) for row in rows), still])


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_written_as_backward_gives_them(name: str) -> None:
    model, weights, inputs, labels = case(name)
    module = model.bind(weights.clone())
    taker, found = BatchGradients(model, module), torch.full((model.size,), 7.0)
    for _ in range(2):  # nothing of the first batch may be left in the second
        taker.write(cross_entropy(module(inputs), labels), found)
        torch.testing.assert_close(found, expected(model, weights, inputs, labels), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", CASES)
def test_descent_in_place_is_a_step_of_sgd(name: str) -> None:
    model, weights, inputs, labels = case(name)
    room = weights.clone()
    module = model.bind(room)
    taker = BatchGradients(model, module)
    for _ in range(3):
        step = expected(model, room, inputs, labels)[: model.parameters_size]
        before = room[: model.parameters_size].clone()
        taker.subtract_gradient(cross_entropy(module(inputs), labels), 0.3)
        torch.testing.assert_close(room[: model.parameters_size], before - 0.3 * step, rtol=1e-5, atol=1e-6)


class Forgetful(list):  # type: ignore[type-arg]
    """Keeps the first factors only."""

    def append(self, item: object) -> None:
        if not self:
            super().append(item)


def test_a_use_of_a_layer_that_is_forgotten_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_DENSE_FROM", 0)
    model, weights, inputs, labels = case("shared")
    module = model.bind(weights.clone())
    taker = BatchGradients(model, module)
    taker._factors = Forgetful()
    for part in (module.layer, module.twin, module.last):
        part.forward = partial(gradients._dense_outputs, part, taker._factors)  # type: ignore[union-attr]
    found = torch.empty(model.size)
    taker.write(cross_entropy(module(inputs), labels), found)
    assert (found - expected(model, weights, inputs, labels)).abs().max() > 0.01
