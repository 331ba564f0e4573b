"""Integer inputs: they reach the network as they are, or in float32 where that is the same, or are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from safetensors.numpy import save_file
from torch import Tensor, nn

import dpfed
from dpfed import data
from dpfed.data.dataset import Dataset
from dpfed.data.population import fingerprint
from dpfed.errors import ConfigError, DataError

LARGE = 2**24 + 1
"""The smallest positive integer that float32 does not hold."""


def numbers(kind: type = np.int64, largest: int = LARGE) -> tuple[NDArray[Any], NDArray[Any]]:
    inputs = np.random.default_rng(0).integers(0, 9, (40, 3)).astype(kind)
    inputs[::2, 0] = largest
    return inputs, np.arange(40) % 2


def of_clients(folder: Path, inputs: NDArray[Any], labels: NDArray[Any]) -> Dataset:
    held = [(inputs[:30], labels[:30]), (inputs[:0], labels[:0]), (inputs[30:], labels[30:])]
    return data.from_clients(held, (inputs, labels), classes=2)


def of_tensors(folder: Path, inputs: NDArray[Any], labels: NDArray[Any]) -> Dataset:
    pair = torch.from_numpy(inputs), torch.from_numpy(labels)
    return data.from_clients([pair], pair, classes=2)


def of_arrays(folder: Path, inputs: NDArray[Any], labels: NDArray[Any]) -> Dataset:
    return data.from_arrays((inputs, labels), (inputs, labels), classes=2)


def of_samples(folder: Path, inputs: NDArray[Any], labels: NDArray[Any]) -> Dataset:
    samples = list(zip(inputs, labels, strict=True))
    return data.from_samples(samples, samples, classes=2)


def of_npz(folder: Path, inputs: NDArray[Any], labels: NDArray[Any]) -> Dataset:
    both = {"train_inputs": inputs, "train_labels": labels, "test_inputs": inputs, "test_labels": labels}
    np.savez(folder / "mine.npz", classes=2, **both)  # type: ignore[arg-type]
    return data.load("mine.npz", folder)


def of_safetensors(folder: Path, inputs: NDArray[Any], labels: NDArray[Any]) -> Dataset:
    both = {"train_inputs": inputs, "train_labels": labels, "test_inputs": inputs, "test_labels": labels}
    save_file(both, folder / "mine.safetensors", metadata={"classes": "2"})
    return data.load("mine.safetensors", folder)


def of_parquet(folder: Path, inputs: NDArray[Any], labels: NDArray[Any]) -> Dataset:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    for half in ("train", "test"):
        pq.write_table(pa.table({"x": list(inputs), "y": labels}), folder / f"{half}.parquet")
    return data.load(f"{folder.name}/", folder.parent, classes=2, columns=data.Columns(inputs=("x",), label="y"))


ROUTES: list[Callable[[Path, NDArray[Any], NDArray[Any]], Dataset]] = [
    of_clients, of_tensors, of_arrays, of_samples, of_npz, of_safetensors, of_parquet
]  # fmt: skip


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize("route", ROUTES)
def test_integers_stay_what_they_are(route: Any, kind: type, tmp_path: Path) -> None:
    inputs, labels = numbers(kind)
    made = route(tmp_path, inputs, labels)
    for half in (made.train_inputs, made.test_inputs):
        assert half.dtype == np.int64
        np.testing.assert_array_equal(half, inputs)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, np.bool_, np.float64])
def test_pixels_and_fractions_are_floats_as_ever(kind: type, tmp_path: Path) -> None:
    inputs, labels = numbers(kind, largest=1)
    made = of_arrays(tmp_path, inputs, labels)
    assert made.train_inputs.dtype == made.test_inputs.dtype == np.float32
    np.testing.assert_array_equal(made.train_inputs, inputs.astype(np.float32))


def mixed(largest: int) -> list[Callable[[], Dataset]]:
    """Integers here and fractions there: in clients, halves, samples, columns."""
    inputs, labels = numbers(largest=largest)
    whole, fractions = (inputs, labels), (inputs / 2**26, labels)
    rows = [(inputs[0], 0), (fractions[0][1], 1)]
    return [
        lambda: data.from_clients([whole, fractions], fractions, classes=2),
        lambda: data.from_arrays(whole, fractions, classes=2),
        lambda: data.from_arrays(fractions, whole, classes=2),
        lambda: data.from_samples(rows, rows, classes=2),
    ]


@pytest.mark.parametrize("case", range(4))
def test_beside_fractions_integers_become_floats_or_are_refused(case: int) -> None:
    made = mixed(2**24)[case]()
    assert made.train_inputs.dtype == made.test_inputs.dtype == np.float32
    refused(DataError, "integers beyond 16,777,216", lambda: mixed(LARGE)[case]())


def test_columns_of_both_kinds_are_refused_beyond_what_floats_hold(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    for half in ("train", "test"):
        pq.write_table(pa.table({"a": [LARGE, 1], "b": [0.5, 0.2], "y": [0, 1]}), tmp_path / f"{half}.parquet")
    with pytest.raises(DataError, match="integers beyond 16,777,216"):
        data.load(f"{tmp_path.name}/", tmp_path.parent, classes=2, columns=data.Columns(inputs=("a", "b"), label="y"))


def test_integers_that_torch_does_not_hold_are_refused(tmp_path: Path) -> None:
    inputs, labels = numbers(np.uint64, largest=2**63)
    refused(DataError, r"beyond 2\^63 - 1", of_arrays, tmp_path, inputs, labels)
    targets = np.ones((40, 2)), inputs[:, 0]
    refused(DataError, r"beyond 2\^63 - 1", data.from_arrays, targets, targets, classes=None)


def test_clients_are_the_same_whether_their_numbers_are_integers_or_floats(tmp_path: Path) -> None:
    inputs, labels = numbers(largest=8)
    held = data.Partition(indices=np.arange(40), offsets=np.array([0, 40]))
    prints = {
        fingerprint(b"key", of_arrays(tmp_path, one, labels), held, unit="client", on_nodes=False)
        for one in (inputs, inputs.astype(np.float32))
    }
    assert len(prints) == 1


class Words(nn.Module):
    def __init__(self, *, casts: bool) -> None:
        super().__init__()
        self.words, self.out, self.casts = nn.Embedding(9, 4), nn.Linear(4, 2), casts

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.out(self.words(inputs.long() if self.casts else inputs).mean(1))
        return made


def trained(network: nn.Module, inputs: NDArray[Any], out: Path, **settings: Any) -> Tensor:
    labels = np.arange(40) % 2
    held = [(inputs[i : i + 8], labels[i : i + 8]) for i in range(0, 40, 8)]
    made = data.from_clients(held, (inputs[:9], labels[:9]), classes=2)
    wanted = {"federation.rounds": 1, "federation.cohort": 5, "federation.sampling": "all", **settings}
    done = dpfed.run("fedavg-digits", wanted, data=made, model=network, out=out)
    return torch.cat([part.detach().flatten() for part in done.model.parameters()])


@pytest.fixture(autouse=True)
def _without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("strategy", ["loop", "records", "vmap"])
def test_an_embedding_takes_integers_as_they_are(strategy: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"local.strategy": strategy}
    if strategy == "records":
        settings = {"local.record.clip_norm": 1.0, "local.record.noise_multiplier": 1e-6, "local.batch_size": 8}
    models = []
    for casts, kind in ((False, np.int64), (True, np.int64), (True, np.float32)):
        torch.manual_seed(0)
        inputs = numbers(largest=8)[0].astype(kind)
        models.append(trained(Words(casts=casts), inputs, tmp_path / f"{casts}-{kind.__name__}", **settings))
    assert torch.equal(models[0], models[1])
    torch.testing.assert_close(models[0], models[2], rtol=1e-5, atol=1e-6)


def test_a_network_of_floats_gets_floats_and_no_other_numbers(tmp_path: Path) -> None:
    models = []
    for kind in (np.int64, np.float32):
        torch.manual_seed(0)
        models.append(trained(nn.Linear(3, 2), numbers(largest=8)[0].astype(kind), tmp_path / kind.__name__))
    assert torch.equal(*models)
    with pytest.raises((ConfigError, DataError), match=r"integers beyond 16,777,216.*Embedding"):
        trained(nn.Linear(3, 2), numbers()[0], tmp_path / "refused")
