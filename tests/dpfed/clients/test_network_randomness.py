"""What a network draws while it trains: each client's own, repeatable, of the right law, and off in evaluation."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from local_training import training_of
from scipy.stats import chi2, kstest
from torch import Tensor, nn
from torch.nn import functional

from dpfed.clients import LocalTraining, Sgd
from dpfed.clients.network_randomness import ClientRandomness
from dpfed.errors import ConfigError, TrainingFailed
from dpfed.mechanisms.records import GaussianRecords, gaussian_noise
from dpfed.models import register
from dpfed.models.flat import FlatModel
from dpfed.randomness import Simulated
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

from ...rounds import stopped_run

SEEDS = Seeds(root=5)
SIZES = [12, 0, 7, 5, 1, 23]
CLIENTS, COUNT = np.arange(len(SIZES)), sum(SIZES)


class Attends(nn.Module):
    """Attention with dropout inside, normal noise, and dropout by function."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(2, 8), nn.Linear(8, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        steps = self.enter(inputs.unflatten(1, (3, 2)))[:, None]
        dropped = 0.3 if self.training else 0.0
        seen = functional.scaled_dot_product_attention(steps, steps, steps, dropout_p=dropped)[:, 0].mean(dim=1)
        if self.training:
            seen = seen + 0.1 * torch.randn_like(seen) * torch.rand(8)
        outputs: Tensor = self.leave(functional.dropout(seen, 0.2, self.training))
        return outputs


def layers() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 8), nn.Dropout(0.2), nn.Linear(8, 4)
    )


NETWORKS: list[Callable[[], nn.Module]] = [layers, Attends]


def trainer(factory: Callable[[], nn.Module], **changes: Any) -> LocalTraining:
    model = FlatModel(factory)
    return training_of(model, Sgd(size=model.size, learning_rate=0.1, momentum=0.5), SIZES, **changes)


def moves(training: LocalTraining, clients: Any = CLIENTS, number: int = 1, seeds: Seeds = SEEDS) -> Tensor:
    return training.train(training.model.initial(0), clients, number=number, seeds=seeds)


@pytest.mark.parametrize("factory", NETWORKS)
def test_a_client_draws_the_same_in_a_loop_side_by_side_and_whoever_else_trains(factory: Any) -> None:
    plain = moves(trainer(factory, strategy="loop"))
    assert torch.equal(moves(trainer(factory, strategy="loop")), plain)
    for chunk in (1, 4):
        torch.testing.assert_close(moves(trainer(factory, strategy="vmap", chunk=chunk)), plain, rtol=2e-3, atol=2e-5)
    alone = torch.cat([moves(trainer(factory, strategy="loop"), np.array([client])) for client in CLIENTS])
    assert torch.equal(alone, plain)
    without = moves(trainer(lambda: still(factory()), strategy="loop"))
    assert (plain - without).norm() > 0.1 * without.norm()


def still(module: nn.Module) -> nn.Module:
    """The same without any dropout: parts in eval(), in a module that trains."""
    whole = nn.Sequential(module.eval())
    return whole.train() if not whole.training else whole


