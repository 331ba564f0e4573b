"""User-defined data: one file of arrays, or any two map-style data sets."""

from __future__ import annotations

import random
import sys
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from accounting.ledger.regular_file import LARGEST_ARRAYS, require_input
from dpfed.data.client_ids import ClientIds
from dpfed.data.dataset import (
    Classes,
    Dataset,
    Numbers,
    Part,
    check_classes,
    exact_floats,
    finite_numbers,
    labels_fit,
    names_of,
    refuse_gaps,
    undeclared_label,
)
from dpfed.data.parts import Inputs, pack, parts_of
from dpfed.errors import DataError

_NEEDED = ("train_inputs", "train_labels", "test_inputs", "test_labels")
_TARGETS = ("train_targets", "test_targets")
_OPTIONAL = ("train_clients",)
SUFFIXES = (".safetensors", ".npz")

Pair = tuple[object, object]
"""Inputs and labels."""


class Samples(Protocol):
    """A map-style data set, as of torch.utils.data: samples[i] is (input, label)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[object, object]: ...


def load_arrays(path: Path, *, classes: int | None = None, ignored: int | None = None) -> Dataset:
    """Return the data set in a file .safetensors or .npz: train_inputs, train_labels, test_inputs, test_labels,
    optionally train_clients.

    Inputs are [N, ...] of any number type, converted by `finite_numbers`; labels are integers [N, ...] from 0 on.
    Clients are integers [N], the client of each training sample. Such files have arrays only (objects in .npz are
    refused), so reading them runs no code. train_targets and test_targets in place of the labels are numbers [N, ...]
    to predict, not classes.

    The number of classes is declared by the file (metadata "classes": "10"; in .npz a number `classes` beside the
    arrays), or by `classes`. Labels are private, and the size of the network, which is published, must not be computed
    from them. `ignored` is a label that neither loss nor accuracy counts. Raises DataError.
    """
    arrays, declared = _npz_arrays(path) if path.suffix == ".npz" else _safetensors_arrays(path)
    clients = arrays.get("train_clients")
    if clients is not None and clients.dtype.kind != "U" and (clients.dtype.kind not in "iu" or clients.ndim != 1):
        raise DataError(
            f"{path}, train_clients: {clients.dtype} of shape {clients.shape}; must be integers [N]. Convert it."
        )
    if set(_TARGETS) & set(arrays):
        return replace(_target_dataset(path, arrays, declared, classes), ignored=ignored)
    if missing := sorted(set(_NEEDED) - set(arrays)):
        raise DataError(
            f"{path}: has no array {', '.join(missing)}; needed are {', '.join(_NEEDED)} (for numbers in place of "
            f"classes {' and '.join(_TARGETS)}). Add it."
        )
    if unknown := sorted(set(arrays) - set(_NEEDED) - set(_OPTIONAL)):
        raise DataError(f"{path}: unknown array {', '.join(unknown)}; known are {', '.join(_NEEDED + _OPTIONAL)}.")
    count = _class_count(path, declared, classes)
    return _make_dataset(path.stem, arrays, str(path), count, ignored)


def _safetensors_arrays(path: Path) -> tuple[dict[str, Numbers], str | None]:
    """Return the file's arrays, and the number of classes in its metadata. Raise DataError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        require_input(path, at_most=LARGEST_ARRAYS)
        with safe_open(path, framework="numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dictionary)
            return arrays, (file.metadata() or {}).get("classes")
    except (OSError, SafetensorError, TypeError, ValueError, AttributeError, MemoryError) as error:
        raise DataError(
            f"{path}: cannot be read as safetensors ({error}). Write it with safetensors.numpy.save_file."
        ) from None


def _npz_arrays(path: Path) -> tuple[dict[str, Numbers], str | None]:
    """Return the file's arrays, and the number `classes` among them.

    Raises DataError, also for a file that unpacks to too many bytes.
    """
    try:
        require_input(path, at_most=LARGEST_ARRAYS)
        with zipfile.ZipFile(path) as pack:
            if sum(one.file_size for one in pack.infolist()) > LARGEST_ARRAYS:
                raise ValueError(f"unpacks to more than {LARGEST_ARRAYS:,} bytes")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"{path}: cannot be read as .npz ({error}). Write it with numpy.savez, numbers only and no objects."
        ) from None
    declared = arrays.pop("classes", None)
    return arrays, None if declared is None else str(declared)


