"""A user's own data: one safetensors file, or any two map-style data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpfed.data.dataset import Dataset
from dpfed.errors import DataError

_NEEDED = ("train_inputs", "train_labels", "test_inputs", "test_labels")
_OPTIONAL = ("train_clients",)


class Samples(Protocol):
    """A map-style data set, as of torch.utils.data: samples[i] is (input, label)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Any, Any]: ...


def load_arrays(path: Path) -> Dataset:
    """The data set in a safetensors file: train_inputs, train_labels, test_inputs, test_labels; perhaps train_clients.

    Inputs are [N, ...] of any number type and become float32 as they are; labels are integers [N] from 0 on, clients
    integers [N], who holds each training sample. The number of classes is the largest label plus one. safetensors
    holds arrays and nothing else, so reading it runs no code. Raises DataError.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dictionary)
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read as safetensors ({error}). Write it with safetensors.numpy.save_file."
        ) from None
    if missing := sorted(set(_NEEDED) - set(arrays)):
        raise DataError(f"{path}: has no array {', '.join(missing)}; needed are {', '.join(_NEEDED)}. Add it.")
    if unknown := sorted(set(arrays) - set(_NEEDED) - set(_OPTIONAL)):
        raise DataError(f"{path}: unknown array {', '.join(unknown)}; known are {', '.join(_NEEDED + _OPTIONAL)}.")
    return _dataset(path.stem, arrays, str(path))


def from_samples(
    train: Samples, test: Samples, *, classes: int, clients: Sequence[Any] | None = None, name: str = "own"
) -> Dataset:
    """A data set from two map-style ones, whose items are (input, label); inputs become float32, labels integers.

    clients: who holds each training sample (numbers or names), for data.partition = "natural". Raises DataError.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for half, samples in (("train", train), ("test", test)):
        rows = [samples[i] for i in range(len(samples))]
        try:
            arrays[f"{half}_inputs"] = np.stack([np.asarray(x) for x, _ in rows])
            arrays[f"{half}_labels"] = np.array([int(y) for _, y in rows])
        except (TypeError, ValueError) as error:
            raise DataError(
                f"dataset {name!r}, {half} half: its items must be (input, label), inputs of one shape ({error})."
            ) from None
    if clients is not None:
        arrays["train_clients"] = np.unique(np.asarray(clients), return_inverse=True)[1]
    return _dataset(name, arrays, f"dataset {name!r}", classes)


def _dataset(name: str, arrays: dict[str, NDArray[Any]], where: str, classes: int | None = None) -> Dataset:
    labels = [_integers(arrays[f"{half}_labels"], f"{where}, {half}_labels") for half in ("train", "test")]
    clients = arrays.get("train_clients")
    if clients is not None:
        clients = np.unique(_integers(clients, f"{where}, train_clients"), return_inverse=True)[1].astype(np.int64)
    return Dataset(
        name=name,
        train_inputs=_floats(arrays["train_inputs"], f"{where}, train_inputs"),
        train_labels=labels[0],
        test_inputs=_floats(arrays["test_inputs"], f"{where}, test_inputs"),
        test_labels=labels[1],
        classes=1 + max(int(half.max(initial=0)) for half in labels) if classes is None else classes,
        train_clients=clients,
        natural_clients=0 if clients is None else 1 + int(clients.max(initial=-1)),
    )


def _floats(array: NDArray[Any], where: str) -> NDArray[np.float32]:
    if array.dtype.kind not in "biuf" or array.ndim < 2:
        raise DataError(f"{where}: {array.dtype} of shape {array.shape}; must be numbers [N, ...]. Convert it.")
    inputs = array.astype(np.float32)
    if not np.isfinite(inputs).all():
        raise DataError(f"{where}: holds NaN or infinity. Fill or remove these samples.")
    return inputs


def _integers(array: NDArray[Any], where: str) -> NDArray[np.int64]:
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise DataError(f"{where}: {array.dtype} of shape {array.shape}; must be integers [N]. Convert it.")
    return array.astype(np.int64)
