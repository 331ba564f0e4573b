"""Private records: DP-SGD against plain autograd record by record, against Opacus, and its noise and batches."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from local_training import training_of
from refusals import refused
from scipy.stats import binom, chi2
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from accounting import Gaussian, Subsampled
from accounting.errors import InvalidParameter
from dpfed.clients import LocalTraining, Sgd
from dpfed.clients.masks import MaskTraining
from dpfed.clients.optimisers import SgdWalk
from dpfed.clients.records import RecordGradients
from dpfed.clients.schedule import PoissonBatches
from dpfed.clients.task import RoundStart
from dpfed.data import Partition
from dpfed.errors import ConfigError
from dpfed.mechanisms import records
from dpfed.mechanisms.records import GaussianRecords, RecordLevel, gaussian_noise
from dpfed.models import FlatModel, build
from dpfed.models.frozen import freeze
from dpfed.randomness import Randomness, Secure, Simulated
from dpfed.seeds import Seeds

SEEDS = Seeds(root=11)
SIMULATED = Simulated(seeds=SEEDS)
SIZES = [12, 0, 7, 5, 1]
CLIENTS = np.arange(len(SIZES))
TINY = 1e-9
"""A noise multiplier that cannot be seen beside float32."""


def level(clip_norm: float = 1.5, noise_multiplier: float = TINY, randomness: Randomness = SIMULATED) -> RecordLevel:
    return GaussianRecords(clip_norm=clip_norm, noise=gaussian_noise(noise_multiplier), randomness=randomness)


def convolutional() -> FlatModel:
    return FlatModel(
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(),
            nn.Linear(16, 4),
        )
    )  # fmt: skip


def trainer(model: FlatModel | None = None, *, private: RecordLevel | None = None, **changes: Any) -> LocalTraining:
    model = model or build("mlp", (16,), 4, hidden=(5,))
    momentum = changes.pop("momentum", 0.0)
    course = changes.pop("course", None) or Sgd(size=model.size, learning_rate=0.3, momentum=momentum)
    inputs = torch.randn(25, 16, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 4, 25)[:, None]
    given = {"inputs": inputs, "batch_size": 4, "record": private or level()} | changes
    return training_of(model, course, SIZES, mixed=True, **given)


def clipped(vector: Tensor, norm: float) -> Tensor:
    return vector * min(1.0, norm / max(float(vector.norm()), 1e-30))


def by_autograd(
    training: LocalTraining, weights: Tensor, client: int, number: int, each: Callable[..., Tensor] = cross_entropy
) -> tuple[Tensor, list[bool]]:
    """One client's update with one backward pass a record and no noise, and whether each record was clipped."""
    assert isinstance(training.course, Sgd)
    assert training.record is not None
    drawn = training.record.randomness
    schedule = training.poisson_batches.draw(training.partition, np.array([client]), drawn, number=number)
    now, velocity, seen = weights.clone(), torch.zeros_like(weights), []
    expected = min(training.batch_size, len(training.partition.of(client)))
    for step in range(schedule.steps[0]):
        total = torch.zeros_like(weights)
        for row in schedule.samples[0, step][schedule.real[0, step]]:
            leaf = now.clone().requires_grad_()
            logits = training.model.forward(leaf, training.inputs[row : row + 1])
            gradient = torch.autograd.grad(each(logits, training.labels[row : row + 1]).sum(), leaf)[0]
            seen.append(bool(gradient.norm() > training.record.clip_norm))
            total += clipped(gradient, training.record.clip_norm)
        velocity = training.course.momentum * velocity + total / expected
        now = now - training.course.learning_rate * velocity
    return now - weights, seen


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(("model", "norm"), [(None, 1.5), (convolutional(), 3.0)], ids=["mlp", "conv with GroupNorm"])
@pytest.mark.parametrize("changes", [{}, {"momentum": 0.9}, {"steps": 3}, {"batch_size": 100}], ids=str)
def test_updates_equal_autograd_record_by_record(model: FlatModel | None, norm: float, changes: dict[str, Any]) -> None:
    training = trainer(model, private=level(clip_norm=norm), **changes)
    weights = training.model.initial(0)
    moves = training.train(weights, CLIENTS, number=2, seeds=SEEDS)
    seen: list[bool] = []
    for client in CLIENTS:
        expected, some = by_autograd(training, weights, int(client), number=2)
        torch.testing.assert_close(moves[client], expected, rtol=1e-4, atol=1e-5)
        seen += some
    assert 0.1 < np.mean(seen) < 0.9, "some records must be clipped and some not, or the test tells little"
    assert not moves[1].any()


class NormalisedWalk(SgdWalk):
    """SGD along normalised gradients, written for clients and not for the records of a batch."""

    def slope(self, active: int, gradient: Tensor) -> Tensor:
        return gradient / gradient.norm()