def _target_dataset(path: Path, arrays: dict[str, Numbers], declared: str | None, classes: int | None) -> Dataset:
    """Return the data set of a file with targets. Raise DataError if it has other arrays."""
    known = {name.replace("labels", "targets") for name in _NEEDED}
    if set(arrays) - set(_OPTIONAL) != known:
        raise DataError(
            f"{path}: holds {', '.join(sorted(arrays))}; with targets these must be {', '.join(sorted(known))}, "
            f"perhaps {', '.join(_OPTIONAL)}, and no others."
        )
    if declared is not None or classes is not None:
        raise DataError(
            f"{path}: has {' and '.join(_TARGETS)}, which are not classes, but a number of classes is declared. "
            "Rename them train_labels and test_labels, or remove data.classes."
        )
    arrays = {name.replace("targets", "labels"): a for name, a in arrays.items()}
    return _make_dataset(path.stem, arrays, str(path), None)


def _class_count(path: Path, in_file: str | None, given: int | None) -> int:
    """Return the number of classes declared by the file's metadata, else by the configuration. Raise DataError."""
    if in_file is None and given is None:
        raise DataError(
            f"{path}: the number of classes is not declared. Set data.classes = N in the configuration, or write the "
            'file with save_file(..., metadata={"classes": "N"}) or savez(..., classes=N). It is public and is not '
            "counted from the labels, which are private."
        )
    number = (
        int(in_file)
        if in_file is not None and in_file.isascii() and in_file.isdecimal() and len(in_file) < 10
        else in_file
    )
    classes = check_classes(given if number is None else number, where=f"{path}, metadata")
    if given is not None and given != classes:
        raise DataError(f"{path}: its metadata declare {classes} classes, data.classes is {given}. Declare one number.")
    return classes


def from_samples(
    train: Samples,
    test: Samples,
    *,
    classes: Classes,
    clients: Sequence[object] | None = None,
    name: str = "own",
    ignored: int | None = None,
) -> Dataset:
    """Return a data set from two map-style ones with items (input, label), or dictionaries of named parts and a label.

    Labels are integers; in a dictionary the key is `labels` or `label`. Inputs become float32; integers of 32 or 64
    bits are kept if the network of a run accepts them.

    classes: number of labels, which is public; None if items are (input, target), a target being a number or an array
             of numbers, which become float32 if they are floating
    clients: client of each training sample (numbers or names), for data.partition = "natural"
    ignored: label that neither loss nor accuracy counts, such as -100 for padding; it is public. Raises DataError.
    """
    pairs = []
    for half, samples in (("train", train), ("test", test)):
        if not (hasattr(samples, "__len__") and hasattr(samples, "__getitem__")) or isinstance(samples, Mapping):
            raise DataError(
                f"dataset {name!r}, {half} half: {type(samples).__name__} has no length or no samples[i], and a data "
                "set that can only be iterated over is not enough. Give a map-style one, or list(it)."
            )
        rows = items_of(samples)
        pairs.append(rows_of(rows, f"dataset {name!r}, {half} half", of_classes=classes is not None))
    return from_arrays(pairs[0], pairs[1], classes=classes, clients=clients, name=name, ignored=ignored)


_DRAWN_ONCE = (
    "samples: reading a sample twice gives two results, so the data set augments at random. Each sample was drawn "
    "once, and the run trains on that draw: give a random augmentation in the network (while self.training), or "
    "several draws of each sample as the client's data."
)
_READ_TWICE = 8


def items_of(samples: Samples) -> list[Any]:
    """Return all items of a map-style data set. Warn once if its first items differ when they are read again; global
    random generators are then restored.
    """
    items = [samples[i] for i in range(len(samples))]
    torch = sys.modules.get("torch")
    states = random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state()  # noqa: NPY002
    try:
        if not all(_is_equal(one, samples[i]) for i, one in enumerate(items[:_READ_TWICE])):
            warnings.warn(_DRAWN_ONCE, stacklevel=2)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(states[2])
    return items


def _is_equal(first: Any, second: Any) -> bool:
    """Return True if two items have equal numbers. Items of other types count as equal."""
    if isinstance(first, Mapping):
        return all(_is_equal(first[key], second[key]) for key in first if key in second)
    if isinstance(first, tuple | list):
        return all(map(_is_equal, first, second))
    try:
        return bool(np.array_equal(np.asarray(first), np.asarray(second), equal_nan=False))
    except (TypeError, ValueError):
        return True


def rows_of(rows: Sequence[Any], where: str, *, of_classes: bool = False) -> tuple[Inputs, Numbers]:
    """Return inputs and labels of items (input, label) or dictionaries. of_classes: a sample's only label is an
    integer. Raise DataError for other items."""
    refuse_gaps(list(rows), where)
    try:
        if rows and isinstance(rows[0], Mapping):
            parts, labels = parts_of(rows, where)
            return parts, _stack_labels(labels, of_classes=of_classes)
        inputs = np.stack(join_types([np.asarray(x) for x, _ in rows], where)) if rows else np.zeros((0, 1))
        return inputs, _stack_labels([y for _, y in rows], of_classes=of_classes)
    except DataError:
        raise
    except OverflowError:
        raise DataError(f"{where}: a label is not a whole number of 64 bits. Number the classes from 0 on.") from None
    except (TypeError, ValueError) as error:  # its message may contain a label
        raise DataError(
            f"{where}: its items must be (input, label), inputs of one shape, labels integers, or with classes=None "
            f"targets of one shape ({type(error).__name__})."
        ) from None


