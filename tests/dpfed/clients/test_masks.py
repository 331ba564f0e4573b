"""Mask training against a plain loop with autograd, and its coins, gradients and refusals."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from local_training import batches, training_of
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfed.clients import LocalTraining
from dpfed.clients.masks import MaskTraining
from dpfed.clients.optimisers import longest_way
from dpfed.models import FlatModel, build
from dpfed.models.frozen import FrozenNetwork, freeze
from dpfed.models.networks import mlp
from dpfed.seeds import Seeds

SEEDS = Seeds(root=11)
SIZES = [12, 0, 7, 5]
CLIENTS = np.arange(len(SIZES))


def network(**options: Any) -> FrozenNetwork:
    return freeze(build("mlp", (6,), 4, hidden=(5,)), SEEDS, **options)


def trainer(frozen: FrozenNetwork, strategy: str = "loop", **course: Any) -> LocalTraining:
    made = MaskTraining(**({"network": frozen, "learning_rate": 0.7} | course))
    return training_of(frozen.model, made, SIZES, mixed=True, epochs=3, strategy=strategy)


def by_autograd(training: LocalTraining, theta: Tensor, client: int, number: int) -> Tensor:
    """One client with torch's own optimisers; the mask passes its gradient by the usual detach trick."""
    course = training.course
    assert isinstance(course, MaskTraining)
    scores = torch.logit(theta.clamp(course.edge, 1 - course.edge)).requires_grad_()
    rate = course.learning_rate * course.learning_rate_decay**number
    optimiser = (
        torch.optim.Adam([scores], lr=rate)
        if course.optimizer == "adam"
        else torch.optim.SGD([scores], lr=rate, momentum=course.momentum)
    )
    coins, uniforms = SEEDS.tensors("local.coins", number, client), torch.empty_like(theta)
    drawn = list(batches(training, client, number=number, seeds=SEEDS))
    for inputs, labels in drawn:
        p = torch.sigmoid(scores)
        if course.forward == "coins":
            coins.fill_uniform(uniforms)
            mask = uniforms.lt(p).float()
        else:
            mask = p.ge(0.5).float() if course.forward == "threshold" else p.detach()
        passed = p * p.detach() - (p * p.detach()).detach() if course.gradient == "published" else p - p.detach()
        logits = training.model.forward(course.network.weights(mask + passed), inputs)
        optimiser.zero_grad()
        cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return torch.sigmoid(scores).detach() - theta if drawn else torch.zeros_like(theta)


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize(
    "course",
    [
        {},
        {"momentum": 0.5},
        {"optimizer": "adam", "learning_rate": 0.05},
        {"gradient": "published"},
        {"forward": "threshold"},
        {"forward": "mean"},
        {"edge": 0.2, "learning_rate_decay": 0.5},
    ],
    ids=str,
)
def test_moves_equal_autograd(strategy: str, course: dict[str, Any]) -> None:
    training = trainer(network(), strategy, **course)
    theta = training.course.network.initial  # type: ignore[attr-defined]
    moves = training.train(theta, CLIENTS, number=2, seeds=SEEDS)
    expected = torch.stack([by_autograd(training, theta, int(client), 2) for client in CLIENTS])
    torch.testing.assert_close(moves, expected, rtol=1e-3, atol=2e-5)
    assert expected[0].abs().max() > 0.01
    assert not moves[1].any()


def test_the_published_gradient_is_another() -> None:
    """The planted fault of the pair above: an extra factor theta changes the moves."""
    training = trainer(network())
    theta = training.course.network.initial  # type: ignore[attr-defined]
    published = trainer(network(), gradient="published")
    plain, other = (t.train(theta, CLIENTS, number=0, seeds=SEEDS) for t in (training, published))
    assert (plain - other).abs().max() > 0.01


def test_probabilities_at_the_ends_are_clipped_before_the_logit() -> None:
    training = trainer(network(), edge=0.01)
    theta = torch.zeros(training.course.size)
    theta[::2] = 1.0
    moves = training.train(theta, CLIENTS, number=0, seeds=SEEDS)
    assert moves.isfinite().all()
    assert ((theta + moves)[0] > 0).all()
    assert ((theta + moves)[0] < 1).all()


@pytest.mark.parametrize("constant", ["kaiming", "published"])
def test_constants_are_signed_and_follow_the_fan_in(constant: str) -> None:
    frozen = network(constant=constant)
    factor = 2**0.5 if constant == "kaiming" else np.e
    weights, biases = frozen.constants[:30], frozen.constants[30:35]
    for block, fan_in in ((weights, 6), (biases, 6), (frozen.constants[35:55], 5)):
        torch.testing.assert_close(block.abs(), torch.full_like(block, factor / fan_in**0.5))
    big = freeze(FlatModel(partial(mlp, (100,), 10, hidden=(50,))), SEEDS)
    assert abs(float(big.constants.sign().mean())) < 4 / big.size**0.5  # a fair coin misses it once in 16,000 seeds
    assert not torch.equal(big.constants, freeze(big.model, Seeds(root=12)).constants)


