"""Data sets from local files, and their division among clients. Importing this loads no data."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from pathlib import Path

from dpfed.data.dataset import Dataset
from dpfed.data.digits import load_digits
from dpfed.data.mnist import load_fashion_mnist, load_mnist
from dpfed.data.partition import Partition, iid
from dpfed.errors import ConfigError, DataError

__all__ = ["DATASETS", "Dataset", "Partition", "iid", "load"]

DATASETS: dict[str, Callable[[str | Path | None], Dataset]] = {
    "digits": lambda root: load_digits(),
    "mnist": lambda root: load_mnist(_folder("mnist", root)),
    "fashion-mnist": lambda root: load_fashion_mnist(_folder("fashion-mnist", root)),
}
"""Name -> loader that takes the data root (`digits` needs none)."""


def load(name: str, root: str | Path | None = None) -> Dataset:
    """The data set `name`, read from the folder `root`, or from $DPFED_DATA_DIR when root is None.

    Raises ConfigError for an unknown name and DataError when its files are missing or damaged.
    """
    if name not in DATASETS:
        nearest = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0)[0]
        raise ConfigError(
            f"dataset={name!r}: known data sets are {', '.join(sorted(DATASETS))}. Did you mean {nearest!r}?"
        )
    return DATASETS[name](root)


def _folder(name: str, root: str | Path | None) -> Path:
    chosen = root if root is not None else os.environ.get("DPFED_DATA_DIR")
    if not chosen:
        raise DataError(
            f"dataset={name!r}: needs local files, and no folder was given. Pass root=, or set "
            "DPFED_DATA_DIR to the folder that holds MNIST/raw and FashionMNIST/raw; 'digits' needs no files."
        )
    return Path(chosen)
