"""Losses other than cross-entropy: against plain torch loops, by every way to train, with targets of any kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from local_training import batches, descend, training_of
from refusals import refused
from torch import Tensor, nn

from dpfed.clients import LocalTraining, Sgd
from dpfed.clients.losses import LOSSES, OWN, check_loss, custom_loss, loss_named, register
from dpfed.clients.masks import MaskTraining
from dpfed.clients.task import Course
from dpfed.data import Partition
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import GaussianRecords, gaussian_noise
from dpfed.models.flat import FlatModel
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

from .test_records import by_autograd
from .test_strategies import course

SEEDS = Seeds(root=5)
SIZES = [12, 0, 7, 5, 1, 23]
CLIENTS, COUNT = np.arange(len(SIZES)), sum(SIZES)
RATE = 0.05


def pinball(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of the quantile 0.8: a loss that torch does not have."""
    error = targets - outputs
    return torch.maximum(0.8 * error, -0.2 * error).mean(dim=1)


def centred(outputs: Tensor, targets: Tensor) -> Tensor:
    """Planted: a sample's loss depends on the others of its batch."""
    return ((outputs - outputs.mean(dim=0) - targets) ** 2).mean(dim=1)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def letters() -> nn.Module:
    """Logits [b, 4, 5] of four classes at each of five places."""
    return nn.Sequential(nn.Linear(6, 20), nn.Unflatten(1, (4, 5)))


def inputs_and_targets(kind: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(COUNT, 6, generator=generator)
    numbers = torch.randn(COUNT, 3, generator=generator)
    if kind == "places":
        return inputs, torch.randint(4, (COUNT, 5), generator=generator)
    return inputs, numbers > 0 if kind == "truths" else numbers


def trainer(loss: Any, *, kind: str = "numbers", course: Course | None = None, **changes: Any) -> LocalTraining:
    model = FlatModel(letters if kind == "places" else network)
    inputs, targets = inputs_and_targets(kind)
    given = {"inputs": inputs, "labels": targets, "loss": loss if not callable(loss) else custom_loss(loss)} | changes
    course = course or Sgd(size=model.size, learning_rate=RATE, momentum=0.5)
    return training_of(given.pop("model", model), course, SIZES, **given)


def by_torch(training: LocalTraining, weights: Tensor, client: int, loss: Callable[..., Tensor]) -> Tensor:
    """One client's update by torch.optim on an ordinary module and a mean over its batch, whatever its shape."""
    room = weights.clone()
    module = training.model.bind(room)
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.5)
    descend(module, optimiser, batches(training, client, number=1, seeds=SEEDS), loss)
    return room - weights


PLAIN: list[tuple[Any, str, Callable[..., Tensor]]] = [
    (pinball, "numbers", pinball),
    (LOSSES["mse"], "numbers", lambda outputs, targets: (outputs - targets) ** 2),
    (LOSSES["l1"], "numbers", lambda outputs, targets: (outputs - targets).abs()),
    (LOSSES["huber"], "numbers", nn.HuberLoss()),
    (LOSSES["binary-cross-entropy"], "truths", lambda o, t: -torch.where(t, o.sigmoid().log(), (-o).sigmoid().log())),
    (LOSSES["cross-entropy"], "places", nn.CrossEntropyLoss()),
]


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize(("loss", "kind", "plain"), PLAIN, ids=["own", "mse", "l1", "huber", "bce", "sequences"])
def test_moves_are_those_of_a_torch_loop(loss: Any, kind: str, plain: Callable[..., Tensor], strategy: str) -> None:
    training = trainer(loss, kind=kind, strategy=strategy)
    weights = training.model.initial(0)
    moves = training.train(weights, CLIENTS, number=1, seeds=SEEDS)
    for client, move in enumerate(moves):
        torch.testing.assert_close(move, by_torch(training, weights, client, plain), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["masks", "masked noise", "pruned"])
def test_every_course_follows_an_own_loss_alike_in_a_loop_and_side_by_side(name: str) -> None:
    chosen = course(name, FlatModel(network))
    one, other = (trainer(pinball, course=chosen, strategy=strategy) for strategy in ("loop", "vmap"))
    start = chosen.network.initial if isinstance(chosen, MaskTraining) else one.model.initial(0)
    plain = one.train(start, CLIENTS, number=1, seeds=SEEDS)
    assert plain.abs().sum(dim=1).count_nonzero() == len(SIZES) - 1
    torch.testing.assert_close(other.train(start, CLIENTS, number=1, seeds=SEEDS), plain, rtol=2e-3, atol=2e-5)


