"""Folders of Parquet files, or of the Hugging Face library `datasets`: named columns become a data set."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from accounting.ledger.regular_file import LARGEST_ARRAYS, require_input
from dpfed.data.arrays import alike, from_arrays
from dpfed.data.dataset import Columns, Dataset, Numbers, check_classes
from dpfed.errors import DataError

_SPLITS = {"train": "train", "test": "test", "validation": "test"}
_SUFFIXES = (".parquet", ".arrow")
_MOST_PIXELS = 2**26
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def load_columns(folder: Path, columns: Columns, *, classes: int | None = None) -> Dataset:
    """The data set in a folder: what `datasets.DatasetDict.save_to_disk` wrote, or Parquet files whose names, or those
    of their folders, begin with train and with test (else validation).

    An image column (PNG, JPEG) becomes [N, channels, height, width], its bytes over 255. Lists of one length become
    axes. Numbers are used as they are. The number of classes is what the feature ClassLabel declares, or `classes`; a
    label column of fractions is a target, without classes. Nothing is downloaded and no code of the folder is run.

    DataError: files that are missing, damaged or too large, a column that is not there or has gaps.
    """
    halves = {half: _table(files, columns, half) for half, files in _files(folder).items()}
    declared = _declared(halves["train"], columns.label)
    where = f"{folder}, column {columns.label!r}"
    if declared is not None and classes is not None and declared != classes:
        raise DataError(
            f"{where}: the file declares {declared} classes, data.classes is {classes}. Declare one number."
        )
    number = declared if classes is None else check_classes(classes, where=where)
    train, test = (_pair(table, columns, folder) for table in halves.values())
    if train[1].dtype.kind == "f":
        if classes is not None:
            raise DataError(f"{where}: holds fractions, which are targets and no classes. Remove data.classes.")
        number = None
    elif number is None:
        raise DataError(
            f"{where}: the number of classes is not declared. Set data.classes = N. It is public and is not counted "
            "from the labels, which are private."
        )
    clients = None if columns.client is None else _owners(halves["train"], columns.client, folder)
    return from_arrays(train, test, classes=number, clients=clients, name=folder.name)


def _files(folder: Path) -> dict[str, list[Path]]:
    """The files of both halves. DataError."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}/: is no folder. Name one of Parquet files, or one that datasets' save_to_disk wrote."
        )
    found: dict[str, dict[str, list[Path]]] = {"train": {}, "test": {}}
    for file in sorted(folder.rglob("*")):
        if file.suffix in _SUFFIXES:
            parts = file.relative_to(folder).parts
            for split in {split for split in _SPLITS for part in parts if part.startswith(split)}:
                found[_SPLITS[split]].setdefault(split, []).append(file)
    halves = {half: splits.get(half) or splits.get("validation") or [] for half, splits in found.items()}
    for half, files in halves.items():
        if not files:
            raise DataError(
                f"{folder}/: has no {half} half. It needs files .parquet or .arrow whose names, or whose folders' "
                "names, begin with train and with test (or validation)."
            )
    return halves


def _table(files: Sequence[Path], columns: Columns, half: str) -> pa.Table:
    """The wanted columns of these files, one after the other. DataError."""
    wanted = [*columns.inputs, columns.label]
    if half == "train" and columns.client is not None:
        wanted.append(columns.client)
    parts = []
    for file in files:
        try:
            require_input(file, at_most=LARGEST_ARRAYS)
            parts.append(_read(file, list(dict.fromkeys(wanted))))
        except (OSError, KeyError, ValueError, MemoryError, pa.ArrowException) as error:
            raise DataError(
                f"{file}: cannot be read ({error}). It must be a whole file with columns {wanted}."
            ) from None
    try:
        return pa.concat_tables(parts)
    except pa.ArrowException as error:
        raise DataError(f"{files[0].parent}/: files of the {half} half differ in their columns ({error}).") from None


