"""Samples with named parts, as tokenisers make them: one row of numbers per sample, and the layout of its parts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dpfed.data.dataset import Numbers, Part, exact_floats, finite_numbers, refuse_gaps
from dpfed.errors import DataError

LABELS = ("labels", "label")
"""Keys of the label in a sample that is a dictionary."""

Inputs = Numbers | Mapping[str, Numbers]
"""Inputs [N, ...] of samples, or of each named part of samples."""


def parts_of(rows: Sequence[Mapping[str, object]], where: str) -> tuple[dict[str, Numbers], list[object]]:
    """Return the named parts [N, ...] of samples that are dictionaries, and their labels. Raise DataError."""
    names = list(rows[0])
    label = _label_among(names, where)
    if any(set(row) != set(names) for row in rows):
        raise DataError(f"{where}: samples have different keys; the first has {names!r:.200}. Give all the same keys.")
    inputs = {name: _stack_part([row[name] for row in rows], name, where) for name in names if name != label}
    return inputs, [row[label] for row in rows]


def parts_of_batch(batch: Mapping[str, object], where: str) -> tuple[dict[str, object], object]:
    """Return the named parts and the labels of all samples, given as one dictionary of arrays. Raise DataError."""
    label = _label_among(list(batch), where)
    return {name: part for name, part in batch.items() if name != label}, batch[label]


def _label_among(names: Sequence[str], where: str) -> str:
    label = next((name for name in LABELS if name in names), None)
    if label is None or len(names) < 2:
        raise DataError(
            f"{where}: a dictionary must have inputs by name and the label as {' or '.join(LABELS)}; its keys are "
            f"{list(names)!r:.200}. Rename or add keys."
        )
    return label


def pack(train: Mapping[str, Numbers], test: Mapping[str, Numbers], where: str) -> tuple[list[Numbers], list[Part]]:
    """Return [train inputs, test inputs], one row of numbers per sample, and the layout of its parts.

    Integers and truth values stay integers for the network; unsigned integers of 8 and 16 bits, as in images, become
    fractions. Rows are integers if all parts are, else float32. Raises DataError.
    """
    if set(train) != set(test):
        raise DataError(f"{where}: training samples have {list(train)!r:.200}, test samples {list(test)!r:.200}.")
    halves = [{name: _part_numbers(half[name], name, where) for name in train} for half in (train, test)]
    layout = []
    for name, array in halves[0].items():
        if halves[1][name].shape[1:] != array.shape[1:]:
            raise DataError(f"{where}, part {name!r}: training and test samples differ in shape. Give them one shape.")
        whole = all(half[name].dtype.kind == "i" for half in halves)
        layout.append(Part(name=name, shape=tuple(array.shape[1:]), integers=whole))
    floats = not all(part.integers for part in layout)
    return [_packed_rows(half, where, floats=floats) for half in halves], layout


def _packed_rows(half: Mapping[str, Numbers], where: str, *, floats: bool) -> Numbers:
    if len({len(array) for array in half.values()}) > 1:
        raise DataError(f"{where}: parts have different numbers of samples. Each sample needs every part.")
    flat = [array.reshape(len(array), math.prod(array.shape[1:])) for array in half.values()]
    whole = [exact_floats(array, where) if floats and array.dtype.kind == "i" else array for array in flat]
    return np.concatenate(whole, axis=1)


def _part_numbers(array: Numbers, name: str, where: str) -> Numbers:
    whole = array.astype(np.int64) if array.dtype.kind in "bi" else array
    return finite_numbers(whole, f"{where}, part {name!r}", dimensions=1)


def _stack_part(values: Sequence[object], name: str, where: str) -> Numbers:
    refuse_gaps(list(values), f"{where}, part {name!r}")
    try:
        return np.stack([np.asarray(value) for value in values])
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{where}, part {name!r}: must be numbers of one shape ({type(error).__name__}). Pad all samples to one "
            "length that is declared in advance; the longest text of all clients would be a release."
        ) from None
