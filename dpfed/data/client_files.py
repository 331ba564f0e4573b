"""Files of samples by client: LEAF's JSON, and the HDF5 files of TensorFlow Federated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from accounting.ledger.regular_file import LARGEST_ARRAYS, require_input
from dpfed.data.arrays import array_of
from dpfed.data.client_data import from_clients
from dpfed.data.dataset import Classes, Dataset, Numbers
from dpfed.errors import DataError


def from_leaf(train: str | Path, test: str | Path, *, classes: Classes, name: str = "leaf") -> Dataset:
    """Return the data set in JSON files written by LEAF's preprocess.sh: a file or a folder of files for each half.

    Each file has "users", and for each user "user_data" with lists "x" and "y". Clients are the users of the training
    half, in the order of the files. classes: as in `from_clients`. Raises DataError.
    """
    held = [_user_arrays(one, f"{train}, user {place}") for place, one in enumerate(_leaf_users(Path(train)))]
    tested = [_user_arrays(one, f"{test}, user {place}") for place, one in enumerate(_leaf_users(Path(test)))]
    return from_clients(held, _join_samples(tested, str(test)), classes=classes, name=name)


def from_hdf5(
    train: str | Path, test: str | Path, *, inputs: str, label: str, classes: Classes, name: str = "hdf5"
) -> Dataset:
    """Return the data set in two files of TensorFlow Federated's simulation data sets: examples/CLIENT/FEATURE.

    inputs, label: features, such as "pixels" and "label" of federated EMNIST. Clients are those of the training file,
    sorted by name. classes: as in `from_clients`. Needs h5py (`pip install 'dpfed[hdf5]'`). Raises DataError.
    """
    held = list(_hdf5_clients(Path(train), inputs, label))
    tested = list(_hdf5_clients(Path(test), inputs, label))
    return from_clients(held, _join_samples(tested, str(test)), classes=classes, name=name)


def _leaf_users(path: Path) -> Iterator[Any]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: has no .json files. Give the folder or the file that LEAF's preprocess.sh wrote.")
    seen: set[str] = set()
    for file in files:
        try:
            require_input(file, at_most=LARGEST_ARRAYS)
            content = json.loads(file.read_bytes())
            held = {str(user): content["user_data"][user] for user in content["users"]}
        except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
            raise DataError(
                f'{file}: is not a file of LEAF ({type(error).__name__}). It needs "users", and "user_data" of each.'
            ) from None
        if twice := seen & held.keys():
            raise DataError(
                f"{file}: {len(twice)} users are in an earlier file of {path}, too. Remove one of the files."
            )
        seen |= held.keys()
        yield from held.values()


def _user_arrays(user: Any, where: str) -> tuple[Numbers, Numbers]:
    if not isinstance(user, dict) or not {"x", "y"} <= user.keys():
        raise DataError(f'{where}: has no lists "x" and "y".')
    inputs, labels = array_of(user["x"], where), array_of(user["y"], where)
    if inputs.dtype.kind not in "biuf":
        raise DataError(
            f"{where}: its samples are not numbers. Declare a vocabulary in advance and write numbers by it; one that "
            "is collected from all clients' samples would be a release."
        )
    return (inputs[:, None] if inputs.ndim == 1 else inputs), labels


def _hdf5_clients(path: Path, inputs: str, label: str) -> Iterator[tuple[Numbers, Numbers]]:
    try:
        import h5py
    except ImportError as error:
        raise DataError(f"{path}: needs h5py ({error}): pip install 'dpfed[hdf5]'.") from None
    try:
        require_input(path, at_most=LARGEST_ARRAYS)
        with h5py.File(path, "r") as file:
            examples = file["examples"]
            for client in sorted(examples):
                yield examples[client][inputs][()], examples[client][label][()]
    except (OSError, KeyError, TypeError, ValueError, AttributeError, MemoryError) as error:
        raise DataError(
            f"{path}: has no examples/CLIENT/{inputs} and {label} ({type(error).__name__}). Name its features."
        ) from None


def _join_samples(each: list[tuple[Numbers, Numbers]], where: str) -> tuple[Numbers, Numbers]:
    full = [one for one in each if len(one[0])]
    if not full:
        raise DataError(f"{where}: has no samples. Give the test half.")
    try:
        return np.concatenate([one[0] for one in full]), np.concatenate([one[1] for one in full])
    except ValueError:
        raise DataError(f"{where}: its samples have different shapes. Give them one shape.") from None