def _read(file: Path, wanted: list[str]) -> pa.Table:
    if file.suffix == ".parquet":
        content = pq.ParquetFile(file)
        _check_columns(content.schema_arrow.names, wanted)
        sizes = (content.metadata.row_group(i).total_byte_size for i in range(content.metadata.num_row_groups))
        if sum(sizes) > LARGEST_ARRAYS:
            raise ValueError(f"unpacks to more than {LARGEST_ARRAYS:,} bytes")
        return content.read(columns=wanted)
    with pa.memory_map(str(file)) as source:
        table = pa.ipc.open_stream(source).read_all()
    _check_columns(table.schema.names, wanted)
    return table.select(wanted)


def _check_columns(there: Iterable[str], wanted: Sequence[str]) -> None:
    names = list(there)
    if missing := [one for one in wanted if one not in names]:
        raise ValueError(f"has no column {', '.join(missing)}; its columns are {', '.join(names)}")


def _declared(table: pa.Table, label: str) -> int | None:
    """Return how many classes the feature ClassLabel has names for, in the metadata that `datasets` writes."""
    try:
        written = json.loads((table.schema.metadata or {})[b"huggingface"])
        return len(written["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _pair(table: pa.Table, columns: Columns, folder: Path) -> tuple[Numbers, Numbers]:
    arrays = [_array(table, name, folder) for name in columns.inputs]
    if len(arrays) == 1:
        inputs = arrays[0] if arrays[0].ndim > 1 else arrays[0][:, None]
    elif {one.ndim for one in arrays} <= {1}:
        inputs = np.stack(alike(arrays, f"{folder}/, columns of inputs"), axis=1)
    else:
        raise DataError(f"{folder}/: several columns of inputs must be of plain numbers; name one, or others.")
    return inputs, _array(table, columns.label, folder)


def _owners(table: pa.Table, client: str, folder: Path) -> list[object]:
    column = table.column(client)
    if column.null_count:
        raise DataError(f"{folder}/, column {client!r}: some samples have no client. Fill or remove them.")
    return list(column.to_pylist())


def _array(table: pa.Table, name: str, folder: Path) -> Numbers:
    """[N, ...] of a column of numbers, lists or images. DataError."""
    column, where = table.column(name), f"{folder}/, column {name!r}"
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        return _pixels(column, where)
    parts = [_unnested(part, where) for part in column.chunks]
    try:
        return np.concatenate(parts) if parts else np.zeros(0)
    except ValueError:
        raise DataError(f"{where}: its samples have different shapes. Give them one.") from None


def _unnested(array: pa.Array, where: str) -> Numbers:
    """Lists of one length each become axes, whatever their depth."""
    shape = [len(array)]
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        if array.null_count:
            raise DataError(f"{where}: has gaps. Fill or remove these samples.")
        if not any(is_lists(array.type) for is_lists in _LISTS):
            break
        lengths = pc.unique(pc.list_value_length(array)).to_pylist() or [0]
        if len(lengths) > 1:
            raise DataError(f"{where}: its samples have different shapes. Give them one.")
        shape.append(lengths[0])
        array = array.flatten()
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        raise DataError(f"{where}: is of {array.type}; must be of numbers, lists of numbers, or images. Name another.")
    flat: Numbers = array.to_numpy(zero_copy_only=False)
    return flat.reshape(shape)


def _pixels(column: pa.ChunkedArray, where: str) -> NDArray[np.float32]:
    """[N, channels, height, width] in 0..1."""
    rows: list[Numbers] = []
    for one in column:
        content = one["bytes"].as_py() if one.is_valid else None
        if content is None:
            raise DataError(f"{where}: an image has no bytes in the file. Write the set with its images embedded.")
        try:
            image = Image.open(io.BytesIO(content), formats=("PNG", "JPEG"))
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError("more than 2^26 pixels")
            pixels = np.asarray(image.convert("L" if image.mode in ("1", "L", "I", "I;16") else "RGB"))
        except (OSError, UnidentifiedImageError, ValueError, SyntaxError) as error:
            raise DataError(
                f"{where}: an image cannot be read ({type(error).__name__}). Only PNG and JPEG are."
            ) from None
        rows.append((pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)).astype(np.float32) / 255)
        if rows[-1].shape != rows[0].shape:
            raise DataError(f"{where}: its images have different sizes. Give them one.")
    return np.stack(rows) if rows else np.zeros((0, 1, 1, 1), np.float32)