class NormalisedSgd(Sgd):
    def begin(self, start: RoundStart) -> SgdWalk:
        return NormalisedWalk(self, start)


def test_a_custom_course_mixes_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """One record moved the sum of a batch by up to the root of its size, and a single clip norm is charged."""
    totals: list[Tensor] = []
    monkeypatch.setattr(GaussianRecords, "add_noise", lambda self, total, path: totals.append(total.clone()) or total)
    course = NormalisedSgd(size=build("mlp", (16,), 4, hidden=(5,)).size, learning_rate=0.3)
    training = trainer(course=course, steps=1, batch_size=12, private=level(clip_norm=1.0))
    inputs, labels, rows = training.inputs.clone(), training.labels.clone(), training.partition.of(0)
    inputs[rows], labels[rows] = inputs[rows[0]].clone(), 0
    for label, factor in ((0, 1.0), (1, 1e4)):
        inputs[rows[0]] *= factor
        labels[rows[0]] = label
        training = replace(training, inputs=inputs, labels=labels)
        training.train(training.model.initial(0), np.array([0]), number=0, seeds=SEEDS)
    assert float((totals[0] - totals[1]).norm()) <= 2.0  # its row is replaced by another one of norm 1


@pytest.mark.parametrize("gradient", ["straight-through", "published"])
@pytest.mark.parametrize("biases", ["masked", "absent"])
def test_of_masks_the_slopes_of_the_scores_are_clipped(gradient: str, biases: str) -> None:
    """One step of SGD on s in front of p = sigmoid(s): autograd goes all the way, record by record."""
    frozen = freeze(build("mlp", (16,), 4, hidden=(5,)), SEEDS, biases=biases)  # type: ignore[arg-type]
    course = MaskTraining(network=frozen, learning_rate=2.0, forward="mean", gradient=gradient)  # type: ignore[arg-type]
    norm = 0.02
    training = trainer(frozen.model, course=course, steps=1, private=level(clip_norm=norm))
    theta = frozen.initial.clamp(0.01, 0.99)
    moves = training.train(theta, CLIENTS, number=0, seeds=SEEDS)
    scores, outside = torch.logit(theta), 0
    for client in (0, 2, 3, 4):
        schedule = training.poisson_batches.draw(training.partition, np.array([client]), SIMULATED, number=0)
        total = torch.zeros_like(theta)
        for row in schedule.samples[0, 0][schedule.real[0, 0]]:
            leaf = scores.clone().requires_grad_()
            logits = frozen.model.forward(frozen.weights(torch.sigmoid(leaf)), training.inputs[row : row + 1])
            slope = torch.autograd.grad(cross_entropy(logits, training.labels[row : row + 1]), leaf)[0]
            slope = slope * theta if gradient == "published" else slope
            outside += int(slope.norm() > norm)
            total += clipped(slope, norm)
        expected = torch.sigmoid(scores - 2.0 * total / min(4, SIZES[client])) - theta
        torch.testing.assert_close(moves[client], expected, rtol=1e-3, atol=1e-6)
    assert outside


def one_record_more(norm: float) -> tuple[float, float]:
    """How far one record moves a step's sum, and the distance that clipping allows; the same noise in both."""
    training = trainer()
    module = training.model.bind(training.model.initial(0).clone())
    gradients, private = RecordGradients(module), level(clip_norm=norm)

    def slope(rows: list[int]) -> Tensor:
        return private.slope(
            lambda some: gradients(training.inputs[some], training.labels[some]),
            torch.tensor(rows), size=training.model.size, expected=1, path=(0, 0, 0),
        )  # fmt: skip

    distance = max(float((slope([*range(25)]) - slope([r for r in range(25) if r != out])).norm()) for out in range(25))
    return distance, norm


def test_a_record_moves_the_sum_by_at_most_the_clip_norm() -> None:
    distance, allowed = one_record_more(0.05)
    assert 0.5 * allowed < distance <= allowed * (1 + 1e-4)


def test_a_bound_on_the_sum_instead_of_the_records_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the batch's mean gradient is clipped and counted once a record."""
    real = records.clip_rows

    def of_the_mean(rows: Tensor, norm: float) -> Any:
        return real(rows.mean(dim=0, keepdim=True).repeat(len(rows), 1), norm)

    monkeypatch.setattr(records, "clip_rows", of_the_mean)
    distance, allowed = one_record_more(0.05)
    assert distance > 1.1 * allowed
    training = trainer()
    weights = training.model.initial(0)
    move = training.train(weights, CLIENTS[:1], number=2, seeds=SEEDS)[0]
    assert (move - by_autograd(training, weights, 0, number=2)[0]).norm() > 0.01 * move.norm()


