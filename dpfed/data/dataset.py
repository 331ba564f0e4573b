"""A data set in memory, with labels or other targets, split into a training and a test half."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting import require
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError, DataError

Numbers = NDArray[Any]
"""Array of numbers of any type."""

Classes = int | Sequence[str] | None
"""Number of classes, or their names if labels are text; None for targets that are not classes, or if a file declares
the number.
"""

MOST_CLASSES = 2**16
"""Largest number of classes: a network has weights for every class, even for one that does not occur."""

_WHOLE_FLOATS = 2**24
_OF_TARGETS = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of a table to read. inputs: one or several, concatenated in this order; label: a class, or a number to
    predict; client: the sample's client, for data.partition = "natural".

    vocabulary, fill, range: public declarations by column (`dpfed.data.columns`): values of a column of text, the
    number that replaces a gap, and the interval of a column of numbers."""

    inputs: tuple[str, ...]
    label: str
    client: str | None = None
    vocabulary: Mapping[str, Sequence[str]] = field(default_factory=dict)
    fill: Mapping[str, float] = field(default_factory=dict)
    range: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def is_table_name(name: str) -> bool:
    """Return True if data.name is that of a folder of tables, which ends in a slash, or of a CSV file."""
    return name.endswith(("/", ".csv"))


