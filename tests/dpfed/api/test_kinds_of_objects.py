"""Objects of unusual kinds: each goes in, or is refused by one sentence before round 1, never by a raw error."""

import decimal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.sparse
import torch
from refusals import refused
from torch import nn
from torch.utils.data import ChainDataset, Dataset, IterableDataset

import dpfed
from dpfed.errors import ConfigError, DataError

DRAW = np.random.default_rng(0)
INPUTS, LABELS = DRAW.normal(size=(6, 3)).astype(np.float32), np.arange(6) % 3


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        raise OSError("the file of a client")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([(torch.zeros(3), 0)])


def made(one: Any, **given: Any) -> Any:
    return dpfed.data.from_clients([one], (INPUTS, LABELS), classes=3, **given)


@pytest.mark.parametrize(
    "one",
    [
        list(zip(INPUTS, LABELS, strict=True)),
        [(torch.tensor(row), torch.tensor(label)) for row, label in zip(INPUTS, LABELS, strict=True)],
        [(INPUTS[0], 0), (INPUTS[1], 1)],
        (torch.tensor(INPUTS).bfloat16(), LABELS),
    ],
)
def test_lists_of_samples_and_short_floats_go_in(one: Any) -> None:
    found = made(one)
    np.testing.assert_allclose(found.train_inputs[:2], INPUTS[:2], rtol=0.01)
    np.testing.assert_array_equal(found.train_labels[:2], [0, 1])


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (Broken(), "Broken raises OSError when its items are read"),
        (ChainDataset([Stream()]), "an iterable data set has no such items"),
        ((scipy.sparse.csr_matrix(INPUTS), LABELS), r"csr_matrix is not an array of numbers.*toarray"),
    ],
)
def test_others_are_refused(one: Any, words: str) -> None:
    refused(DataError, words, made, one)


def test_a_table_that_cannot_be_read_shows_no_value() -> None:
    frame = pandas.DataFrame({"a": [1, 2.5, decimal.Decimal("77.25")], "y": [0, 1, 1], "who": ["n", "s", "s"]})
    with pytest.raises(DataError, match="Conversion failed for column a") as said:
        dpfed.data.from_clients(frame, frame, classes=2, client="who", inputs=["a"], label="y")
    assert "77" not in str(said.value)


def test_masked_updates_are_refused_whatever_their_mask() -> None:
    private = dpfed.ClientLevel(
        clients=20,
        cohort=20,
        sampling="all",
        clip_norm=1.0,
        rounds=1,
        noise_multiplier=1.0,
        randomness="simulated",
        seed=0,
    )
    for step in private.rounds():
        refused(ConfigError, "is a masked array", step.release, np.ma.masked_equal(np.ones((20, 4)), 0.0))


@pytest.mark.parametrize(
    "spoil", [lambda one: one.weight.data.fill_(torch.nan), lambda one: one.bias.data.fill_(torch.inf)]
)
def test_weights_that_are_not_finite_are_refused(spoil: Callable[[nn.Linear], None], tmp_path: Path) -> None:
    network = nn.Linear(3, 3)
    spoil(network)
    with pytest.raises(ConfigError, match="has NaN or infinity before round 1"):
        dpfed.run("fedavg-digits", data=made((INPUTS, LABELS)), model=network, out=tmp_path / "run", progress=False)


@pytest.mark.parametrize("metric", [lambda outputs, targets: "high", lambda outputs, targets: 1 / 0, 3])
def test_metrics_that_fail_are_refused_before_round_1(metric: Any, tmp_path: Path) -> None:
    given = {"data": made((INPUTS, LABELS)), "model": nn.Linear(3, 3), "metrics": {"mine": metric}}
    with pytest.raises(ConfigError, match="metric 'mine': fails for outputs"):
        dpfed.run("fedavg-digits", **given, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_weights_that_are_no_leaves_are_refused_with_what_to_use(tmp_path: Path) -> None:
    network = torch.nn.utils.weight_norm(nn.Linear(3, 3))
    with pytest.raises(ConfigError, match="weights that are computed from others"):
        dpfed.run("fedavg-digits", data=made((INPUTS, LABELS)), model=network, out=tmp_path / "run", progress=False)


def test_in_place_layers_in_private_records_are_named(tmp_path: Path) -> None:
    layers = nn.ReLU(inplace=True), nn.Dropout(0.5, inplace=True)
    network = nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 3))
    settings = {"local.record.clip_norm": 1.0, "local.record.noise_multiplier": 1.0}
    given = {"data": made((INPUTS, LABELS)), "model": network, "out": tmp_path / "run", "progress": False}
    refused(ConfigError, "inplace=False", dpfed.run, "fedavg-digits", settings, **given)