def test_parts_that_are_made_in_eval_stay_so_and_a_whole_module_does_not() -> None:
    def resting() -> nn.Module:
        made = layers()
        made[2].eval()
        made[4].eval()
        return made

    plain = moves(trainer(lambda: nn.Sequential(*[part for part in layers() if not isinstance(part, nn.Dropout)])))
    torch.testing.assert_close(moves(trainer(resting)), plain, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(moves(trainer(lambda: layers().eval())), moves(trainer(layers)), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_torchs_generator_has_no_part_in_it(strategy: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = moves(trainer(Attends, strategy=strategy))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(moves(trainer(Attends, strategy=strategy)), first)
    assert not torch.equal(moves(trainer(Attends, strategy=strategy), seeds=Seeds(root=6)), first)
    assert not torch.equal(moves(trainer(Attends, strategy=strategy), number=2), first)


def test_evaluation_draws_nothing() -> None:
    training = trainer(layers)
    weights, module = training.model.initial(0), layers().eval()
    module.load_state_dict({b.name: weights[b.start : b.stop].view(b.shape) for b in training.model.layout})
    torch.testing.assert_close(training.model.forward(weights, training.inputs), module(training.inputs))


LAWS: list[tuple[str, Callable[[Tensor], Tensor], Any]] = [
    ("rand_like", torch.rand_like, "uniform"),
    ("rand", lambda like: torch.rand(like.shape), "uniform"),
    ("uniform_", lambda like: torch.empty_like(like).uniform_(2, 5).sub(2).div(3), "uniform"),
    ("randn_like", torch.randn_like, "norm"),
    ("randn", lambda like: torch.randn(like.shape), "norm"),
    ("normal_", lambda like: torch.empty_like(like).normal_(1, 2).sub(1).div(2), "norm"),
    ("normal", lambda like: torch.normal(torch.zeros_like(like), 1.0), "norm"),
    ("exponential_", lambda like: torch.empty_like(like).exponential_(2.0) * 2, "expon"),
]


def within(draw: Callable[[Tensor], Tensor], like: Tensor, **changes: Any) -> Tensor:
    given: dict[str, Any] = {"number": 3, "clients": [7], "step": 0}
    with ClientRandomness(SEEDS, "test", **(given | changes)):
        return draw(like)


@pytest.mark.parametrize(("name", "draw", "law"), LAWS, ids=[name for name, *_ in LAWS])
def test_draws_have_the_law_that_they_are_of(name: str, draw: Any, law: str) -> None:
    """False alarms: 8 tests, 1e-6 each."""
    drawn = within(draw, torch.zeros(20_000)).numpy()
    assert kstest(drawn, law).pvalue > 1e-6
    assert kstest(drawn * 1.1, law).pvalue < 1e-6  # the test sees a scale that is off


def test_coins_fall_with_their_chance_and_integers_are_even() -> None:
    """Chi-squared statistics, false alarms 1e-6 each."""
    like = torch.zeros(40_000)
    for draw, chance in (
        (lambda x: functional.dropout(x + 1, 0.3) > 0, 0.7),
        (lambda x: torch.bernoulli(torch.full_like(x, 0.2)), 0.2),
        (lambda x: torch.empty_like(x).bernoulli_(0.9), 0.9),
        (lambda x: torch.ops.aten.native_dropout(x + 1, 0.25, True)[1], 0.75),
    ):
        heads = float(within(draw, like).double().sum())
        assert (heads - 40_000 * chance) ** 2 / (40_000 * chance * (1 - chance)) < chi2.isf(1e-6, 1)
    counts = torch.bincount(within(lambda x: torch.randint(2, 9, x.shape), like), minlength=9)
    assert not counts[:2].any()
    assert float(((counts[2:] - 40_000 / 7) ** 2 / (40_000 / 7)).sum()) < chi2.isf(1e-6, 6)
    kept, mask = within(lambda x: torch.ops.aten.native_dropout(x + 1, 0.25, True), like)
    torch.testing.assert_close(kept, mask / 0.75)


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def test_clients_rounds_steps_and_layers_draw_independently() -> None:
    """Correlations of 20,000 pairs have a standard deviation of 0.0071; 0.04 is 5.6 of them: 2e-8 each. Planted: the
    same name twice has correlation 1."""
    like = torch.zeros(20_000)
    base = within(torch.randn_like, like)
    for change in ({"clients": [8]}, {"number": 4}, {"step": 1}):
        assert abs(correlation(base, within(torch.randn_like, like, **change))) < 0.04
    assert correlation(base, within(torch.randn_like, like)) == pytest.approx(1)
    with ClientRandomness(SEEDS, "test", number=3, clients=[7, 8], step=0):
        first, second = (torch.randn(2, 20_000) for _ in range(2))
    for one, other in ((first[0], first[1]), (first[0], second[0]), (first[1], second[0])):
        assert abs(correlation(one, other)) < 0.04
    assert torch.equal(first[0], base)


def test_records_are_private_with_dropout_too_and_their_steps_can_be_repeated() -> None:
    record = GaussianRecords(clip_norm=1.0, noise=gaussian_noise(1e-9), randomness=Simulated(seeds=SEEDS))
    private = trainer(layers, record=record)
    found = moves(private)
    assert torch.equal(moves(trainer(layers, record=record)), found)
    assert not torch.allclose(found, moves(trainer(lambda: still(layers()), record=record)), rtol=0.1)


def test_what_cannot_be_seeded_is_refused(tiny_config: Any) -> None:
    class Shuffles(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs[:, torch.randperm(6)])

    class Always(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs.flatten(1)) + torch.rand(10)

    class Rounds(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs + torch.randint_like(inputs, 3))

    with pytest.raises(TrainingFailed, match=r"randperm.*no seed of dpfed controls"):
        moves(trainer(lambda: Shuffles(6, 4), strategy="loop"))
    with pytest.raises(
        TrainingFailed, match=r"randint_like.*Use dropout, torch.rand, randn, rand_like, randn_like, ra"
    ):
        moves(trainer(lambda: Rounds(6, 4), strategy="loop"))
    register("always-random-in-a-test", lambda input_shape, classes: Always(64, classes))
    with pytest.raises(ConfigError, match="in evaluation mode"):
        build(tiny_config("model.name=always-random-in-a-test", without=["model"]))


def test_a_run_with_dropout_is_resumed_to_the_bit(tiny_config: Any, tmp_path: Any) -> None:
    register(
        "dropout-in-a-test",
        lambda input_shape, classes: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.Dropout(), nn.Linear(16, classes)
        ),
    )
    small = ("federation.rounds=2", "federation.cohort=4", "privacy.accountant=rdp")
    config = tiny_config("model.name=dropout-in-a-test", *small, without=["model"])
    whole = federation.run(build(config), tmp_path / "whole")
    stopped_run(build(config), tmp_path / "parts", after=1)
    parts = federation.run(build(config), tmp_path / "parts", resume=True)
    assert parts.metrics == whole.metrics
    assert parts.summary["model_sha256"] == whole.summary["model_sha256"]
