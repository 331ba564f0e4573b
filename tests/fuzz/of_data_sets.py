"""Parsers of data sets."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib

import numpy as np
from fuzz.parser import Parser, folder, written
from safetensors.numpy import save
from scipy.io import savemat

from dpfed.data.arrays import load_arrays
from dpfed.data.files import read_idx
from dpfed.data.mnist import load_cifar10
from dpfed.data.shakespeare import load_shakespeare, load_shakespeare_leaf
from dpfed.data.svhn import read_mat


def _idx_seeds() -> list[bytes]:
    return [struct.pack(">HBB3I", 0, 8, 3, 2, 3, 4) + bytes(range(24)), struct.pack(">HBB3I", 0, 8, 3, 0, 3, 4)]


def _idx(content: bytes) -> None:
    assert read_idx(written(content, "images-idx3-ubyte"), axes=3).ndim == 3


def _zipped_idx(content: bytes) -> None:
    assert read_idx(written(content, "images-idx3-ubyte.gz"), axes=3).ndim == 3


def _mat_seeds() -> list[bytes]:
    arrays = {"X": np.arange(24, dtype=np.uint8).reshape(2, 3, 4), "y": np.array([[1.0], [2.0]]), "text": "words"}
    contents = []
    for compressed in (False, True):
        buffer = io.BytesIO()
        savemat(buffer, arrays, do_compression=compressed)
        contents.append(buffer.getvalue())
    return contents


def _deflated_mat(content: bytes) -> bytes:
    """A file of one compressed element: the mutated bytes behind the header, deflated."""
    packed = zlib.compress(content[128:], 1)
    return _mat_seeds()[0][:128] + struct.pack("<II", 15, len(packed)) + packed


def _mat(content: bytes) -> None:
    assert set(read_mat(written(content, "file.mat"), {"X", "y"})) == {"X", "y"}


def _one_mat_seeds() -> list[bytes]:
    contents = []
    for array in (np.arange(24, dtype=np.int16).reshape(2, 3, 4), np.empty((0, 3, 4, 5), dtype=np.uint8)):
        buffer = io.BytesIO()
        savemat(buffer, {"X": array})
        contents.append(buffer.getvalue())
    return contents


def _one_mat(content: bytes) -> None:
    assert set(read_mat(written(content, "file.mat"), {"X"})) == {"X"}


def _cifar_seeds() -> list[bytes]:
    return [bytes([3]) + bytes(3072), bytes(3073 * 2)]


def _cifar(content: bytes) -> None:
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        written(_cifar_seeds()[0], f"cifar-10-batches-bin/{name}.bin")
    written(content, "cifar-10-batches-bin/data_batch_3.bin")
    load_cifar10(folder())


def _play(lines: int) -> bytes:
    speech = "All the world's a stage, and all the men and women merely players.\n" * lines
    return f"JAQUES:\n{speech}\nORLANDO:\n{speech}".encode()


def _shakespeare(content: bytes) -> None:
    written(content, "shakespeare/input.txt")
    load_shakespeare(folder())


def _leaf_seeds() -> list[bytes]:
    user = {"x": ["a" * 80, "b" * 80], "y": ["c", "d"]}
    return [json.dumps({"users": ["A", "B"], "num_samples": [2, 2], "user_data": {"A": user, "B": user}}).encode()]


def _leaf(content: bytes) -> None:
    written(_leaf_seeds()[0], "shakespeare/data/test/a.json")
    written(content, "shakespeare/data/train/a.json")
    load_shakespeare_leaf(folder())


def _arrays() -> dict[str, np.ndarray]:
    labels = np.array([0, 1, 2], dtype=np.int64)
    inputs = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    return {"train_inputs": inputs, "train_labels": labels, "test_inputs": inputs, "test_labels": labels}


def _own_data_seeds() -> list[bytes]:
    halves = {name: array.astype(np.uint8) for name, array in _arrays().items()}
    owned = _arrays() | {"train_clients": np.array([5, -7, 5], dtype=np.int32)}
    return [save(_arrays()), save(owned, metadata={"classes": "4"}), save(halves, metadata={"classes": "3"})]


def _own_data(content: bytes) -> None:
    for classes in (4, None):
        found = load_arrays(written(content, "mine.safetensors"), classes=classes)
        assert found.classes in (3, 4)
        assert 0 <= found.train_labels.min() <= found.train_labels.max() < found.classes


def _header(content: bytes) -> bytes:
    """The length that the header should have: up to the braces that end its tensors, and the spaces after them."""
    end = content.find(b"}}") + 2
    end += len(content[end:]) - len(content[end:].lstrip(b" "))
    return struct.pack("<Q", max(end - 8, 0)) + content[8:]


PARSERS: dict[str, Parser] = {
    "idx": Parser(seeds=_idx_seeds, parse=_idx),
    "idx-gz": Parser(seeds=_idx_seeds, parse=_zipped_idx, sealed=lambda content: gzip.compress(content, 1)),
    "mat": Parser(seeds=_mat_seeds, parse=_mat),
    "mat-deflated": Parser(seeds=_one_mat_seeds, parse=_one_mat, sealed=_deflated_mat),
    "cifar": Parser(seeds=_cifar_seeds, parse=_cifar),
    "shakespeare": Parser(seeds=lambda: [_play(9), _play(3)], parse=_shakespeare),
    "leaf": Parser(seeds=_leaf_seeds, parse=_leaf),
    "own-data": Parser(seeds=_own_data_seeds, parse=_own_data, sealed=_header),
}
