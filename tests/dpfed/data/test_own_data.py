"""Data of one's own: a safetensors file from a config, any map-style data set and any module from Python."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference.bounded import bounded
from refusals import refused
from safetensors.numpy import save_file
from torch import nn

from dpfed import data, models
from dpfed.config.tables import parse
from dpfed.errors import ConfigError, DataError
from dpfed.runs.experiment import build
from dpfed.stages.project import PublicTopMask

RUN = {
    "federation": {"clients": 12, "cohort": 12, "rounds": 2, "sampling": "all"},
    "local": {"learning_rate": 0.1, "epochs": 1, "batch_size": 8},
    "method": {"name": "dp-fedavg"},
    "privacy": {"noise_multiplier": 1.0, "clip_norm": 1.0},
    "run": {"device": "cpu"},
}


def arrays(**changes: Any) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    made = {
        "train_inputs": generator.normal(size=(60, 5)),
        "train_labels": generator.integers(0, 3, 60),
        "test_inputs": generator.normal(size=(20, 5)),
        "test_labels": np.arange(20) % 3,
        "train_clients": 7 * np.arange(60) % 12 * 100 - 5,
    } | changes
    return {name: array for name, array in made.items() if array is not None}


def test_a_file_of_arrays_becomes_a_data_set(tmp_path: Path) -> None:
    given = arrays(train_inputs=np.arange(300, dtype=np.uint8).reshape(60, 5), test_labels=np.full(20, 6, np.uint8))
    save_file(given, tmp_path / "mine.safetensors", metadata={"classes": "7"})
    loaded = data.load("mine.safetensors", tmp_path)
    assert (loaded.name, loaded.classes, loaded.natural_clients) == ("mine", 7, 12)
    assert loaded.train_inputs.dtype == np.float32
    np.testing.assert_array_equal(loaded.train_inputs, given["train_inputs"])
    assert loaded.train_clients is not None
    for a in range(60):
        for b in range(60):
            same = given["train_clients"][a] == given["train_clients"][b]
            assert (loaded.train_clients[a] == loaded.train_clients[b]) == same


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"test_inputs": None}, "has no array test_inputs"),
        ({"extra": np.zeros(3)}, "unknown array extra"),
        ({"train_inputs": np.full((60, 5), np.nan)}, "NaN or infinity"),
        ({"train_inputs": np.zeros(60)}, r"must be \[N, ...\]. Give each"),
        ({"train_labels": np.zeros(60)}, r"train_labels: float64.*must be integers"),
        ({"train_labels": np.zeros(59, np.int64)}, "60 samples with labels"),
        ({"train_labels": np.full(60, -1)}, "not among the 3 declared classes"),
        ({"train_labels": np.full(60, 3)}, "not among the 3 declared classes"),
        ({"test_labels": np.full(20, 2**40)}, "not among the 3 declared classes"),
        ({"train_labels": np.full(60, 2**64 - 1, np.uint64)}, "not among the 3 declared classes"),
        ({"train_inputs": np.full((60, 5), 1e300)}, "NaN or infinity"),
        ({"train_clients": np.zeros(59, np.int64)}, "one client per training sample"),
        ({"train_clients": np.zeros((60, 1), np.int64)}, "train_clients.*must be integers"),
        ({"test_inputs": np.zeros((20, 4))}, "both must be equal"),
    ],
    ids=range(14),
)
def test_arrays_that_do_not_fit_are_one_error(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    save_file(arrays(**changes), tmp_path / "mine.safetensors", metadata={"classes": "3"})
    refused(DataError, complaint, data.load, "mine.safetensors", tmp_path)


def test_truncated_and_missing_files_are_one_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    refused(DataError, "cannot be read", data.load, str(path))
    save_file(arrays(), path)
    path.write_bytes(path.read_bytes()[:-1])
    refused(DataError, "cannot be read", data.load, str(path))


def test_labels_do_not_decide_how_many_classes_there_are(tmp_path: Path) -> None:
    """Whatever the labels of one client, the released network has the size that was declared, or there is no run."""
    tables = RUN | {"data": {"name": str(tmp_path / "mine.safetensors"), "classes": 3}, "model": {"name": "mlp"}}
    sizes = set()
    for label in (0, 1, 2):
        save_file(arrays(train_labels=np.full(60, label), test_labels=np.zeros(20, np.int64)), tables["data"]["name"])
        sizes.add(build(parse(tables, source="test")).model.size)
    assert sizes == {5 * 32 + 32 + 32 * 3 + 3}
    labels, said = np.zeros(60, np.int64), set()
    for label in (-1, 3, 99, 2**40, -(2**40)):
        labels[7] = label
        save_file(arrays(train_labels=labels), tables["data"]["name"])
        with bounded(), pytest.raises(DataError, match=r"a label of .*mine\.safetensors is not among the 3") as raised:
            build(parse(tables, source="test"))
        said.add(str(raised.value))
    assert len(said) == 1  # and so it tells nothing of the label


def test_the_number_of_classes_is_declared_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_file(arrays(), path)
    refused(DataError, r"(?s)is not declared.*data\.classes.*metadata", data.load, str(path))
    assert data.load(str(path), classes=4).classes == 4
    save_file(arrays(), path, metadata={"classes": "5"})
    assert data.load(str(path)).classes == data.load(str(path), classes=5).classes == 5
    refused(DataError, r"metadata declare 5 classes, data\.classes is 4", data.load, str(path), classes=4)
    refused(ConfigError, r"data\.classes=4 with data\.name='digits'", data.load, "digits", classes=4)
    tables = RUN | {"data": {"name": "digits", "classes": 10}, "model": {"name": "mlp"}}
    refused(ConfigError, r"data\.classes=10 has no effect here", lambda: build(parse(tables, source="test")))


@pytest.mark.parametrize("declared", ["", "x", "0", "-1", "1e3", "65537", str(2**40), "9" * 5000, "3.0", "\u0663"])
def test_declarations_that_no_network_can_have_are_one_error(tmp_path: Path, declared: str) -> None:
    save_file(arrays(), tmp_path / "mine.safetensors", metadata={"classes": declared})
    with bounded(), pytest.raises(DataError, match=r"metadata: classes=|not among the 3") as raised:
        data.load("mine.safetensors", tmp_path)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("number", [True, 2.0, 0, 2**40, 10**5000], ids=range(5))
def test_data_from_python_declare_their_classes(number: Any) -> None:
    with bounded(), pytest.raises(DataError, match="classes="):
        data.from_samples(Points(8), Points(8), classes=number)


def test_errors_of_own_samples_tell_no_label() -> None:
    for label in (2**70, 77, "secret", 1e30):
        samples = [(np.zeros(2), 0), (np.zeros(2), label)]
        with pytest.raises(DataError) as raised:
            data.from_samples(samples, samples, classes=3)
        assert str(label) not in str(raised.value)


@pytest.mark.parametrize("letter", [-1.0, 3.0, 1e30])
def test_letters_beyond_the_declared_ones_are_refused_before_any_round(tmp_path: Path, letter: float) -> None:
    texts = np.ones((60, 5))
    texts[50, 2] = letter
    save_file(arrays(train_inputs=texts, test_inputs=np.ones((20, 5))), tmp_path / "mine.safetensors")
    where = {"name": str(tmp_path / "mine.safetensors"), "classes": 3}
    tables = RUN | {"data": where, "model": {"name": "char-lstm", "hidden": [4]}}
    refused(DataError, "an input of 'mine' is not among the 3 declared letters", build, parse(tables, source="test"))


@pytest.mark.parametrize("given", [1, "clients", "client-steps"])
def test_what_others_hold_does_not_decide_how_long_the_server_trains(tmp_path: Path, given: int | str) -> None:
    """The steps on public data, from which a mask follows that everybody sees, under private sizes."""
    path = tmp_path / "mine.safetensors"
    tables = RUN | {
        "data": {"name": str(path), "classes": 3, "public": 10, "partition": "natural"},
        "model": {"name": "mlp"},
        "method": {"name": "fed-smp-topk", "keep": 0.5, "public_epochs": given},
    }
    steps = set()
    for size in (2, 40):
        owners = np.where(np.arange(60) < size, 0, np.arange(60) % 11 + 1)
        owners[:12] = np.arange(12)
        save_file(arrays(train_clients=owners), path)
        map_ = build(parse(tables, source="test")).method.stages.project.choice
        assert isinstance(map_, PublicTopMask)
        steps.add(map_.trainer.period)
    assert steps == {2}  # ceil(10 / 8) steps through its own samples


class Points(torch.utils.data.Dataset):
    """A map-style data set as torch knows it."""

    def __init__(self, count: int) -> None:
        self._inputs = torch.randn(count, 2, 3, generator=torch.Generator().manual_seed(count))

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._inputs[index], index % 4


def network(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, classes))


def test_names_that_are_taken_are_refused() -> None:
    first, second = (data.from_samples(Points(n), Points(9), classes=4) for n in (8, 10))
    for name in ("digits", "mnist", "file.safetensors"):
        refused(ConfigError, r"is (the name of an existing|a name of a file)", data.register, name, first)
    refused(ConfigError, r"is (the name of an existing|a name of a file)", models.register, "mlp", network)
    data.register("again", first)
    refused(ConfigError, r"registered twice, first by .*test_own_data\.py, line", data.register, "again", second)
    for own in (first, second):  # the same line of code, once more
        data.register("in-a-loop", own)
    assert data.load("in-a-loop") is second


def test_a_loader_is_called_when_its_data_are_needed_and_once() -> None:
    calls: list[int] = []

    def load() -> data.Dataset:
        calls.append(1)
        return data.from_samples(Points(8), Points(9), classes=4)

    data.register("loaded-later", load)
    assert not calls
    assert data.load("loaded-later") is data.load("loaded-later")
    assert len(calls) == 1


def test_a_loader_that_fails_or_gives_something_else_is_one_error() -> None:
    def fails() -> data.Dataset:
        raise KeyError("no such file")

    data.register("fails", fails)
    refused(ConfigError, r"its loader fails: KeyError: 'no such file' \(.*test_own_data", data.load, "fails")
    data.register("none", lambda: None)  # type: ignore[arg-type, return-value]
    refused(ConfigError, "gives NoneType, not a", data.load, "none")
    with pytest.raises(ConfigError, match=r"must be a dpfed\.data\.Dataset or a function"):
        data.register("number", 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be a function that makes a module"):
        models.register("number", 3)  # type: ignore[arg-type]


def test_what_is_no_pair_no_array_and_no_list_is_one_error(tmp_path: Path) -> None:
    pair: Any = (np.zeros((2, 1)), [0, 1])
    refused(DataError, r"must be a pair \(inputs, labels\)", data.from_arrays, pair[:1], pair, classes=2)
    refused(DataError, r"must be a pair \(inputs, labels\)", data.from_arrays, (*pair, [0, 1]), pair, classes=2)
    nowhere = torch.zeros(2, 1, device="meta")
    refused(DataError, "is not an array of numbers", data.from_arrays, (nowhere, [0, 1]), pair, classes=2)
    refused(DataError, "Give a map-style one", data.from_samples, {"inputs": 1}, [pair], classes=2)
    refused(DataError, "must be a list of 1 texts", data.from_clients, [pair], pair, classes=2, ids=5)
    for ignored in (10**30, "padding", 0.5):
        refused(DataError, "whole number of 64 bits", data.from_arrays, pair, pair, classes=2, ignored=ignored)
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as file:
        file.writestr("train_inputs.npy", b"")
    content = bytearray((tmp_path / "x.npz").read_bytes())
    for flags in (6, content.find(b"PK\1\2") + 8):
        content[flags] |= 1  # encrypted
    (tmp_path / "x.npz").write_bytes(content)
    refused(DataError, "cannot be read as .npz", data.load, "x.npz", tmp_path)


@pytest.mark.parametrize(
    "samples",
    [[(np.zeros(2), 0), (np.zeros(3), 1)], [(np.zeros(2), "cat")], [], [(np.zeros(2), 0), (np.zeros(2), 0.7)]],
    ids=range(4),
)
def test_samples_that_are_no_samples_are_one_error(samples: list[Any]) -> None:
    with pytest.raises(DataError, match=r"its items must be \(input, label\)|are text|at least one sample"):
        data.from_samples(samples, samples, classes=2)
    with pytest.raises(DataError, match="one client per training sample"):
        data.from_samples(Points(8), Points(8), classes=4, clients=[1, 2])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"partition": "dirichlet"}, r"data\.alpha: is missing.*'dirichlet' needs it"),
        ({"partition": "dirichlet", "alpha": 0.0}, r"data\.alpha=0\.0"),
        ({"partition": "iid", "alpha": 0.3}, r"data\.alpha with data\.partition='iid': is for dirichlet"),
        ({"partition": "labels"}, r"data\.labels: is missing.*'labels' needs it"),
        ({"partition": "fedpm"}, r"data\.labels: is missing.*'fedpm' needs it"),
        ({"labels": 3}, r"data\.labels with data\.partition='iid': is for labels, fedpm"),
        ({"partition": "shards"}, r"data\.partition='shards'"),
        ({"train_samples": 0}, r"data\.train_samples=0"),
    ],
)
def test_keys_of_partitions_are_checked(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        parse(RUN | {"data": {"name": "digits"} | table, "model": {"name": "mlp"}}, source="run.toml")
    assert str(raised.value).count("\n  ") == 1


@pytest.mark.parametrize(
    ("table", "sizes"),
    [
        ({"partition": "dirichlet", "alpha": 0.3}, 600),
        ({"partition": "labels", "labels": 3}, 600),
        ({"partition": "fedpm", "labels": 10}, 600 - 12),
        ({"partition": "iid"}, 600),
    ],
)
def test_a_configuration_names_its_partition(table: dict[str, Any], sizes: int) -> None:
    limits = {"name": "digits", "train_samples": 600, "test_samples": 50}
    tables = RUN | {"data": limits | table, "model": {"name": "mlp"}}
    first, again = (build(parse(tables, source="test")) for _ in range(2))
    partition = first.method.clients.partition
    assert partition.clients == 12
    assert sizes <= len(partition.indices) <= 600
    assert len(first.dataset.test_labels) == 50
    np.testing.assert_array_equal(partition.indices, again.method.clients.partition.indices)
    rows = {row.tobytes() for row in data.load("digits").train_inputs}
    assert all(row.tobytes() in rows for row in first.dataset.train_inputs)
    assert len({row.tobytes() for row in first.dataset.train_inputs}) == 600


def test_a_natural_partition_needs_owners() -> None:
    tables = RUN | {"data": {"name": "digits", "partition": "natural"}, "model": {"name": "mlp"}}
    refused(ConfigError, r"partition='natural' with data.name='digits'", lambda: build(parse(tables, source="test")))


def test_carving_and_limits_keep_owners_with_their_samples() -> None:
    whole = data.from_samples(Points(40), Points(9), classes=4, clients=[i // 4 for i in range(40)])
    owner = {x.tobytes(): i // 4 for i, x in enumerate(whole.train_inputs)}
    rest, *_ = whole.carve_public(10, np.random.default_rng(0))
    less = whole.at_most(train=7, test=3, generator=np.random.default_rng(0))
    assert len(less.test_labels) == 3
    assert len(less.train_labels) == 7
    for part in (rest, less):
        assert part.natural_clients == 10
        assert part.train_clients is not None
        assert [owner[x.tobytes()] for x in part.train_inputs] == part.train_clients.tolist()
    same = whole.at_most(train=40, test=100, generator=np.random.default_rng(0))
    assert same is whole


def test_samples_of_clients_are_not_public_under_another_name(tmp_path):
    """The same file spelt otherwise, and another file with some of its rows."""
    rows = {name: values.astype(np.float32 if "inputs" in name else np.int64) for name, values in arrays().items()}
    save_file(rows, tmp_path / "mine.safetensors", metadata={"classes": "3"})
    (tmp_path / "other").mkdir()
    fresh = np.random.default_rng(1).normal(size=(60, 5)).astype(np.float32)
    save_file(rows | {"train_inputs": fresh}, tmp_path / "fresh.safetensors", metadata={"classes": "3"})
    fresh[:30] = rows["train_inputs"][:30]
    save_file(rows | {"train_inputs": fresh}, tmp_path / "half.safetensors", metadata={"classes": "3"})
    method = {"name": "fed-smp-topk", "k": 3}

    def built(public_from):
        table = {"name": str(tmp_path / "mine.safetensors"), "public": 40, "public_from": str(public_from)}
        model = {"name": "mlp", "hidden": [4]}
        return build(parse({**RUN, "model": model, "method": method, "data": table}, source="run.toml"))

    wide = {f"{half}_inputs": np.ones((60, 6), np.float32) for half in ("train", "test")}
    save_file(rows | {n: x[: len(rows[n])] for n, x in wide.items()}, tmp_path / "wide.safetensors", {"classes": "3"})
    refused(ConfigError, r"are \(6,\) in 3 classes, mine has \(5,\)", built, tmp_path / "wide.safetensors")
    for known in (tmp_path / "mine.safetensors", tmp_path / "other" / ".." / "mine.safetensors"):
        refused(ConfigError, r"(samples belong to|are samples of) clients", built, known)
    with pytest.raises(ConfigError, match=r"[12]\d of its 40 public samples are samples of clients"):
        built(tmp_path / "half.safetensors")
    assert built(tmp_path / "fresh.safetensors").privacy_target is not None


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        yield torch.ones(2), 0


@pytest.mark.parametrize("samples", [Stream(), (one for one in range(3))], ids=["iterable", "generator"])
def test_a_data_set_that_can_only_be_gone_through_is_refused(samples: Any) -> None:
    refused(DataError, "Give a map-style one", data.from_samples, samples, samples, classes=2)


@pytest.mark.parametrize(
    "clients",
    [
        [1.0, 2.0, float("nan"), float("nan")],
        ["a", "b", float("nan"), float("nan")],
        np.array([1, 2, "NaT", "NaT"], "M8[D]"),
    ],
    ids=["numbers", "names", "dates"],
)
def test_samples_without_a_client_are_not_of_one_client(clients: Any) -> None:
    pair = np.ones((4, 1)), np.array([0, 1, 0, 1])
    refused(DataError, "some samples have no client", data.from_arrays, pair, pair, classes=2, clients=clients)
