"""Local SGD, Adam and AdamW are torch.optim's, and schedules over rounds are torch.optim.lr_scheduler's."""

from typing import Any

import numpy as np
import pytest
import torch
from local_training import batches, descend, training_of
from refusals import refused
from torch import Tensor, nn

from dpfed.clients import LocalTraining, Sgd
from dpfed.clients.masks import MaskTraining
from dpfed.clients.optimisers import (
    Adam,
    PrunedSgd,
    Schedule,
    cosine,
    factors_by_round,
    learning_rate_of_round,
    linear,
    step,
)
from dpfed.clients.task import Course
from dpfed.errors import ConfigError, RunError
from dpfed.models.flat import FlatModel
from dpfed.models.frozen import freeze
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

SEEDS = Seeds(root=5)
SIZES = [12, 0, 8, 5, 23]
CLIENTS, COUNT, RATE = np.arange(len(SIZES)), sum(SIZES), 0.02


def normalised() -> nn.Module:
    """Without a bias before the norm: its gradient is rounding alone, and Adam would scale it up."""
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))


def trainer(name: str, **changes: Any) -> LocalTraining:
    model = FlatModel(normalised)
    options = {"size": model.size, "learning_rate": RATE, "weight_decay": 0.5, "decayed": model.parameters_size}
    made: dict[str, Course] = {
        "plain": Sgd(size=model.size, learning_rate=RATE),
        "sgd": Sgd(**options, momentum=0.5),
        "adam": Adam(**options),
        "adamw": Adam(**options, decoupled=True),
    }
    given = {"model": model, "course": made[name], "epochs": 3, "batch_size": 6} | changes
    return training_of(sizes=SIZES, **given)


def by_torch(training: LocalTraining, weights: Tensor, client: int, course: str) -> Tensor:
    room = weights.clone()
    module = training.model.bind(room)
    kinds: dict[str, Any] = {
        "plain": lambda these: torch.optim.SGD(these, lr=RATE),
        "sgd": lambda these: torch.optim.SGD(these, lr=RATE, momentum=0.5, weight_decay=0.5),
        "adam": lambda these: torch.optim.Adam(these, lr=RATE, weight_decay=0.5),
        "adamw": lambda these: torch.optim.AdamW(these, lr=RATE, weight_decay=0.5),
    }
    descend(module, kinds[course](module.parameters()), batches(training, client, number=1, seeds=SEEDS))
    return room - weights


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("course", ["plain", "sgd", "adam", "adamw"])
def test_steps_are_those_of_torch_and_statistics_do_not_decay(course: str, strategy: str) -> None:
    training = trainer(course, strategy=strategy)
    weights = training.model.initial(0)
    weights[training.model.parameters_size :] += 0.5
    moves = training.train(weights, CLIENTS, number=1, seeds=SEEDS)
    for client, move in enumerate(moves):
        torch.testing.assert_close(move, by_torch(training, weights, client, course), rtol=2e-3, atol=2e-5)
    assert not torch.allclose(moves[0], by_torch(training, weights, 0, "adam" if course != "adam" else "adamw"), 1e-2)


def test_pruned_clients_may_take_adam_and_keep_their_zeros() -> None:
    model = FlatModel(lambda: nn.Linear(6, 4))
    adam = Adam(size=model.size, learning_rate=RATE, weight_decay=0.5, decoupled=True)
    training = trainer("adam", model=model, course=PrunedSgd(sgd=adam, prunable=model.indices("weight")))
    weights = model.initial(0)
    weights[::3] = 0
    moves = training.train(weights, CLIENTS, number=0, seeds=SEEDS)
    assert not (weights + moves)[:, :24:3].any()
    assert moves[0, 1::3].abs().min() > 0


SCHEDULES: list[tuple[Schedule, Any]] = [
    (cosine(10), lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10)),
    (linear(10), lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=10)),
    (step(3, 0.5), lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.5)),
    (
        factors_by_round([0.1, 0.5, 1.0, 1.0, 0.2]),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: [0.1, 0.5, 1.0, 1.0, 0.2][min(t, 4)]),
    ),
]


@pytest.mark.parametrize(("schedule", "peer"), SCHEDULES, ids=["cosine", "linear", "step", "list"])
def test_schedules_are_those_of_torch(schedule: Schedule, peer: Any) -> None:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3)
    following = peer(optimiser)
    for number in range(10):
        rate = learning_rate_of_round(Sgd(size=1, learning_rate=0.3, schedule=schedule), number)
        assert rate == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9)
        optimiser.step()
        following.step()


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(
    "settings",
    [
        ["local.optimizer=adamw", "local.weight_decay=0.1", "local.schedule=cosine", "local.learning_rate=0.01"],
        ["local.optimizer=adam", "local.schedule=[0.5, 1.0]", "local.learning_rate=0.01"],
        ["local.schedule=step", "local.schedule_rounds=2", "local.learning_rate_decay=0.5", "local.weight_decay=0.01"],
    ],
)
def test_a_run_takes_them_from_its_configuration(tiny_config: Any, tmp_path: Any, settings: list[str]) -> None:
    experiment = build(tiny_config(*settings))
    course, config = experiment.method.clients.course, experiment.config
    assert isinstance(course, Adam if config.local.optimizer != "sgd" else Sgd)
    factors = {"cosine": [1.0, 0.75, 0.25], "step": [1.0, 1.0, 0.5]}
    expected = factors.get(config.local.schedule, [0.5, 1.0, 1.0]) if isinstance(config.local.schedule, str) else None
    rates = [learning_rate_of_round(course, number) / config.local.learning_rate for number in range(3)]
    assert rates == pytest.approx(expected or [0.5, 1.0, 1.0])
    assert federation.run(experiment, tmp_path / "run").summary["rounds"] == 3


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["local.schedule=step"], "local.schedule='step' needs it"),
        (["local.schedule=cosine", "local.learning_rate_decay=0.9"], "is for constant, step"),
        (["local.schedule_rounds=3"], "is for step"),
        (["local.schedule=cosin"], "schedule"),
        (["local.schedule=[]"], "schedule"),
        (["local.optimizer=adam", "local.momentum=0.5"], "local.optimizer='sgd'"),
        (["method.name=fedmrn", "local.optimizer=adam"], "plain SGD"),
        (["local.weight_decay=-1"], "weight_decay"),
    ],
)
def test_what_means_nothing_is_refused(tiny_config: Any, settings: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build(tiny_config(*settings, without=["privacy"] if "method.name=fedmrn" in settings else []))


def test_masks_take_adam_and_no_weight_decay(tiny_config: Any) -> None:
    model = FlatModel(lambda: nn.Linear(6, 4))
    masks = MaskTraining(network=freeze(model, SEEDS), learning_rate=0.1, optimizer="adam", schedule=cosine(4))
    assert learning_rate_of_round(masks, 2) == pytest.approx(0.05)
    for settings in (["local.optimizer=adamw"], ["local.weight_decay=0.1"]):
        refused(ConfigError, "masks' scores", build, tiny_config("method.name=fedpm", *settings, without=["privacy"]))


def test_a_schedule_that_ends_with_the_run_keeps_it_from_being_prolonged(tiny_config: Any, tmp_path: Any) -> None:
    federation.run(build(tiny_config("local.schedule=cosine")), tmp_path / "run")
    longer = build(tiny_config("local.schedule=cosine", "federation.rounds=5"))
    refused(RunError, "ends with the last round", federation.run, longer, tmp_path / "run", resume=True)
