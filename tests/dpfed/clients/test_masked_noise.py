"""FedMRN's training against one client with autograd on an ordinary module; its coins, switches and refusals."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from local_training import batches, training_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpfed.clients import LocalTraining, Sgd
from dpfed.clients.masks import MaskedNoise, noise_seeds
from dpfed.clients.task import RoundStart
from dpfed.compress.mask_schemes import FedMrn, FedMrnSigned, random_noise
from dpfed.errors import ConfigError
from dpfed.models import FlatModel
from dpfed.seeds import Seeds

SEEDS = Seeds(root=11)
SIZES = [12, 0, 7, 5, 13]
CLIENTS = np.arange(len(SIZES))
ALPHA = 0.05


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4, bias=False))


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))


def trainer(factory: Any = normalised, strategy: str = "loop", noise: str = "uniform", **course: Any) -> LocalTraining:
    model = FlatModel(factory)
    drawn = partial(random_noise, noise=noise, alpha=ALPHA)
    options = {"size": model.size, "masked": model.compressible, "noise": drawn, "learning_rate": 0.5} | course
    return training_of(model, MaskedNoise(**options), SIZES, mixed=True, epochs=3, strategy=strategy)


def by_autograd(training: LocalTraining, weights: Tensor, client: int, factory: Any, fault: str = "") -> Tensor:
    """One client in round 2: u and the dense parameters are leaves of torch's SGD, u_hat is built by detaching."""
    course, model = training.course, training.model
    assert isinstance(course, MaskedNoise)
    path = (2,) if course.shared_noise else (2, client)
    word = SEEDS.integer("fedmrn.noise", *(path if fault != "noise of another" else (2, client + 1)))
    n = course.noise(torch.tensor([word]), count=len(course.masked))[0]
    u = torch.zeros_like(n, requires_grad=True)
    dense = weights.clone()
    dense.requires_grad_()
    optimiser = torch.optim.SGD([u, dense], lr=course.learning_rate * course.learning_rate_decay**2,
                                momentum=course.momentum)  # fmt: skip
    statistics = {b.name: weights[b.start : b.stop].clone() for b in model.layout if b.kind == "statistic"}
    module, coins = factory(), SEEDS.tensors("local.masked_noise", 2, client)
    drawn = list(batches(training, client, number=2, seeds=SEEDS))
    total = len(drawn)

    def certain() -> Tensor:
        return torch.where(u * n > 0, 1.0, -1.0 if course.signed else 0.0) * n

    for step, (inputs, labels) in enumerate(drawn):
        progress = (step + (fault != "progress from 0")) / total if course.progressive else 1.0
        v = torch.empty(len(n))
        coins.fill_uniform(v)
        low = -1.0 if course.signed else 0.0
        chance = ((u / n - low) / (1 - low)).clamp(0, 1)
        masked = torch.where(v < progress * chance, 1.0, low) * n if course.stochastic else certain()
        limit = n.abs()
        clipped = torch.maximum(torch.minimum(u, limit if course.signed else n.clamp(min=0)),
                                -limit if course.signed else n.clamp(max=0))  # fmt: skip
        seen = torch.where(v < progress, masked, clipped)
        if not course.train_masked:
            seen = u
        elif fault != "gradient of the clip":
            seen = u + (seen - u).detach()
        full = torch.index_put(dense, (course.masked,), weights[course.masked] + seen)
        state = {b.name: full[b.start : b.stop].view(b.shape) for b in model.layout} | statistics
        optimiser.zero_grad()
        cross_entropy(functional_call(module, state, (inputs,)), labels).backward()
        optimiser.step()
        if fault == "u clamped":
            with torch.no_grad():
                u.clamp_(-limit, limit)
    end = dense.detach().clone()
    for block in model.layout:
        if block.kind == "statistic":
            end[block.start : block.stop] = statistics[block.name]
    move = end - weights
    move[course.masked] = u.detach() if course.stochastic or not total else certain().detach()
    return move


@pytest.mark.slow_but_one_in(7)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("factory", [normalised, plain])
@pytest.mark.parametrize(
    "course",
    [
        {},
        {"signed": True},
        {"noise": "gaussian", "momentum": 0.5, "learning_rate_decay": 0.7},
        {"noise": "bernoulli", "signed": True, "shared_noise": True},
        {"progressive": False},
        {"stochastic": False},
        {"stochastic": False, "signed": True, "progressive": False},
        {"train_masked": False},
    ],
    ids=str,
)
def test_moves_equal_autograd(strategy: str, factory: Any, course: dict[str, Any]) -> None:
    training = trainer(factory, strategy, **course)
    weights = training.model.initial(0)
    moves = training.train(weights, CLIENTS, number=2, seeds=SEEDS)
    expected = torch.stack([by_autograd(training, weights, int(client), factory) for client in CLIENTS])
    torch.testing.assert_close(moves, expected, rtol=1e-3, atol=1e-5)
    assert expected[0].abs().max() > 0.01
    assert moves.any(dim=1).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("fault", ["noise of another", "progress from 0", "gradient of the clip", "u clamped"])