def test_a_step_equals_the_optimiser_of_opacus() -> None:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    training = trainer(convolutional())
    weights = training.model.initial(0)
    peer = GradSampleModule(training.model.bind(weights.clone()))
    optimiser = DPOptimizer(
        torch.optim.SGD(peer.parameters(), lr=0.3), noise_multiplier=TINY, max_grad_norm=1.5, expected_batch_size=4
    )
    inputs = training.inputs[:9].clone().requires_grad_()
    cross_entropy(peer(inputs), training.labels[:9]).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    theirs = nn.utils.parameters_to_vector(peer.parameters()).detach() - weights
    gradients = RecordGradients(training.model.bind(weights.clone()))
    slope = level().slope(
        lambda rows: gradients(training.inputs[rows], training.labels[rows]),
        torch.arange(9), size=training.model.size, expected=4, path=(0, 0, 0),
    )  # fmt: skip
    torch.testing.assert_close(-0.3 * slope, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("randomness", [SIMULATED, Secure()], ids=["simulated", "secure"])
def test_the_noise_has_the_stated_variance_and_an_empty_batch_is_noise_alone(randomness: Randomness) -> None:
    """Chi-square with 40,000 degrees of freedom, two-sided: a false alarm (secure noise is new in every run) has
    probability 1e-9; a standard deviation that is 3% off is found with probability above 0.99."""
    size, private = 40_000, level(clip_norm=0.7, noise_multiplier=1.3, randomness=randomness)

    def nothing(rows: Tensor) -> Tensor:
        raise AssertionError("an empty batch has no gradients")

    empty = torch.empty(0, dtype=torch.int64)
    h = private.slope(nothing, empty, size=size, expected=8, path=(1, 2, 3)).double()
    square = float((h * 8 / (0.7 * 1.3)).square().sum())
    assert chi2.ppf(5e-10, size) < square < chi2.isf(5e-10, size)
    other = private.slope(nothing, empty, size=size, expected=8, path=(1, 2, 4)).double()
    correlation = float(torch.corrcoef(torch.stack([h, other]))[0, 1])
    assert abs(correlation) < 6.2 / math.sqrt(size)


def test_every_client_and_step_has_noise_of_its_own_and_batches_do_not_change_it() -> None:
    private = level(noise_multiplier=1.0)
    drawn = [
        private.slope(lambda rows: torch.zeros(len(rows), 50), torch.arange(n), size=50, expected=1, path=path)
        for n in (0, 3)
        for path in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    for i in range(4):
        assert torch.equal(drawn[i], drawn[i + 4])
        assert not any(torch.equal(drawn[i], drawn[j]) for j in range(4) if j != i)


def test_training_takes_fresh_noise_in_every_step() -> None:
    """Records that count as zero leave the noise alone: the update is minus lr z C / (q n) times its sum."""
    training = trainer(steps=3, private=level(noise_multiplier=2.0))
    training = replace(training, inputs=torch.full_like(training.inputs, math.nan))
    weights = training.model.initial(0)
    moves = training.train(weights, CLIENTS, number=5, seeds=SEEDS)
    for client in (0, 2, 3, 4):
        drawn = [SIMULATED.normal(training.model.size, "local.noise", 5, client, step) for step in range(3)]
        expected = -0.3 * 2.0 * 1.5 / min(4, SIZES[client]) * torch.stack(drawn).sum(dim=0)
        torch.testing.assert_close(moves[client], expected, rtol=1e-4, atol=1e-5)


def test_steps_with_empty_batches_are_taken() -> None:
    training = trainer(batch_size=1, steps=8, private=level(noise_multiplier=0.5))
    schedule = training.poisson_batches.draw(training.partition, CLIENTS, SIMULATED, number=0)
    sizes = schedule.real[0].sum(axis=-1)
    assert len(sizes) == 8
    assert (sizes == 0).any()
    assert schedule.steps.tolist() == [8, 0, 8, 8, 8]
    moves = training.train(training.model.initial(0), CLIENTS, number=0, seeds=SEEDS)
    assert moves.isfinite().all()
    assert moves[0].any()


def test_batches_are_drawn_by_independent_coins() -> None:
    """Inclusions of each record and sizes of batches against their laws; false alarms below 1e-6 over all records."""
    steps, size, batch = 4000, 50, 10
    partition = Partition(indices=np.arange(size)[::-1].copy(), offsets=np.array([0, size]))
    batches = PoissonBatches(batch_size=batch, steps=steps)
    schedule = batches.draw(partition, np.array([0]), SIMULATED, number=0)
    held = np.zeros((steps, size), dtype=bool)
    for step in range(steps):
        rows = schedule.samples[0, step][schedule.real[0, step]]
        assert len(set(rows)) == len(rows)
        held[step, rows] = True
    counts = held.sum(axis=0)
    assert binom.ppf(1e-8, steps, 0.2) <= counts.min()
    assert counts.max() <= binom.isf(1e-8, steps, 0.2)
    square = float(((held.sum(axis=1) - 10) ** 2).sum() / (size * 0.2 * 0.8))
    assert abs(square - steps) < 6 * math.sqrt(2 * steps)
    assert not np.array_equal(held[: steps // 2], held[steps // 2 :])


@pytest.mark.parametrize(
    ("size", "epochs", "count"), [(12, 2, 6), (7, 2, 4), (5, 1, 2), (4, 3, 3), (1, 3, 3), (0, 2, 0)]
)
def test_epochs_are_so_many_steps_that_each_record_is_expected_so_often(size: int, epochs: int, count: int) -> None:
    batches = PoissonBatches(batch_size=4, epochs=epochs)
    assert batches.count(size) == count
    if size:
        assert (count - 1) * batches.probability(size) < epochs <= count * batches.probability(size) + 1e-12


def test_with_probability_one_the_batch_is_everything_and_the_mechanism_is_not_sampled() -> None:
    training = trainer(batch_size=7, steps=2)
    schedule = training.poisson_batches.draw(training.partition, np.array([2, 3]), SIMULATED, number=0)
    assert schedule.real.sum(axis=-1).tolist() == [[7, 7], [5, 5]]
    release = training.release(CLIENTS, number=4)
    assert release is not None
    charged = {client: part for part in release.steps for client in part.clients}
    assert sorted(charged) == [0, 2, 3, 4], "a client without records releases nothing"
    assert isinstance(charged[2].mechanism, Gaussian)
    sampled = charged[0].mechanism
    assert isinstance(sampled, Subsampled)
    assert sampled.sampling.probability == 7 / 12
    assert {part.count for part in release.steps} == {2}
    assert (release.round, release.noise_std) == (4, pytest.approx(1.5 * TINY))


def test_a_record_that_is_not_finite_counts_as_zero() -> None:
    training = trainer(batch_size=100)
    weights = training.model.initial(0)
    row = int(training.partition.of(0)[3])
    broken = training.inputs.clone()
    broken[row] = math.nan
    moves = replace(training, inputs=broken).train(weights, CLIENTS, number=0, seeds=SEEDS)
    assert moves.isfinite().all()
    assert not torch.equal(moves[0], training.train(weights, CLIENTS, number=0, seeds=SEEDS)[0])


def test_a_client_is_bit_identical_whoever_else_trains_and_on_any_number_of_threads() -> None:
    training = trainer(convolutional(), private=level(noise_multiplier=1.0))
    weights = training.model.initial(0)
    together = training.train(weights, CLIENTS, number=0, seeds=SEEDS)
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            again = training.train(weights, CLIENTS[::-1].copy(), number=0, seeds=SEEDS).flip(0)
            assert torch.equal(again, together)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(training.train(weights, np.array([3]), number=0, seeds=SEEDS)[0], together[3])


def test_gradients_that_opacus_did_not_take_are_an_error_and_not_zeros() -> None:
    training = trainer()
    gradients = RecordGradients(training.model.bind(training.model.initial(0)))
    gradients._module.disable_hooks()
    refused(RuntimeError, "Opacus computed no", gradients, training.inputs[:3], training.labels[:3])


def test_a_batch_in_pieces_gives_the_same_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trainer()
    weights = training.model.initial(0)
    whole = training.train(weights, CLIENTS, number=0, seeds=SEEDS)
    monkeypatch.setattr(records, "MOST_NUMBERS", 2 * training.model.size)
    torch.testing.assert_close(training.train(weights, CLIENTS, number=0, seeds=SEEDS), whole, rtol=1e-4, atol=1e-6)


def test_public_data_is_trained_on_without_noise() -> None:
    training = trainer(private=level(noise_multiplier=100.0))
    plain = replace(training, record=None, strategy="loop")
    weights, inputs, labels = training.model.initial(0), training.inputs[:8], training.labels[:8]
    private = training.train_on(inputs, labels, weights, number=0, seeds=SEEDS, purpose="public")
    assert torch.equal(private, plain.train_on(inputs, labels, weights, number=0, seeds=SEEDS, purpose="public"))


def test_what_cannot_be_private_is_refused() -> None:
    refused(ConfigError, "vmap", trainer, strategy="vmap")
    refused(ConfigError, "GroupNorm", trainer, FlatModel(lambda: nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4))))
    for name in ("clip_norm", "noise_multiplier"):
        for value in (0.0, -1.0, math.inf, math.nan):
            refused((ConfigError, InvalidParameter), name, level, **{name: value})