@dataclass(frozen=True, kw_only=True)
class Part:
    """One named part of a sample, stored in the sample's row of numbers. integers: the network receives it as int64."""

    name: str
    shape: tuple[int, ...]
    integers: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Training and test samples with labels of classes, or with other targets.

    name:           name in reports
    train_inputs:   float32 [N, *input_shape], or int64 for token numbers and the like. A run trains on integers if its
                    network accepts them, else on `as_floats`
    train_labels:   int64 [N, *target_shape], each in 0 .. classes-1; one per sample, or several (for a sequence). If
                    `classes` is None: targets of any shape, of a number type of torch
    test_inputs:    [M, *input_shape] of the type of train_inputs
    test_labels:    labels of the test half, like train_labels
    classes:        number of labels, at most MOST_CLASSES. It is declared because it is public: it is never counted
                    from labels, which are private. None: targets are not classes
    train_clients:  int64 [N], natural client of each training sample, from 0; None without natural clients
    natural_clients: number of natural clients, including clients without samples
    client_ids:     public ids of natural clients, texts or whole numbers; None if clients are positions in a list
    parts:          layout of a sample with named parts, which is one row of numbers (`dpfed.data.parts`)
    ignored:        label outside 0 .. classes-1 that neither loss nor accuracy counts, such as -100; it is public
    raw_inputs:     train_inputs before fixed features (data.features) replaced them; they identify clients
    columns:        columns of the tables from which the samples come, with their declarations

    Raises DataError if shapes, types or labels do not agree; no message contains a value of a sample.
    """

    name: str
    train_inputs: Numbers
    train_labels: Numbers
    test_inputs: Numbers
    test_labels: Numbers
    classes: int | None
    train_clients: NDArray[np.int64] | None = None
    natural_clients: int = 0
    client_ids: ClientIds | None = None
    raw_inputs: Numbers | None = None
    parts: tuple[Part, ...] = ()
    ignored: int | None = None
    columns: Columns | None = None

    def __repr__(self) -> str:
        kind = "targets" if self.classes is None else f"{self.classes} classes"
        clients = f", {self.natural_clients} clients" if self.train_clients is not None else ""
        named = ", ".join(f"{part.name} {list(part.shape)}" for part in self.parts)
        form = f"{{{named}}}" if named else str(list(self.input_shape))
        samples = f"{len(self.train_labels)} + {len(self.test_labels)} samples"
        return f"Dataset({self.name!r}, {samples} {form}, {kind}{clients})"

    def __post_init__(self) -> None:
        if self.classes is not None:
            check_classes(self.classes, where=f"dataset {self.name!r}")
        elif self.ignored is not None:
            raise DataError(
                f"dataset {self.name!r}: ignored={self.ignored} (data.ignored) with targets that are no classes. "
                "Remove it; a custom loss may leave targets out."
            )
        ignored = require.plain(self.ignored)
        if ignored is not None and not (require.is_whole(ignored) and abs(ignored) < 2**63):
            raise DataError(
                f"dataset {self.name!r}: ignored={require.short_repr(ignored)} (data.ignored); must be a whole "
                "number of 64 bits, as labels are. Change it."
            )
        _check_half(self.name, "train", self.train_inputs, self.train_labels, self.classes, self.ignored)
        _check_half(self.name, "test", self.test_inputs, self.test_labels, self.classes, self.ignored)
        halves = [(half.dtype.name, half.shape[1:]) for half in (self.train_inputs, self.test_inputs)]
        if halves[0] != halves[1]:
            raise DataError(
                f"dataset {self.name!r}: train samples are {halves[0][0]} {halves[0][1]}, test samples {halves[1][0]} "
                f"{halves[1][1]}; both must be equal. Load both from one release."
            )
        labels = [(half.dtype.name, half.shape[1:]) for half in (self.train_labels, self.test_labels)]
        if labels[0] != labels[1]:
            raise DataError(
                f"dataset {self.name!r}: train labels are {labels[0][0]} {labels[0][1]} per sample, test labels "
                f"{labels[1][0]} {labels[1][1]}; both must be equal. Load both from one release."
            )
        _check_clients(self.name, self.train_clients, self.natural_clients, len(self.train_labels))
        if self.client_ids is not None and len(self.client_ids) != self.natural_clients:
            raise DataError(
                f"dataset {self.name!r}: {len(self.client_ids)} ids of {self.natural_clients} clients; must be one for "
                "each client, or none."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.train_inputs.shape[1:])

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one sample's labels or targets; () for a single number."""
        return tuple(self.train_labels.shape[1:])

    @property
    def outputs(self) -> int:
        """Number of outputs that a network needs for a sample, or for each of its labels: logits of classes, else the
        target's size.
        """
        return self.classes if self.classes is not None else math.prod(self.target_shape)

    @property
    def identifying_inputs(self) -> Numbers:
        """Training inputs before data.features replaced them."""
        return self.train_inputs if self.raw_inputs is None else self.raw_inputs

    @property
    def has_integers(self) -> bool:
        """True if inputs are integers."""
        return self.train_inputs.dtype.kind == "i"

    def as_floats(self) -> Dataset:
        """Return the data set with inputs in float32. Raise DataError for integers that float32 cannot represent."""
        if not self.has_integers:
            return self
        train, test = (exact_floats(half, f"dataset {self.name!r}") for half in (self.train_inputs, self.test_inputs))
        return replace(self, train_inputs=train, test_inputs=test)

    def carve_public(self, count: int, generator: np.random.Generator) -> tuple[Dataset, Numbers, Numbers]:
        """Split off `count` training samples, uniformly at random without replacement, as public data.

        Returns (this data set without those rows, their inputs, their labels). The guarantee of a run then covers
        only the remaining samples: calling training samples public is an assumption, and a report must state it. Raises
        ConfigError unless 0 <= count < N.
        """
        samples = len(self.train_labels)
        if not 0 <= count < samples:
            raise ConfigError(
                f"count={count}: the public set must have from 0 to {samples - 1} of the {samples} training "
                f"samples of {self.name!r}. Choose a smaller public set."
            )
        order = generator.permutation(samples)
        public, kept = np.sort(order[:count]), np.sort(order[count:])
        return self._keep_rows(kept), self.train_inputs[public], self.train_labels[public]

    def at_most(self, *, train: int | None, test: int | None, generator: np.random.Generator) -> Dataset:
        """Return the data set with at most `train` training and `test` test samples, drawn uniformly without
        replacement.
        """
        smaller = self
        if train is not None and train < len(self.train_labels):
            smaller = smaller._keep_rows(_draw_rows(len(self.train_labels), train, generator))
        if test is not None and test < len(self.test_labels):
            rows = _draw_rows(len(self.test_labels), test, generator)
            smaller = replace(smaller, test_inputs=self.test_inputs[rows], test_labels=self.test_labels[rows])
        return smaller

    def _keep_rows(self, rows: NDArray[np.int64]) -> Dataset:
        clients = None if self.train_clients is None else self.train_clients[rows]
        return replace(
            self,
            train_inputs=self.train_inputs[rows],
            train_labels=self.train_labels[rows],
            train_clients=clients,
            raw_inputs=None if self.raw_inputs is None else self.raw_inputs[rows],
        )


def names_of(classes: Classes, where: str) -> list[str] | None:
    """Return the names of the classes; None if their number is declared. Raise DataError for a repeated name."""
    if not isinstance(classes, list | tuple):
        return None
    if not classes or len(set(classes)) < len(classes) or not all(isinstance(one, str) for one in classes):
        raise DataError(f"{where}: classes must be a number, or a list of distinct names. Declare them in this form.")
    return list(classes)


def exact_floats(integers: Numbers, where: str) -> NDArray[np.float32]:
    """Return integers in float32. Raise DataError, naming `where`, for integers beyond 2^24, which float32 may
    change."""
    if not floats_hold(integers):
        raise DataError(
            f"{where}: has integers beyond {_WHOLE_FLOATS:,} that must become float32, beside fractions or for a "
            "network of floats; some would become other numbers. Use a network that accepts integers "
            "(torch.nn.Embedding) and integers in every part of the data, or scale them to fractions."
        )
    return integers.astype(np.float32)


