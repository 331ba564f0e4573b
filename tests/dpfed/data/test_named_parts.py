"""Samples that are dictionaries: packed and unpacked, trained in a loop and side by side, refused where they differ."""

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from torch import nn

import dpfed
from dpfed.data import from_arrays, from_clients, from_samples
from dpfed.errors import ConfigError, DataError
from dpfed.models.networks import NamedInputs

DRAW = np.random.default_rng(0)
IDS = DRAW.integers(0, 20, (60, 6)).astype(np.int32)
MASK = (DRAW.random((60, 6)) < 0.7).astype(np.int8)
AGE = DRAW.random(60).astype(np.float32)
LABELS = (IDS[:, 0] > 9).astype(np.int64)
SETTINGS = {"federation.rounds": 2, "federation.cohort": 3, "local.batch_size": 4, "local.epochs": 1}


def rows(start, stop):
    return [{"input_ids": IDS[i], "attention_mask": MASK[i], "labels": LABELS[i]} for i in range(start, stop)]


def batch(start, stop):
    some = slice(start, stop)
    return {"input_ids": torch.tensor(IDS[some]), "attention_mask": MASK[some], "labels": LABELS[some]}


class Output:
    """Output of a network of transformers, as far as it is used."""

    def __init__(self, logits):
        self.logits = logits


class Reader(nn.Module):
    """Network of named inputs, which keeps a constant buffer."""

    def __init__(self, each_letter=False):
        super().__init__()
        self.embedding, self.last, self.each_letter = nn.Embedding(20, 8), nn.Linear(8, 2), each_letter
        self.register_buffer("positions", torch.linspace(0.5, 1.5, 6), persistent=False)

    def forward(self, input_ids, attention_mask, age=None):
        letters = self.embedding(input_ids) * attention_mask[..., None] * self.positions[:, None]
        found = self.last(letters if self.each_letter else letters.mean(-2))
        return Output(found if age is None else found + age[..., None])


OWNERS = np.repeat(np.arange(6), 10)
MAKERS = {
    "lists of dictionaries": lambda: from_clients(
        [rows(10 * i, 10 * i + 10) for i in range(6)], rows(0, 10), classes=2
    ),
    "arrays in a dictionary": lambda: from_clients(
        [batch(10 * i, 10 * i + 10) for i in range(6)], batch(0, 10), classes=2
    ),
    "samples": lambda: from_samples(rows(0, 60), rows(0, 10), classes=2, clients=OWNERS),
    "pairs": lambda: from_arrays(
        ({"input_ids": IDS, "attention_mask": MASK}, LABELS),
        ({"attention_mask": MASK[:10], "input_ids": IDS[:10]}, LABELS[:10]),
        classes=2,
        clients=OWNERS,
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_parts_are_packed_in_their_order(kind):
    whole = MAKERS[kind]()
    np.testing.assert_array_equal(whole.train_inputs, np.concatenate([IDS, MASK], axis=1))
    np.testing.assert_array_equal(whole.test_inputs, whole.train_inputs[:10])
    np.testing.assert_array_equal(whole.train_labels, LABELS)
    np.testing.assert_array_equal(whole.train_clients, OWNERS)
    assert whole.train_inputs.dtype == np.int64
    assert "samples {input_ids [6], attention_mask [6]}" in repr(whole)


def test_integers_beside_fractions_reach_the_network_as_integers():
    given = {"input_ids": IDS, "age": AGE, "picture": np.full((60, 1, 2, 2), 255, np.uint8)}
    whole = from_arrays((given, LABELS), (given, LABELS), classes=2)
    named = NamedInputs(whole.parts)(nn.Identity(), (torch.tensor(whole.train_inputs),), {})[1]
    assert [one.dtype for one in named.values()] == [torch.int64, torch.float32, torch.float32]
    assert [tuple(one.shape) for one in named.values()] == [(60, 6), (60,), (60, 1, 2, 2)]
    for name, array in given.items():
        np.testing.assert_array_equal(named[name].numpy(), array)


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("each_letter", [False, True])
def test_a_run_equals_that_of_the_network_on_packed_rows(tmp_path, strategy, each_letter, monkeypatch):
    """The same numbers, split by hand inside the network, give the same weights."""

    class ByHand(Reader):
        def forward(self, packed):
            logits = super().forward(packed[..., :6], packed[..., 6:]).logits
            return logits.movedim(-1, 1) if each_letter else logits

    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)
    labels = IDS % 2 if each_letter else LABELS
    parts = {"input_ids": IDS, "attention_mask": MASK}
    packed = np.concatenate([IDS, MASK], axis=1)
    settings = SETTINGS | {"local.strategy": strategy, "privacy.epsilon": 500.0, "privacy.noise_multiplier": 0.5}
    torch.manual_seed(0)
    start, ends = Reader(each_letter).state_dict(), []
    for inputs, network in ((parts, Reader(each_letter)), (packed, ByHand(each_letter))):
        network.load_state_dict(start)
        data = from_arrays((inputs, labels), (inputs, labels), classes=2, clients=OWNERS)
        out = tmp_path / type(network).__name__
        done = dpfed.run("dp-fedavg-digits", settings, data=data, model=network, out=out)
        ends.append(load_file(done.folder / "model.safetensors"))
    assert set(ends[0]) == set(start), "names are those of the network"
    for name in start:
        torch.testing.assert_close(ends[0][name], ends[1][name], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ([{"input_ids": IDS[0]}], rows(0, 1), "label as labels or label; its keys are"),
        ([rows(0, 1)[0], {"labels": 1, "x": 0}], rows(0, 1), "samples have different keys"),
        ([rows(0, 1)[0], rows(0, 1)[0] | {"input_ids": [1, 2]}], rows(0, 1), "Pad all samples to one length"),
        (rows(0, 2), [{"input_ids": IDS[0], "labels": 1}], "training samples have .* test samples"),
        (rows(0, 2), (IDS, LABELS), "of one half have named parts"),
    ],
)
def test_dictionaries_that_are_refused(train, test, message):
    refused(DataError, message, from_clients, [train], test, classes=2)


def test_a_network_without_these_arguments_is_one_error(tmp_path):
    data = MAKERS["samples"]()
    with pytest.raises(ConfigError, match="input_ids"):
        dpfed.run("dp-fedavg-digits", SETTINGS, data=data, model=nn.Linear(12, 2), out=tmp_path / "run")


def test_integers_beyond_64_bits_are_refused_and_not_wrapped():
    beyond = np.full(60, 2**63, dtype=np.uint64)
    some = [{"id": beyond[i], "labels": LABELS[i]} for i in range(4)]
    refused(DataError, r"part 'id'.*beyond", from_samples, some, some, classes=2)
