"""CIFAR is read from the binary version, whole or not at all, and never unpickled."""

import os
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

from dpfed.data import load
from dpfed.errors import DataError

REAL = os.environ.get("DPFED_DATA_DIR")
FILES = {
    "cifar-10": ("cifar-10-batches-bin", [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"], 1, 10),
    "cifar-100": ("cifar-100-binary", ["train.bin", "test.bin"], 2, 100),
}


def record(labels: list[int], red: int, green: int, blue: int, corner: int) -> bytes:
    """Label bytes, then 1,024 bytes a channel, row by row; the second pixel of the first row is `corner`."""
    planes = [bytearray([value]) * 1024 for value in (red, green, blue)]
    planes[0][1] = corner
    return bytes(labels) + b"".join(planes)


@pytest.fixture(params=sorted(FILES))
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder, files, labels, _ = FILES[request.param]
    (tmp_path / folder).mkdir()
    for place, file in enumerate(files):
        first, second = ([3], [9]) if labels == 1 else ([19, 77], [4, 99])
        content = record(first, place, 0, 255, 200) + record(second, 0, 0, 0, 0)
        (tmp_path / folder / file).write_bytes(content)
    return request.param


def test_records_become_labels_and_standardised_channels(name: str, tmp_path: Path) -> None:
    data = load(name, tmp_path)
    _, files, _, classes = FILES[name]
    assert data.train_inputs.shape == (2 * len(files) - 2, 3, 32, 32)
    assert data.train_labels[:2].tolist() == ([3, 9] if name == "cifar-10" else [77, 99])
    assert data.classes == classes
    means, deviations = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    if name == "cifar-100":
        means, deviations = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    last = len(files) - 1
    for channel, value in enumerate((last / 255, 0.0, 1.0)):
        seen = data.test_inputs[0, channel, 5, 7]
        assert seen == pytest.approx((value - means[channel]) / deviations[channel], rel=1e-5)
    assert data.test_inputs[0, 0, 0, 1] == pytest.approx((200 / 255 - means[0]) / deviations[0], rel=1e-5)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "0 bytes"),
        (b"x" * 3072, "whole number of records"),
        (record([1, 1], 0, 0, 0, 0) * 3 + b"x", "whole number of records"),
    ],
    ids=["empty", "short", "byte-over"],
)
def test_a_damaged_file_is_one_error(name: str, tmp_path: Path, content: bytes, complaint: str) -> None:
    folder, files, _, _ = FILES[name]
    path = tmp_path / folder / files[-1]
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint) as raised:
        load(name, tmp_path)
    assert str(path) in str(raised.value)


def test_an_endless_file_is_not_read_to_its_end(name: str, tmp_path: Path) -> None:
    folder, files, labels, _ = FILES[name]
    with (tmp_path / folder / files[0]).open("wb") as file:
        file.truncate(2**40)  # sparse
    refused(DataError, f"the limit is {100_000 * (3072 + labels):,}", load, name, tmp_path)


def test_a_missing_file_and_a_wrong_label_are_named(name: str, tmp_path: Path) -> None:
    folder, files, labels, classes = FILES[name]
    (tmp_path / folder / files[0]).write_bytes(record([0] * (labels - 1) + [classes], 0, 0, 0, 0))
    refused(DataError, f"a label of .* is not among the {classes} declared classes", load, name, tmp_path)
    (tmp_path / folder / files[0]).unlink()
    refused(DataError, files[0], load, name, tmp_path)


@pytest.mark.parametrize(("name", "pickled"), [("cifar-10", "cifar-10-batches-py"), ("cifar-100", "cifar-100-python")])
def test_the_pickled_version_is_refused_with_the_way_to_the_other(tmp_path: Path, name: str, pickled: str) -> None:
    refused(DataError, r"No such file.*Unpack the binary version", load, name, tmp_path)
    (tmp_path / pickled).mkdir()
    refused(DataError, rf"{name}-binary.tar.gz from https.*unpickling runs code", load, name, tmp_path)


@pytest.mark.skipif(not REAL, reason="DPFED_DATA_DIR is not set: the real files are not here")
def test_real_cifar_10_has_the_published_moments() -> None:
    if not (Path(REAL or "") / "cifar-10-batches-bin").is_dir():
        pytest.skip("DPFED_DATA_DIR has no cifar-10-batches-bin")
    data = load("cifar-10")
    assert data.train_inputs.shape == (50_000, 3, 32, 32)
    assert np.bincount(data.train_labels).tolist() == [5000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
    channels = data.train_inputs.mean(axis=(0, 2, 3), dtype=np.float64)
    assert channels == pytest.approx([0, 0, 0], abs=5e-3)  # also for copies that went through JPEG
    assert data.train_inputs[::10].std(axis=(0, 2, 3), dtype=np.float64) == pytest.approx([1, 1, 1], abs=0.02)
