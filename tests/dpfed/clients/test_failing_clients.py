"""An exception while a client trains: it ends the run, or counts as an update that is not finite and shows nowhere."""

from typing import Any

import numpy as np
import pytest
import torch
from local_training import training_of
from refusals import refused
from torch import Tensor, nn

from dpfed.clients import LocalTraining, Sgd
from dpfed.errors import TrainingFailed
from dpfed.mechanisms.records import GaussianRecords, gaussian_noise
from dpfed.models import FlatModel
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

SEEDS = Seeds(root=3)
SIZES = [6, 9, 4, 7, 5]
BROKEN = 1
"""The client that holds a word which the network does not know, in one sample."""


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.words(inputs.long()).mean(1))
        return outputs


class Raising(nn.Module):
    """Raises `error` where a sample holds a number above 19."""

    error: BaseException = ValueError("word 77 of client 1")

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        if bool((inputs > 19).any()):
            raise self.error
        outputs: Tensor = self.out(inputs / 20)
        return outputs


def trainer(network: type[nn.Module], *, broken: bool = True, **changes: Any) -> LocalTraining:
    generator, count = torch.Generator().manual_seed(1), sum(SIZES)
    inputs = torch.randint(20, (count, 5), generator=generator).float()
    if broken:
        inputs[sum(SIZES[:BROKEN]) + 2, 3] = 77
    torch.manual_seed(0)
    model = FlatModel(network)
    given = {"inputs": inputs, "labels": torch.randint(3, (count,), generator=generator), "batch_size": 4} | changes
    return training_of(model, Sgd(size=model.size, learning_rate=0.5), SIZES, **given)


def train(training: LocalTraining, failed: set[tuple[int, ...]] | None = None) -> Tensor:
    clients = np.arange(len(SIZES))
    return training.train(training.model.initial(0), clients, number=1, seeds=SEEDS, failed=failed)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_who_fails_has_an_update_that_is_not_finite_and_the_others_their_own(strategy: str) -> None:
    failed: set[tuple[int, ...]] = set()
    moves = train(trainer(Words, strategy=strategy), failed)
    whole = train(trainer(Words, strategy=strategy, broken=False))
    assert failed == {(BROKEN,)}
    assert moves[BROKEN].isnan().all()
    others = [client for client in range(len(SIZES)) if client != BROKEN]
    torch.testing.assert_close(moves[others], whole[others], rtol=1e-4, atol=1e-6)
    if strategy == "loop":
        assert torch.equal(moves[others], whole[others])


@pytest.mark.parametrize("word", [77, 20, -1])
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_word_beyond_the_embedding_is_an_error_and_never_another_clients_word(strategy: str, word: int) -> None:
    """Side by side, torch alone reads word 20 of 20 as the next client's word 0, and trains it."""
    training = trainer(Words, strategy=strategy)
    training.inputs[training.inputs == 77] = word
    refused((IndexError, RuntimeError), r"out of range|out of bounds", train, training)


def test_places_beyond_the_end_are_not_filled_in_another_clients_rows() -> None:
    class Filling(Words):
        def forward(self, inputs: Tensor) -> Tensor:
            rows = self.words.weight.index_fill(0, inputs[0].long(), 1.0)
            outputs: Tensor = self.out(rows.mean(0).expand(len(inputs), -1))
            return outputs

    failed: set[tuple[int, ...]] = set()
    training = trainer(Filling, strategy="vmap", epochs=None, steps=1, batch_size=9)
    training.inputs[training.partition.of(BROKEN)] = 21
    assert train(training, failed)[BROKEN].isnan().all()
    assert failed == {(BROKEN,)}


@pytest.mark.parametrize(
    "error", [ValueError("word 77"), SystemExit(3), TrainingFailed("draws random numbers")], ids=repr
)
def test_an_exception_of_any_class_counts(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Raising, "error", error)
    failed: set[tuple[int, ...]] = set()
    assert train(trainer(Raising, strategy="loop"), failed).isnan().any(dim=1).tolist() == [False, True, *[False] * 3]
    assert len(failed) == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (MemoryError(), TrainingFailed),
     (RuntimeError("can't allocate memory: you tried to allocate 8 bytes"), TrainingFailed)],
    ids=["interrupt", "Python's memory", "torch's memory"],
)  # fmt: skip
def test_interrupts_and_lack_of_memory_end_training(
    error: BaseException, expected: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Raising, "error", error)
    refused(expected, "", lambda: train(trainer(Raising, strategy="loop"), set()))


def test_a_private_record_that_fails_has_the_gradient_zero_and_the_others_their_own() -> None:
    """The update is that of the same batches without the record: its sum of clipped gradients lacks one row."""
    record = GaussianRecords(clip_norm=0.5, noise=gaussian_noise(1e-9), randomness=Simulated(seeds=SEEDS))
    training = trainer(Raising, record=record, epochs=None, steps=1, batch_size=100)
    failed: set[tuple[int, ...]] = set()
    moves = train(training, failed)
    place = int(training.partition.of(BROKEN)[2])
    assert failed == {(BROKEN, 0, place)}
    model, weights = training.model, training.model.initial(0)
    total = torch.zeros_like(weights)
    for row in training.partition.of(BROKEN):
        if row != place:
            leaf = weights.clone().requires_grad_()
            outputs = model.forward(leaf, training.inputs[row][None])
            (slope,) = torch.autograd.grad(nn.functional.cross_entropy(outputs, training.labels[row][None]), leaf)
            total += slope * min(1.0, 0.5 / float(slope.norm()))
    torch.testing.assert_close(moves[BROKEN], -0.5 * total / SIZES[BROKEN], rtol=1e-4, atol=1e-6)