def test_planted_faults_are_seen(fault: str) -> None:
    training = trainer(plain)
    weights = training.model.initial(0)
    move = training.train(weights, CLIENTS[:1], number=2, seeds=SEEDS)[0]
    torch.testing.assert_close(move, by_autograd(training, weights, 0, plain), rtol=1e-3, atol=1e-5)
    assert (move - by_autograd(training, weights, 0, plain, fault)).abs().max() > 1e-3


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("signed", [False, True])
def test_what_a_batch_sees_has_the_law_of_progressive_stochastic_masking(signed: bool) -> None:
    """Batch 2 of 8, u / n from -1.4 to 1.4: the clip with probability 3/4, else 1 or low as u asks for."""
    clients, count, share = 5_000, 8, 0.25
    course = MaskedNoise(
        size=count, masked=torch.arange(count), noise=partial(random_noise, noise="uniform", alpha=1.0),
        learning_rate=1.0, signed=signed, shared_noise=True,
    )  # fmt: skip
    steps = np.full(clients, 8, dtype=np.int64)
    walk = course.begin(
        RoundStart(broadcast=torch.zeros(count), clients=np.arange(clients), steps=steps, number=0, seeds=SEEDS)
    )
    n = course.noise(torch.tensor([SEEDS.integer("fedmrn.noise", 0)]), count=count)[0]
    ratio = torch.linspace(-1.4, 1.4, count)
    walk.place_weights(clients, 0)
    walk.step(clients, 0, (-ratio * n).repeat(clients, 1))
    walk.place_weights(clients, 1)
    seen = walk.weights / n
    low = -1.0 if signed else 0.0
    clipped = ratio.clamp(low, 1.0)
    chance = (clipped - low) / (1 - low)
    inside = (ratio > low) & (ratio < 1)
    for j in range(count):
        ones = float((seen[:, j] - 1).abs().lt(1e-5).float().mean())
        kept = float((seen[:, j] - clipped[j]).abs().lt(1e-5).float().mean())
        assert ones == pytest.approx(float(share * chance[j] if inside[j] else ratio[j] > 0), abs=0.026)
        assert kept == pytest.approx(1 - share if inside[j] else 1.0, abs=0.026)
    torch.testing.assert_close(seen.mean(dim=0), clipped, rtol=0, atol=0.04)


@pytest.mark.parametrize("scheme", [FedMrn(alpha=ALPHA), FedMrnSigned(alpha=ALPHA)])
@pytest.mark.parametrize("train_masked", [True, False])
def test_deterministic_masks_pass_the_code_unchanged(scheme: FedMrn | FedMrnSigned, train_masked: bool) -> None:
    """Training and code draw one noise from one seed; with that of another client the code would garble it."""
    training = trainer(signed=scheme.name == "fedmrns", stochastic=False, train_masked=train_masked)
    clients = CLIENTS[CLIENTS != 1]
    moves = training.train(training.model.initial(0), clients, number=3, seeds=SEEDS)[:, training.model.compressible]
    words = noise_seeds(SEEDS, 3, clients, shared=False)
    assert torch.equal(scheme.decode(scheme.encode(moves, seed=words)), moves)
    assert not torch.equal(scheme.decode(scheme.encode(moves, seed=words[::-1])), moves)
    assert moves.abs().max() > 0.8 * ALPHA


def test_shared_noise_is_that_of_the_codes_shared_seed() -> None:
    training = trainer(stochastic=False, shared_noise=True)
    (word,) = noise_seeds(SEEDS, 3, CLIENTS, shared=True)
    moves = training.train(training.model.initial(0), CLIENTS, number=3, seeds=SEEDS)[:, training.model.compressible]
    scheme = FedMrn(alpha=ALPHA, shared_seed=word)
    assert torch.equal(scheme.decode(scheme.encode(moves, seed=5)), moves)


def test_masking_after_training_trains_as_sgd() -> None:
    training = trainer(train_masked=False, momentum=0.5)
    weights = training.model.initial(0)
    sgd = replace(training, course=Sgd(size=training.model.size, learning_rate=0.5, momentum=0.5))
    moves, expected = (one.train(weights, CLIENTS, number=0, seeds=SEEDS) for one in (training, sgd))
    torch.testing.assert_close(moves, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("course", [{}, {"stochastic": False}], ids=str)
def test_a_diverging_client_shows_it_and_is_not_taken_for_idle(course: dict[str, Any]) -> None:
    training = trainer(plain, **course)
    inputs = training.inputs.clone()
    inputs[training.partition.of(2)[0]] = float("nan")
    moves = replace(training, inputs=inputs).train(training.model.initial(0), CLIENTS, number=0, seeds=SEEDS)
    assert moves.isfinite().all(dim=1).tolist() == [True, True, False, True, True]
    assert moves.any(dim=1).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"masked": torch.empty(0, dtype=torch.int64)}, "masked: 0 entries"),
        ({"masked": torch.tensor([0, 70])}, r"0\.\.69"),
    ],
)
def test_values_that_cannot_work_are_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        trainer(**changes)