def test_one_size_in_all_layers_leaves_the_network_as_large() -> None:
    """Without biases a network of ReLUs is homogeneous in each layer: only the product of the sizes counts."""
    wide = FlatModel(partial(mlp, (100,), 10, hidden=(50, 7)))
    even = freeze(wide, SEEDS, constant="even", biases="absent")
    kaiming = freeze(wide, SEEDS, biases="absent")
    assert len(even.constants[even.masked].abs().unique()) == 1
    assert torch.equal(even.constants.sign(), kaiming.constants.sign())
    inputs = torch.randn(20, 100, generator=torch.Generator().manual_seed(3))
    outputs = [wide.forward(frozen.weights(torch.ones(frozen.size)), inputs) for frozen in (even, kaiming)]
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-6)


def test_absent_biases_are_neither_masked_nor_used() -> None:
    frozen = network(biases="absent")
    assert frozen.size == 30 + 20
    weights = frozen.weights(torch.ones(2, frozen.size))
    assert weights.shape == (2, 59)
    assert not weights[:, 30:35].any()
    assert not weights[:, 55:].any()
    assert trainer(frozen).train(frozen.initial, CLIENTS, number=0, seeds=SEEDS).shape == (4, 50)


def test_initial_probabilities_are_the_sigmoid_of_normals() -> None:
    big = freeze(FlatModel(partial(mlp, (100,), 10, hidden=(90,))), SEEDS, spread=1.5)
    scores = torch.logit(big.initial.double())
    assert abs(float(scores.mean())) < 5 * 1.5 / big.size**0.5
    assert abs(float(scores.std()) - 1.5) < 0.05
    assert (freeze(big.model, SEEDS, spread=0.0).initial == 0.5).all()


@pytest.mark.parametrize("steps", [1, 3, 12, 60])
def test_no_gradients_carry_adam_further_than_its_bound(steps: int) -> None:
    """Compare with torch's own Adam; increasing gradients, the worst for each step, come close."""
    draw = torch.Generator().manual_seed(3)
    slopes = torch.cat([torch.randn(200, steps, generator=draw).exp(), 1.11 ** torch.arange(steps).expand(1, -1)])
    entry = torch.zeros(len(slopes), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([entry], lr=1.0)
    for slope in slopes.double().T:
        entry.grad = slope
        optimiser.step()
    furthest = float(entry.detach().abs().max())
    assert furthest <= longest_way(steps) <= 1.05 * furthest


def test_the_bound_of_more_steps_than_are_summed_is_above_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, seven = longest_way(5000), longest_way(10**15) / 10**15
    monkeypatch.setattr("dpfed.clients.optimisers._MOST_STEPS", 1000)
    assert whole < longest_way(5000) < 5000 * seven < 5000 * 7.28


THRESHOLD: dict[str, Any] = {"learning_rate": 0.1, "optimizer": "adam", "forward": "threshold"}


@pytest.mark.parametrize(
    ("edge", "masks", "steps", "words"),
    [
        (0.2, None, 12, "starts 1.39 from 0 (mask.edge=0.2): no client can flip it"),
        (0.2, None, 15, None),
        (0.4, None, 3, "starts 0.405 from 0 (mask.edge=0.4)"),
        (0.4, None, 5, None),
        (0.2, 5, 3, "by at most 0.301, and after round 1 every score starts 0.405 or further from 0"),
        (0.2, 5, 4, "no client can flip an entry of its mask in any later round"),
        (0.2, 5, 5, "an entry at the end of its range"),
        (0.2, 7, 3, "an entry at the end of its range"),
        (0.2, 1, 12, "every score starts 1.39 or further"),
        (0.2, 1, 15, None),
    ],
)
def test_masks_that_cannot_move_are_named(edge: float, masks: int | None, steps: int, words: str | None) -> None:
    """An entry is pushed by the worst gradients, in torch's own Adam, from where the warning says that it starts."""
    course = MaskTraining(network=network(), edge=edge, **THRESHOLD)
    found = course.standstill(steps, rounds=9, masks=masks)
    assert (words is None and found is None) or (words is not None and found is not None and words in found)
    every = found is not None and "any later round" in found
    start = min(1 - edge, (masks + 1) / 2 / masks) if every and masks else 1 - edge
    entry = torch.logit(torch.tensor([start])).double().requires_grad_()
    optimiser = torch.optim.Adam([entry], lr=0.1)
    for step in range(steps):
        entry.grad = torch.full((1,), 1.11**step, dtype=torch.float64)
        optimiser.step()
    assert not (found and entry < 0)


def test_masks_without_a_bound_are_not_named() -> None:
    course = MaskTraining(network=network(), **THRESHOLD)
    assert course.standstill(1, rounds=9)
    assert replace(course, forward="coins").standstill(1, rounds=9) is None
    assert replace(course, optimizer="sgd").standstill(1, rounds=9) is None
    assert replace(course, learning_rate_decay=3.0).standstill(1, rounds=9) is None  # .1 3^8 in the last round
    assert replace(course, learning_rate_decay=3.0).standstill(1, rounds=4)
    assert replace(course, learning_rate_decay=3.0).standstill(1, rounds=10_000) is None
    assert course.standstill(1, rounds=10**15) is None
