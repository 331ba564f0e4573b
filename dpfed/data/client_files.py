"""Files of samples by client: LEAF's JSON, and the HDF5 files of TensorFlow Federated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from accounting.ledger.regular_file import LARGEST_ARRAYS, read_input, require_input
from dpfed.data.arrays import array_of
from dpfed.data.client_data import from_clients
from dpfed.data.dataset import Classes, Dataset, Numbers
from dpfed.data.files import reading
from dpfed.errors import DataError

_User = TypeVar("_User")
_LEAF = 'a file of LEAF: "users", and "user_data" of each with lists "x" and "y"'


def from_leaf(train: str | Path, test: str | Path, *, classes: Classes, name: str = "leaf") -> Dataset:
    """Return the data set in JSON files written by LEAF's preprocess.sh: a file or a folder of files for each half.

    Each file has "users", and for each user "user_data" with lists "x" and "y". Clients are the users of the training
    half, in the order of the files. classes: as in `from_clients`. Raises DataError.
    """
    held, tested = leaf_users(Path(train), _user_arrays), leaf_users(Path(test), _user_arrays)
    return from_clients(held, _join_samples(tested, str(test)), classes=classes, name=name)


def from_hdf5(
    train: str | Path, test: str | Path, *, inputs: str, label: str, classes: Classes, name: str = "hdf5"
) -> Dataset:
    """Return the data set in two files of TensorFlow Federated's simulation data sets: examples/CLIENT/FEATURE.

    inputs, label: features, such as "pixels" and "label" of federated EMNIST. Clients are those of the training file,
    sorted by name. classes: as in `from_clients`. Needs h5py (`pip install 'dpfed[hdf5]'`). Raises DataError.
    """
    held, tested = _hdf5_clients(Path(train), inputs, label), _hdf5_clients(Path(test), inputs, label)
    return from_clients(held, _join_samples(tested, str(test)), classes=classes, name=name)


def leaf_users(path: Path, read: Callable[[Any, str], _User], *, expected: str = _LEAF) -> list[_User]:
    """Return read(user, place) for each user in a file or a folder of LEAF, in order. Raise DataError."""
    files = [path] if path.is_file() else sorted(path.glob("*.json"))
    users: dict[str, _User] = {}
    for file in files:
        with reading(file, expected):
            content = json.loads(read_input(file, at_most=LARGEST_ARRAYS))
            for user in content["users"]:
                if str(user) in users:
                    raise ValueError(f"one of its users is in it twice, or in an earlier file of {path}, too")
                users[str(user)] = read(content["user_data"][user], f"{file}, user {len(users)}")
    if not users:
        raise DataError(f"{path}: {len(files)} .json files hold no user. Let LEAF's preprocess.sh write them.")
    return list(users.values())


def _user_arrays(user: Any, where: str) -> tuple[Numbers, Numbers]:
    inputs, labels = array_of(user["x"], where), array_of(user["y"], where)
    if inputs.dtype.kind not in "biuf":
        raise ValueError(
            "its samples are not numbers. Declare a vocabulary in advance and write numbers by it; one that is "
            "collected from all clients' samples would be a release"
        )
    return (inputs[:, None] if inputs.ndim == 1 else inputs), labels


def _hdf5_clients(path: Path, inputs: str, label: str) -> list[tuple[Numbers, Numbers]]:
    try:
        import h5py
    except ImportError as error:
        raise DataError(f"{path}: needs h5py ({error}): pip install 'dpfed[hdf5]'.") from None
    with reading(path, f"examples/CLIENT/{inputs} and {label} in it. Name its features"):
        require_input(path, at_most=LARGEST_ARRAYS)
        with h5py.File(path, "r") as file:
            examples = file["examples"]
            return [(examples[client][inputs][()], examples[client][label][()]) for client in sorted(examples)]


def _join_samples(each: list[tuple[Numbers, Numbers]], where: str) -> tuple[Numbers, Numbers]:
    with reading(Path(where), "samples of one shape in the test half"):
        full = [one for one in each if len(one[0])]
        return np.concatenate([one[0] for one in full]), np.concatenate([one[1] for one in full])
