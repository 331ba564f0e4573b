"""The character LSTM is torch's, fused or step by step, and trains in every way there is."""

import numpy as np
import pytest
import torch
from refusals import refused
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpfed.clients.optimisers import Sgd
from dpfed.clients.training import LocalTraining
from dpfed.data import Partition
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import GaussianRecords, RecordLevel, gaussian_noise
from dpfed.models import FlatModel, build
from dpfed.models.networks import CharLstm, LstmLayer, make_stepwise
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

LETTERS, LENGTH = 11, 6


def texts(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(0, LETTERS, (count, LENGTH + 1), generator=generator)
    return letters[:, :LENGTH].float(), letters[:, LENGTH]


@pytest.mark.parametrize(("letters", "size"), [(80, 819_920), (90, 822_570)])
def test_sizes_are_those_of_the_papers(letters: int, size: int) -> None:
    """LEAF's 817,872 with one bias a layer, and the cost of Fed-SMP's table III, 46.02 MB."""
    model = build("char-lstm", (80,), letters)
    assert model.size == size
    one_bias = size - 2 * 4 * 256
    embedding, first, second = 8 * letters, 4 * 256 * (8 + 256 + 1), 4 * 256 * (256 + 256 + 1)
    assert one_bias == embedding + first + second + letters * 257
    if letters == 90:
        assert round(4 * size * 1000 * 10 / 715 / 1e6, 2) == 46.02
    assert [block.kind for block in model.layout].count("bias") == 5
    assert len(model.compressible) == size


def reference(weights: torch.Tensor, inputs: torch.Tensor, model: FlatModel) -> torch.Tensor:
    """torch.nn.LSTM with the model's weights."""
    state = {b.name: weights[b.start : b.stop].view(b.shape) for b in model.layout}
    torchs = nn.LSTM(8, 5, num_layers=2, batch_first=True)
    names = {"input.weight": "weight_ih", "recurrent.weight": "weight_hh"}
    names |= {"input.bias": "bias_ih", "recurrent.bias": "bias_hh"}
    given = {f"{theirs}_l{i}": state[f"layers.{i}.{ours}"] for i in (0, 1) for ours, theirs in names.items()}
    torchs.load_state_dict(given)
    states, _ = torchs(state["embedding.weight"][inputs.long()])
    return states[:, -1] @ state["logits.weight"].T + state["logits.bias"]


def small() -> FlatModel:
    return build("char-lstm", (LENGTH,), LETTERS, hidden=(5, 5))


def test_both_ways_equal_torchs_lstm_in_value_and_gradient() -> None:
    model, (inputs, labels) = small(), texts(4)
    weights = model.initial(3)
    assert weights[: 8 * LETTERS].std() > 0.5  # torch's embedding is N(0, 1)
    recurrent = weights[8 * LETTERS : -6 * LETTERS]
    assert recurrent.abs().max() <= 5**-0.5
    torch.testing.assert_close(model.forward(weights, inputs), reference(weights, inputs, model))
    gradients = []
    for module in (CharLstm(LETTERS, (5, 5)), make_stepwise(CharLstm(LETTERS, (5, 5)))):
        leaf = weights.clone().requires_grad_()
        state = {b.name: leaf[b.start : b.stop].view(b.shape) for b in model.layout}
        loss = cross_entropy(functional_call(module, state, (inputs,)), labels)
        gradients.append(torch.autograd.grad(loss, leaf)[0])
    torch.testing.assert_close(gradients[0], gradients[1])
    assert gradients[0].abs().min(dim=0).values >= 0
    assert gradients[0].count_nonzero() > 0.8 * model.size


def training(model: FlatModel, strategy: str, record: RecordLevel | None = None) -> LocalTraining:
    inputs, labels = texts(17)
    return LocalTraining(
        model=model,
        course=Sgd(size=model.size, learning_rate=0.3, momentum=0.5),
        inputs=inputs,
        labels=labels,
        partition=Partition(indices=np.arange(17), offsets=np.array([0, 5, 5, 9, 17])),
        epochs=2,
        batch_size=4,
        strategy=strategy,  # type: ignore[arg-type]
        record=record,
    )


def train(trainer: LocalTraining) -> torch.Tensor:
    broadcast = trainer.model.initial(1)
    return trainer.train(broadcast, np.arange(4), number=2, seeds=Seeds(root=0))


def test_clients_train_alike_in_a_loop_and_side_by_side() -> None:
    in_turn, together = (train(training(small(), strategy)) for strategy in ("loop", "vmap"))
    torch.testing.assert_close(in_turn, together, rtol=1e-3, atol=1e-5)
    assert torch.equal(in_turn, train(training(small(), "auto")))  # the faster way
    assert in_turn[1].abs().max() == 0  # holds nothing
    assert in_turn[0].abs().max() > 0.01


def test_records_gradients_are_those_of_single_texts() -> None:
    """With next to no noise and a bound that nobody reaches DP-SGD's step is the sum of single gradients."""
    model, (inputs, labels) = small(), texts(17)
    record = GaussianRecords(clip_norm=1e3, noise=gaussian_noise(1e-9), randomness=Simulated(seeds=Seeds(root=5)))
    trainer = training(model, "auto", record)
    weights = model.initial(1)
    rows = torch.arange(9)
    from dpfed.clients.records import RecordGradients

    found = RecordGradients(model.bind(weights.clone()))(inputs[rows], labels[rows])
    for row in rows:
        leaf = weights.clone().requires_grad_()
        loss = cross_entropy(model.forward(leaf, inputs[row][None]), labels[row][None])
        torch.testing.assert_close(found[row], torch.autograd.grad(loss, leaf)[0], rtol=1e-4, atol=1e-6)
    assert torch.isfinite(train(trainer)).all()


def torchs_own() -> nn.Module:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(1, 4, batch_first=True)
            self.logits = nn.Linear(4, LETTERS)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.logits(self.lstm(inputs[..., None])[0][:, -1])

    return Network()


def test_torchs_own_lstm_trains_in_a_loop_and_says_what_it_cannot() -> None:
    model = FlatModel(torchs_own)
    assert model.has_fused_layers
    assert not small().has_fused_layers
    assert train(training(model, "auto")).abs().max() > 0.01
    record = GaussianRecords(clip_norm=1.0, noise=gaussian_noise(1.0), randomness=Simulated(seeds=Seeds(root=5)))
    for strategy, level in (("vmap", None), ("auto", record)):
        refused(ConfigError, r"torch's LSTM, GRU or RNN.*LstmLayer", training, model, strategy, level)


def test_texts_and_layers_are_checked() -> None:
    refused(ConfigError, r"input_shape=\(1, 28, 28\).*needs texts", build, "char-lstm", (1, 28, 28), 10)
    for hidden in ((), (0,)):
        refused(ConfigError, "at least one unit", build, "char-lstm", (80,), 80, hidden=hidden)
    assert LstmLayer(3, 2)(torch.zeros(1, 4, 3)).shape == (1, 4, 2)
