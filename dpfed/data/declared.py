"""Columns of text, with gaps or with a scale, as numbers by public declarations that do not depend on any sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpfed.data.dataset import Columns, Numbers
from dpfed.errors import ConfigError, DataError


def declared_columns(column: pa.ChunkedArray, name: str, columns: Columns, where: str) -> Numbers | None:
    """Return [N, k] of a column with a declaration; None if the column has none.

    vocabulary: one column of 0 and 1 for each text; a gap or another text is a row of zeros. fill: a gap has this
    number, and a further column marks it by 1. range: numbers are clipped to it and scaled to [0, 1].

    Raises DataError for a column that has no numbers.
    """
    if name in columns.vocabulary:
        return _word_columns(column, columns.vocabulary[name], where)
    if name not in columns.fill and name not in columns.range:
        return None
    if not _is_numeric(column.type):
        raise DataError(f"{where}: is of {column.type}; data.fill and data.range are for numbers. Remove it there.")
    numbers = np.asarray(column.cast(pa.float64()).to_numpy())  # a gap becomes NaN
    gaps = np.isnan(numbers)
    if name in columns.fill:
        numbers = np.where(gaps, columns.fill[name], numbers)
    elif gaps.any():
        raise DataError(f"{where}: has gaps. Declare the number that fills them in advance: data.fill.{name} = NUMBER.")
    if name in columns.range:
        low, high = columns.range[name]
        numbers = (np.clip(numbers, low, high) - low) / (high - low)
    return np.stack([numbers, gaps], axis=1) if name in columns.fill else numbers[:, None]


def _word_columns(column: pa.ChunkedArray, words: Sequence[str], where: str) -> Numbers:
    try:
        texts = column.cast(pa.string())
    except pa.ArrowException:
        raise DataError(f"{where}: is of {column.type}; data.vocabulary is for texts. Remove it there.") from None
    places = pc.fill_null(pc.index_in(texts, pa.array(words, pa.string())), -1).to_numpy()
    found: Numbers = (np.asarray(places)[:, None] == np.arange(len(words))).astype(np.float64)
    return found


def _is_numeric(kind: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)  # null: gaps alone
    return any(of_kind(kind) for of_kind in kinds)


def check_declarations(columns: Columns) -> None:
    """Raise ConfigError for a declaration of a column that is no input, or that declares nothing usable."""
    declarations: Mapping[str, Mapping[str, object]] = {
        "vocabulary": columns.vocabulary,
        "fill": columns.fill,
        "range": columns.range,
    }
    for key, named in declarations.items():
        if strange := [name for name in named if name not in columns.inputs]:
            raise ConfigError(
                f"data.{key}.{strange[0]}: inputs are {', '.join(columns.inputs)}. Declare one of these columns."
            )
    for name, words in columns.vocabulary.items():
        if name in columns.fill or name in columns.range:
            raise ConfigError(f"data.vocabulary.{name} with data.fill or data.range: a gap in text is a row of zeros.")
        if isinstance(words, str) or len(set(words)) != len(words) or not words:
            raise ConfigError(f"data.vocabulary.{name}={words!r}: must be a list of different texts.")
    for name, (low, high) in columns.range.items():
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ConfigError(f"data.range.{name}={[low, high]}: must be two finite numbers, the smaller one first.")
    for name, number in columns.fill.items():
        if not math.isfinite(number):
            raise ConfigError(f"data.fill.{name}={number}: must be a finite number.")