def record_slopes(loss: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    """What each of two batches, equal but for their last record, says of the records: [4, d] each."""
    from dpfed.clients.records import RecordGradients

    model, (inputs, targets) = FlatModel(network), inputs_and_targets("numbers")
    gradients = RecordGradients(model.bind(model.initial(0)), loss=custom_loss(loss))
    batches = [torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, 9])]
    return [gradients(inputs[rows], targets[rows]) for rows in batches]


def test_a_private_record_has_no_part_in_the_gradient_of_another_whatever_the_loss_mixes() -> None:
    for loss in (pinball, centred):
        one, other = record_slopes(loss)
        assert torch.equal(one[:3], other[:3])
    assert not torch.equal(*(slopes[3] for slopes in record_slopes(pinball)))


def test_private_records_follow_an_own_loss_record_by_record() -> None:
    record = GaussianRecords(clip_norm=0.5, noise=gaussian_noise(1e-9), randomness=Simulated(seeds=SEEDS))
    training = trainer(pinball, record=record, course=Sgd(size=FlatModel(network).size, learning_rate=RATE))
    weights = training.model.initial(0)
    found = training.train(weights, np.array([2]), number=1, seeds=SEEDS)[0]
    expected, _ = by_autograd(training, weights, 2, 1, pinball)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_client_has_no_part_in_the_gradient_of_another_side_by_side() -> None:
    """Full batches, so that padding says nothing: even a loss that mixes a batch keeps clients apart."""
    changes: dict[str, Any] = {
        "strategy": "vmap", "batch_size": 4, "epochs": 1,
        "partition": Partition(indices=np.arange(24), offsets=np.array([0, 8, 16, 24])),
    }  # fmt: skip
    training = trainer(centred, **changes)
    weights = training.model.initial(0)
    together = training.train(weights, np.arange(3), number=1, seeds=SEEDS)
    for client in range(3):
        alone = training.train(weights, np.array([client]), number=1, seeds=SEEDS)[0]
        torch.testing.assert_close(together[client], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "complaint"),
    [
        (centred, "depends on the other samples of its batch"),
        (lambda outputs, targets: ((outputs - targets) ** 2).mean(), r"one floating number per sample, \[4\]"),
        (lambda outputs, targets: (outputs - targets) ** 2, r"float32 \[4, 3\] for 4 samples.*reduction='none'"),
        (lambda outputs, targets: (outputs.detach() - targets).mean(dim=1), "no gradient"),
        (lambda outputs, targets: (outputs - targets.nothing).mean(dim=1), "fails for outputs float32.*AttributeError"),
        (lambda outputs, targets: outputs.mean(dim=1) if outputs[0, 0].item() > 0 else outputs[:, 0], "other samples"),
        (lambda outputs, targets: 3.0, "gives float for 4 samples"),
    ],
)  # fmt: skip
def test_a_function_that_is_no_loss_is_refused(loss: Any, complaint: str) -> None:
    outputs, targets = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), torch.zeros(4, 3)
    refused(ConfigError, complaint, lambda: check_loss(custom_loss(loss), outputs, targets))
    check_loss(custom_loss(pinball), outputs, targets)


def test_outputs_of_one_number_are_not_compared_with_all_targets() -> None:
    outputs, targets = torch.randn(4, 1), torch.randn(4)
    torch.testing.assert_close(LOSSES["mse"].each(outputs, targets), (outputs[:, 0] - targets) ** 2)
    refused(ConfigError, "fails for outputs", check_loss, LOSSES["mse"], torch.randn(4, 2), targets)


def test_losses_are_known_by_name() -> None:
    refused(ConfigError, "Did you mean 'mse'", loss_named, "mze")
    refused(ConfigError, "was given in Python", loss_named, OWN)
    for taken in ("mse", OWN):
        refused(ConfigError, "is the name of", register, taken, pinball)
    register("pinball of a test", pinball)
    assert loss_named("pinball of a test").each is pinball