def finite_numbers(array: Numbers, where: str, *, dimensions: int = 2) -> Numbers:
    """Return integers of 32 and 64 bits as int64; all other numbers, images of 8 and 16 bits among them, as float32.

    dimensions: least number of dimensions. Raises DataError, naming `where`, for other arrays, NaN and infinity.
    """
    if array.dtype.kind in "biuf" and array.ndim == 1 and dimensions == 2:
        raise DataError(
            f"{where}: {array.dtype} of shape {array.shape}, one number for each sample; must be [N, ...]. Give each "
            "sample a dimension: [N, 1] by .reshape(-1, 1)."
        )
    if array.dtype.kind not in "biuf" or array.ndim < dimensions:
        raise DataError(f"{where}: {array.dtype} of shape {array.shape}; must be numbers [N, ...]. Convert it.")
    if array.dtype.kind in "iu" and array.dtype.itemsize > 2:
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise DataError(f"{where}: has integers beyond 2^63 - 1. Number them from 0 on.")
        return array.astype(np.int64)
    with np.errstate(over="ignore"):
        inputs = array.astype(np.float32)
    if not np.isfinite(inputs).all():
        raise DataError(f"{where}: has NaN or infinity. Fill or remove these samples.")
    return inputs


def refuse_gaps(values: object, where: str) -> None:
    """Raise DataError, naming `where`, for arrays of numpy.ma with masked values, in lists and tuples as well.

    numpy.asarray would return the numbers behind the mask.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError(
            f"{where}: has masked values. Fill them with a number that is declared in advance (.filled), or remove "
            "these samples."
        )
    for one in values if isinstance(values, list | tuple) else ():
        if isinstance(one, np.ma.MaskedArray | list | tuple):
            refuse_gaps(one, where)


def floats_hold(integers: Numbers) -> bool:
    """Return True if float32 represents all of these integers exactly."""
    return not integers.size or (integers.min() >= -_WHOLE_FLOATS and integers.max() <= _WHOLE_FLOATS)


def check_classes(classes: object, *, where: str) -> int:
    """Return the declared number of classes. Raise DataError naming `where` it is declared if a run cannot have it."""
    number = require.plain(classes)
    if not require.is_whole(number) or not 1 <= number <= MOST_CLASSES:
        raise DataError(
            f"{where}: classes={require.short_repr(classes)}; must be a whole number from 1 to {MOST_CLASSES:,}. "
            "Declare how many labels there can be."
        )
    return number


def undeclared_label(where: str, classes: int) -> DataError:
    """Return the error for an undeclared label; its message does not reveal the label or its client."""
    return DataError(
        f"a label of {where} is not among the {classes} declared classes, 0 to {classes - 1}. The labels are damaged "
        "or not of this data set, or more classes must be declared."
    )


def _draw_rows(samples: int, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    rows: NDArray[np.int64] = np.sort(generator.permutation(samples)[:count])
    return rows


def _check_clients(name: str, clients: NDArray[np.int64] | None, count: int, samples: int) -> None:
    if clients is None:
        return
    if clients.dtype != np.int64 or clients.shape != (samples,) or clients.min() < 0 or clients.max() >= count:
        raise DataError(
            f"dataset {name!r}: train_clients is {clients.dtype} of shape {clients.shape}; must "
            f"be int64 [{samples}], one client per training sample, from 0 to natural_clients - 1 = {count - 1}. "
            "Number the clients with numpy.unique(return_inverse=True)."
        )


def labels_fit(labels: Numbers, classes: int, ignored: int | None) -> bool:
    """Return True if all labels are in 0 .. classes-1, or equal to the ignored label."""
    counted = labels if ignored is None else labels[labels != ignored]
    return not counted.size or bool(counted.min() >= 0 and counted.max() < classes)


def _check_half(
    name: str, half: str, inputs: Numbers, labels: Numbers, classes: int | None, ignored: int | None
) -> None:
    where = f"dataset {name!r}, {half} half"
    of_labels = ("int64",) if classes is not None else _OF_TARGETS
    if inputs.dtype.name not in ("float32", "int64") or labels.dtype.name not in of_labels:
        raise DataError(
            f"{where}: inputs are {inputs.dtype}, labels {labels.dtype}; they must be float32 or int64 and "
            f"{' or '.join(of_labels)}. Convert them."
        )
    if labels.ndim < 1 or len(inputs) != len(labels) or labels.size == 0:
        raise DataError(
            f"{where}: {len(inputs)} samples with labels of shape {labels.shape}; there must be one label per "
            "sample, or several, and at least one sample. Check that both files belong together."
        )
    if classes is not None and not labels_fit(labels, classes, ignored):
        raise undeclared_label(where, classes)