def _stack_labels(labels: Sequence[Any], *, of_classes: bool) -> Numbers:
    """Return labels as integers; other targets as numbers of one shape, or text."""
    if not labels:
        return np.zeros(0, dtype=np.int64)
    if not of_classes or np.ndim(labels[0]) or isinstance(labels[0], str):
        return np.stack([np.asarray(label) for label in labels])
    whole = [int(label) for label in labels]
    if any(label != one for one, label in zip(whole, labels, strict=True)):
        raise ValueError  # a fraction, which int cuts off
    return np.array(whole, dtype=np.int64)


def from_arrays(
    train: Pair,
    test: Pair,
    *,
    classes: Classes,
    clients: Sequence[object] | None = None,
    name: str = "own",
    ignored: int | None = None,
) -> Dataset:
    """Return a data set from (inputs, labels) of each half: numpy arrays, tensors, or anything that numpy can convert.

    Inputs are [N, ...], or a dictionary of such arrays, by the names of a network's arguments; classes and clients as
    in `from_samples`. Labels are integers [N] or, with classes=None, targets of any shape. Raises DataError.
    """
    where = f"dataset {name!r}"
    parts: list[Part] = []
    for which, pair in (("train", train), ("test", test)):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"{where}, {which} half: must be a pair (inputs, labels). Give both.")
    inputs = [inputs_of(half[0], f"{where}, {which} inputs") for which, half in (("train", train), ("test", test))]
    named = [one for one in inputs if isinstance(one, Mapping)]
    if len(named) == 2:
        arrays, parts = pack(named[0], named[1], where)
    elif named:
        raise DataError(f"{where}: samples of one half have named parts, of the other none. Give both one form.")
    else:
        arrays = [one for one in inputs if not isinstance(one, Mapping)]
    given = {"train_inputs": arrays[0], "test_inputs": arrays[1]}
    for half, (_, labels) in (("train", train), ("test", test)):
        given[f"{half}_labels"] = array_of(labels, f"{where}, {half} labels")
    if clients is not None:
        given["train_clients"] = _client_names(clients, name)
    return replace(_make_dataset(name, given, where, classes, ignored), parts=tuple(parts))


def inputs_of(values: object, where: str) -> Inputs:
    """Return an array of numbers, or one for each named part. Raise DataError for values that are not numbers."""
    if isinstance(values, Mapping):
        return {str(name): array_of(part, f"{where}, part {name!r}") for name, part in values.items()}
    if isinstance(values, tuple) and len({np.ndim(one) for one in values if hasattr(one, "shape")}) == 1:
        shapes = [tuple(one.shape) for one in values if hasattr(one, "shape")]
        if len(shapes) == len(values) > 1 and len(shapes[0]) > 1:
            raise DataError(several_inputs(where, len(values)))
    return array_of(values, where)


def several_inputs(where: str, count: int) -> str:
    """Return the error text for several inputs without names."""
    return (
        f"{where}: {count} arrays of inputs without names. Give a dictionary of them, by the names of the network's "
        "arguments: {'image': ..., 'age': ..., 'labels': ...}, or ({'image': ..., 'age': ...}, labels)."
    )


def array_of(values: object, where: str) -> Numbers:
    """Return an array of numbers; tensors on any device are converted. Raise DataError for other values."""
    refuse_gaps(values, where)
    try:
        held: Any = values.detach().cpu() if hasattr(values, "detach") else values
        if str(getattr(held, "dtype", "")) == "torch.bfloat16":
            held = held.float()  # numpy has no such type
        made = np.asarray(held)
    except (TypeError, ValueError, RuntimeError) as error:  # its message may contain a value
        raise DataError(f"{where}: is not an array of numbers ({type(error).__name__}). Convert it.") from None
    if made.ndim == 0 and made.dtype == object:
        raise DataError(f"{where}: {type(values).__name__} is not an array of numbers. Convert it, as by .toarray().")
    return made


