"""Data sets from local files, and their partition among clients. Importing this package loads no data."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfed.config import own_code
from dpfed.config.own_code import errors_of_user_code
from dpfed.data.arrays import SUFFIXES, from_arrays, from_samples, load_arrays
from dpfed.data.client_data import from_clients
from dpfed.data.dataset import Classes, Columns, Dataset, is_table_name
from dpfed.data.mnist import (
    EMNIST_CLASSES,
    load_cifar10,
    load_cifar100,
    load_digits,
    load_emnist,
    load_fashion_mnist,
    load_mnist,
)
from dpfed.data.partition import Partition, dirichlet, iid, natural, some_labels, unbalanced
from dpfed.data.shakespeare import from_hdf5, from_leaf, load_shakespeare, load_shakespeare_leaf
from dpfed.data.svhn import load_svhn
from dpfed.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from dpfed.data.wavelets import scattering

__all__ = [
    "DATASETS",
    "Columns",
    "Dataset",
    "Partition",
    "dirichlet",
    "from_arrays",
    "from_clients",
    "from_hdf5",
    "from_leaf",
    "from_samples",
    "iid",
    "is_own",
    "load",
    "natural",
    "register",
    "scattering",
    "some_labels",
    "unbalanced",
]

DATASETS: dict[str, Callable[[Path], Dataset]] = {
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    **{f"emnist-{split}": partial(load_emnist, split=split) for split in EMNIST_CLASSES},
    "cifar-10": load_cifar10,
    "cifar-100": load_cifar100,
    "svhn": load_svhn,
    "svhn-extra": partial(load_svhn, extra=True),
    "shakespeare": load_shakespeare,
    "shakespeare-leaf": load_shakespeare_leaf,
}
"""Loader of each data set by name, called with the data root; `digits` is in the package and needs no root."""


def __getattr__(name: str) -> Any:
    """Return `scattering`, which needs torch, on first access."""
    if name != "scattering":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dpfed.data.wavelets import scattering

    return scattering


def load(
    name: str,
    root: str | Path | None = None,
    *,
    classes: Classes = None,
    columns: Columns | None = None,
    ignored: int | None = None,
) -> Dataset:
    """Return the data set `name`, read from the folder `root`, or from $DPFED_DATA_DIR if root is None.

    A name that ends in .safetensors or .npz is a user's file (`arrays.load_arrays`), in the folder `root` or else the
    current one. A name that ends in a slash is a folder of tables, and one that ends in .csv is a table
    (`columns.load_columns`); `columns` selects the columns to use. `classes` declares the number of labels, or their
    names if labels are text, unless the files declare it; neither loss nor accuracy counts the label `ignored`. Raises
    ConfigError for an unknown name, or for `classes` of a data set that declares them, and DataError if files are
    missing or damaged.
    """
    if name.endswith(SUFFIXES):
        if classes is not None and not isinstance(classes, int):
            raise ConfigError(f"data.classes with data.name={name!r}: labels are numbers there. Declare how many.")
        return load_arrays(Path(root or ".") / name, classes=classes, ignored=ignored)
    if is_table_name(name):
        if columns is None:
            raise ConfigError(f"data.name={name!r}: is of tables. Name its columns: data.inputs, data.label.")
        try:
            from dpfed.data.columns import load_columns
        except ImportError as error:
            raise ConfigError(f"tables need pyarrow ({error}): pip install 'dpfed[tables]'.") from None
        return load_columns(Path(root or ".") / name, columns, classes=classes, ignored=ignored)
    if classes is not None:
        raise ConfigError(
            f"data.classes={classes} with data.name={name!r}: data.classes is only for a custom file or folder; this "
            "data set declares its number of classes. Remove it."
        )
    if (registered := own_code.objects_of_kind("data set").get(name)) is not None:
        return registered if isinstance(registered, Dataset) else _loaded(name, registered)
    if name == "digits":
        return load_digits()
    check_name(name)
    return DATASETS[name](_folder(name, root))


def check_name(name: str) -> None:
    """Raise ConfigError with the nearest known name if no data set has this name; its files may still be missing."""
    known = sorted(["digits", *DATASETS, *own_code.objects_of_kind("data set")])
    if name not in known and not is_own(name):
        raise ConfigError(
            f"dataset={name!r}: known data sets are {', '.join(known)}, or a file .safetensors, .npz or .csv, or a "
            "folder of tables, whose name ends in '/'."
            f"{did_you_mean(name, known)} For a custom data set, register it in a file that --load names."
        )


def is_own(name: str) -> bool:
    """Return True if `name` is that of a user's file or folder."""
    return name.endswith(SUFFIXES) or is_table_name(name)


def register(name: str, dataset: Dataset | Callable[[], Dataset]) -> None:
    """Register a custom data set, or a function that loads it, under the name used in data.name, in this process.

    Raises ConfigError for the name of a built-in data set, or a name that another line of code has registered.
    """
    if is_own(name):
        raise ConfigError(f"data set {name!r}: is a name of a file or folder of data. Choose another name.")
    if not isinstance(dataset, Dataset) and not callable(dataset):
        raise ConfigError(
            f"data set {name!r}: is {type(dataset).__name__}; must be a dpfed.data.Dataset or a function that loads "
            "one."
        )
    own_code.register_object("data set", name, dataset, taken=("digits", *DATASETS))


@cache
def _loaded(name: str, load: Callable[[], Dataset]) -> Dataset:
    """Return the registered data set, loaded once; raise ConfigError, with its line, if the user's function fails."""
    with errors_of_user_code(f"data set {name!r}: its loader fails"):
        made = load()
    if not isinstance(made, Dataset):
        raise ConfigError(f"data set {name!r}: its loader gives {type(made).__name__}, not a dpfed.data.Dataset.")
    return made


def _folder(name: str, root: str | Path | None) -> Path:
    chosen = root if root is not None else os.environ.get("DPFED_DATA_DIR")
    if not chosen:
        raise DataError(
            f"dataset={name!r}: needs local files, and no folder was given. Pass root=, or set DPFED_DATA_DIR to the "
            "folder that holds MNIST/raw, cifar-10-batches-bin, SVHN, shakespeare ...; 'digits' needs no files."
        )
    return Path(chosen)