def _client_names(clients: Sequence[object], name: str) -> Numbers:
    """Return the client of each sample: whole numbers, texts, or other sortable values. Raise DataError."""
    refuse_gaps(clients, f"dataset {name!r}, clients")
    try:
        array = np.asarray(clients)
        names = clients if array.dtype.kind in "OUS" else array
        if any(one is None or one != one for one in names):  # NaN and NaT are refused, too
            raise DataError(f"dataset {name!r}: some samples have no client (NaN). Fill or remove them.")
        np.unique(array)  # raises an error for values that cannot be sorted
        return array
    except DataError:
        raise
    except (TypeError, ValueError) as error:
        raise DataError(
            f"dataset {name!r}: clients must be numbers or names, one per training sample ({type(error).__name__})."
        ) from None


def _make_dataset(
    name: str, arrays: dict[str, Numbers], where: str, classes: Classes, ignored: int | None = None
) -> Dataset:
    names = names_of(classes, where)
    number: object = classes if names is None else len(names)
    if names is not None:
        for half in ("train_labels", "test_labels"):
            arrays[half] = _class_positions(arrays[half], names, where)
    if number is None:
        labels = [_checked_targets(arrays[f"{half}_labels"], f"{where}, {half}_targets") for half in ("train", "test")]
    else:
        number = check_classes(number, where=where)
        halves = ("train", "test")
        labels = [_checked_labels(arrays[f"{half}_labels"], f"{where}, {half}_labels", number) for half in halves]
        if not all(labels_fit(half, number, ignored) for half in labels):
            raise undeclared_label(where, number)
    clients, ids = arrays.get("train_clients"), None
    if clients is not None:
        owners, clients = np.unique(clients, return_inverse=True)
        clients, ids = clients.astype(np.int64), ClientIds.of(owners.tolist())
    inputs = [finite_numbers(arrays[f"{half}_inputs"], f"{where}, {half}_inputs") for half in ("train", "test")]
    inputs = join_types(inputs, f"{where}, inputs")
    return Dataset(
        name=name,
        train_inputs=inputs[0],
        train_labels=labels[0],
        test_inputs=inputs[1],
        test_labels=labels[1],
        classes=number,
        train_clients=clients,
        natural_clients=0 if clients is None else 1 + int(clients.max(initial=-1)),
        client_ids=ids,
        ignored=ignored,
    )


def join_types(arrays: list[Numbers], where: str) -> list[Numbers]:
    """Return arrays of one type, so that they can be joined.

    If some are integers of 32 or 64 bits and others are not, all become float32. Raises DataError for integers that
    float32 cannot represent.
    """
    wide = [array.dtype.kind in "iu" and array.dtype.itemsize > 2 for array in arrays]
    if all(wide) or not any(wide):
        return arrays
    return [exact_floats(array, where) if one else array for array, one in zip(arrays, wide, strict=True)]


def _checked_labels(array: Numbers, where: str, classes: int) -> NDArray[np.int64]:
    """Return integers unchanged, truth values of 2 classes as 0 and 1, one-hot fractions [N, classes] as class
    numbers.
    """
    if array.dtype.kind == "b" and classes == 2:
        return array.astype(np.int64)
    fractions = array.dtype.kind == "f" and array.shape[1:] == (classes,)
    if fractions and np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all():
        places: NDArray[np.int64] = array.argmax(axis=1).astype(np.int64)
        return places
    if array.dtype.kind in "US":
        raise DataError(
            f"{where}: labels are text. Turn them into numbers by a list of classes that is declared in advance, or "
            "give a table and classes=[...], their names."
        )
    if array.dtype.kind not in "iu" or array.ndim < 1:
        raise DataError(
            f"{where}: {array.dtype} of shape {array.shape}; must be integers [N], or [N, ...] for several labels per "
            "sample. Convert whole numbers by .astype(int) or .long(), after filling gaps. Numbers that are no classes "
            "need classes=None, in a file the names train_targets and test_targets."
        )
    return array.astype(np.int64)


def _class_positions(labels: Numbers, names: Sequence[str], where: str) -> Numbers:
    """Return the position of each text label among the declared names. Raise DataError for an undeclared label."""
    if labels.dtype.kind not in "UO":
        raise DataError(f"{where}: labels are {labels.dtype}, and classes are declared by name. Declare their number.")
    places = {one: place for place, one in enumerate(names)}
    try:
        return np.array([places[str(one)] for one in labels.flat], dtype=np.int64).reshape(labels.shape)
    except KeyError:
        raise undeclared_label(where, len(names)) from None


def _checked_targets(array: Numbers, where: str) -> Numbers:
    """Return floats as float32; integers and truth values unchanged, except unsigned types that torch lacks."""
    if array.ndim and (array.dtype.kind in "bi" or array.dtype == np.uint8):
        return array
    if array.ndim and array.dtype == np.uint16:
        return array.astype(np.int64)
    return finite_numbers(array, where, dimensions=1)
