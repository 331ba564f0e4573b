"""Data sets from named columns of tables, in files (Parquet, CSV, the library `datasets`) or in memory.

Columns of text, with gaps or with a scale become numbers by public declarations that do not depend on any sample.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from accounting.ledger.regular_file import LARGEST_ARRAYS, require_input
from dpfed.data.arrays import from_arrays, join_types
from dpfed.data.dataset import Classes, Columns, Dataset, Numbers, check_classes, names_of, undeclared_label
from dpfed.data.parts import Inputs
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
    numbers = np.asarray(column.cast(pa.float64(), safe=False).to_numpy())  # a gap becomes NaN
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


_SUFFIXES = (".parquet", ".arrow", ".csv")
_MOST_PIXELS = 2**26
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def load_columns(path: Path, columns: Columns, *, classes: Classes = None, ignored: int | None = None) -> Dataset:
    """Return the data set in a folder of tables, or in a file train*.csv and the test file beside it.

    The folder was written by `datasets.DatasetDict.save_to_disk`, or has Parquet or CSV files. Names of these files, or
    of their folders, begin with train and with test (else validation).

    An image column (PNG, JPEG) becomes [N, channels, height, width], its bytes over 255. Lists of equal length become
    axes. Numbers are unchanged. The number of classes is that of the feature ClassLabel, or `classes`; a label column
    of fractions is a target, without classes. Nothing is downloaded and no code of the folder is run.

    Raises DataError for files that are missing, damaged or too large, and for a column that is missing or has gaps.
    """
    files = _files_of_halves(path) if path.suffix != ".csv" else _train_and_test(path)
    train, test = (_load_table(found, columns, half) for half, found in files.items())
    return of_tables(train, test, columns, classes=classes, where=str(path), name=path.stem, ignored=ignored)


def of_tables(
    train_table: pa.Table,
    test_table: pa.Table,
    columns: Columns,
    *,
    classes: Classes,
    where: str,
    name: str,
    ignored: int | None = None,
) -> Dataset:
    """Return the data set of two tables. classes: number of classes, or their names if the label column holds text."""
    check_declarations(columns)
    folder = where
    declared = _declared_classes(train_table, columns.label)
    where = f"{folder}, column {columns.label!r}"
    names = names_of(classes, where)
    count: object = classes if names is None else len(names)
    if declared is not None and count is not None and declared != count:
        raise DataError(f"{where}: the file declares {declared} classes, data.classes is {count}. Declare one number.")
    number = declared if count is None else check_classes(count, where=where)
    train, test = (_sample_arrays(table, columns, folder, names) for table in (train_table, test_table))
    if number is None and train[1].dtype.kind == "b":
        number = 2  # the column's type, truth values, declares two classes
    if number is not None and train[1].dtype.kind == "b":
        train, test = ((inputs, labels.astype(np.int64)) for inputs, labels in (train, test))
    if train[1].dtype.kind == "f":
        if classes is not None:
            raise DataError(f"{where}: has fractions, which are targets and not classes. Remove data.classes.")
        number = None
    elif number is None:
        raise DataError(
            f"{where}: the number of classes is not declared. Set data.classes = N. It is public and is not counted "
            "from the labels, which are private."
        )
    clients = None if columns.client is None else _client_names(train_table, columns.client, folder)
    found = from_arrays(train, test, classes=number, clients=clients, name=name, ignored=ignored)
    return replace(found, columns=columns)


def table_of(given: object, columns: Columns, where: str, *, with_client: bool) -> pa.Table:
    """Return the columns of a pandas or polars frame, an Arrow table or a Hugging Face `Dataset`. Raise DataError."""
    try:
        made = _arrow_of(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        named = [one for one in map(str, error.args) if one.startswith(("Conversion failed for column", "Sparse"))]
        words = ": ".join([type(error).__name__, *named[-1:]])  # other parts may contain a value
        raise DataError(f"{where}: {type(given).__name__} cannot be read as a table ({words}).") from None
    wanted = [*columns.inputs, columns.label, *([columns.client] if with_client and columns.client else [])]
    try:
        _check_columns(made.schema.names, wanted)
    except ValueError as error:
        raise DataError(f"{where}: {error}.") from None
    return made.select(list(dict.fromkeys(wanted)))


def is_table(given: object) -> bool:
    """Return True for a table that `table_of` can read."""
    kinds = ("__arrow_c_stream__", "__dataframe__", "with_format", "to_arrow")
    return isinstance(given, pa.Table) or any(hasattr(given, name) for name in kinds)


def _arrow_of(given: object) -> pa.Table:
    if isinstance(given, pa.Table):
        return given
    if hasattr(given, "with_format") and hasattr(given, "features"):  # a table of the library `datasets`
        return given.with_format("arrow")[:]
    if hasattr(given, "to_arrow"):  # a polars frame
        return given.to_arrow()
    if type(given).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(given, preserve_index=False)
    return pa.table(given)


def _train_and_test(path: Path) -> dict[str, list[Path]]:
    """Return the file train*.csv and the file test*.csv beside it. Raise DataError if one is missing."""
    if not path.name.startswith("train"):
        raise DataError(
            f"{path}: a CSV file must be named train*.csv, with its test half test*.csv beside it. Rename it."
        )
    other = path.with_name(f"test{path.name.removeprefix('train')}")
    for file in (path, other):
        if not file.is_file():
            raise DataError(
                f"{file}: not found. A CSV file of training samples needs its test half {other.name} beside it."
            )
    return {"train": [path], "test": [other]}


def _files_of_halves(folder: Path) -> dict[str, list[Path]]:
    """Return the files of both halves; the outermost folder decides. Copies in hidden folders and caches are left out:
    a record that is there twice has twice the loss that is charged. Raise DataError if a half has no files, or files
    of two formats."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}/: is not a folder. Name a folder of Parquet files, or one that datasets' save_to_disk wrote."
        )
    found: dict[str, list[Path]] = {"train": [], "test": [], "validation": []}
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        splits = [split for part in parts for split in found if part.startswith(split)]
        if splits and file.suffix in _SUFFIXES and not any(part.startswith((".", "cache-")) for part in parts):
            found[splits[0]].append(file)
    halves = {"train": found["train"], "test": found["test"] or found["validation"]}
    for half, files in halves.items():
        if not files:
            raise DataError(
                f"{folder}/: has no {half} half. It needs files .parquet, .arrow or .csv whose names, or whose "
                "folders' names, begin with train and with test (or validation)."
            )
        if len(formats := {file.suffix for file in files}) > 1:
            raise DataError(f"{folder}/: its {half} half has {', '.join(sorted(formats))} files. Leave one format.")
    return halves


def _load_table(files: Sequence[Path], columns: Columns, half: str) -> pa.Table:
    """Return the requested columns of these files, concatenated. Raise DataError if a file cannot be read."""
    wanted = [*columns.inputs, columns.label]
    if half == "train" and columns.client is not None:
        wanted.append(columns.client)
    parts = []
    for file in files:
        try:
            require_input(file, at_most=LARGEST_ARRAYS)
            parts.append(_read_table(file, list(dict.fromkeys(wanted))))
        except (OSError, KeyError, ValueError, MemoryError, pa.ArrowException) as error:
            raise DataError(
                f"{file}: cannot be read ({error}). It must be a whole file with columns {wanted}."
            ) from None
    return concatenate(parts, f"{files[0].parent}/, {half} half")


def concatenate(tables: Sequence[pa.Table], where: str) -> pa.Table:
    """Return tables concatenated. Raise DataError if their columns differ."""
    try:
        return pa.concat_tables(tables)
    except pa.ArrowException as error:
        raise DataError(f"{where}: tables differ in their columns ({error}). Give them the same types.") from None


def _read_table(file: Path, wanted: list[str]) -> pa.Table:
    if file.suffix == ".parquet":
        content = pq.ParquetFile(file)
        _check_columns(content.schema_arrow.names, wanted)
        sizes = (content.metadata.row_group(i).total_byte_size for i in range(content.metadata.num_row_groups))
        if sum(sizes) > LARGEST_ARRAYS:
            raise ValueError(f"unpacks to more than {LARGEST_ARRAYS:,} bytes")
        return content.read(columns=wanted)
    if file.suffix == ".csv":
        content = csv.read_csv(file, convert_options=csv.ConvertOptions(strings_can_be_null=True))
        _check_columns(content.schema.names, wanted)
        return content.select(wanted)
    with pa.memory_map(str(file)) as source:
        table = pa.ipc.open_stream(source).read_all()
    _check_columns(table.schema.names, wanted)
    return table.select(wanted)


def _check_columns(there: Iterable[str], wanted: Sequence[str]) -> None:
    names = list(there)
    if missing := [one for one in wanted if one not in names]:
        raise ValueError(f"has no column {', '.join(missing)}; its columns are {', '.join(names)}")


def _declared_classes(table: pa.Table, label: str) -> int | None:
    """Return the number of names in the feature ClassLabel, from the metadata that `datasets` writes."""
    try:
        written = json.loads((table.schema.metadata or {})[b"huggingface"])
        return len(written["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None


def _sample_arrays(table: pa.Table, columns: Columns, folder: str, names: list[str] | None) -> tuple[Inputs, Numbers]:
    arrays = [_input_array(table, name, columns, folder) for name in columns.inputs]
    if len(arrays) == 1:
        inputs = arrays[0] if arrays[0].ndim > 1 else arrays[0][:, None]
    elif columns.vocabulary or columns.fill or columns.range:
        if {one.ndim for one in arrays} > {1, 2}:
            raise DataError(f"{folder}: declared columns beside lists or images. Use columns of numbers and texts.")
        flat = [one if one.ndim > 1 else one[:, None] for one in arrays]
        inputs = np.concatenate(join_types(flat, f"{folder}, columns of inputs"), axis=1)
    elif {one.ndim for one in arrays} <= {1}:
        inputs = np.stack(join_types(arrays, f"{folder}, columns of inputs"), axis=1)
    else:  # parts of a sample, which are arguments of its network by name
        return dict(zip(columns.inputs, arrays, strict=True)), _label_numbers(table, columns.label, folder, names)
    return inputs, _label_numbers(table, columns.label, folder, names)


def _input_array(table: pa.Table, name: str, columns: Columns, folder: str) -> Numbers:
    column = _category_values(table.column(name))
    declared = declared_columns(column, name, columns, f"{folder}, column {name!r}")
    return _column_array(table, name, folder) if declared is None else declared


def _label_numbers(table: pa.Table, label: str, folder: str, names: list[str] | None) -> Numbers:
    """Return the numbers of a label column; text becomes its position among the declared names."""
    column, where = _category_values(table.column(label)), f"{folder}, column {label!r}"
    if not _is_text(column.type):
        if names is not None:
            raise DataError(f"{where}: is of {column.type}, and classes are declared by name. Declare their number.")
        return _column_array(table, label, folder)
    if column.null_count:
        raise _gaps_error(where)
    if names is None:
        raise DataError(
            f"{where}: has text. Declare its classes by name, in their order: data.classes = ['...', '...'] (in "
            "Python classes=[...]). They are public and are not collected from the labels, which are private."
        )
    places = pc.index_in(column.cast(pa.large_string()), pa.array(names, pa.large_string()))
    if places.null_count:
        raise undeclared_label(where, len(names))
    return np.asarray(places.to_numpy()).astype(np.int64)


def _category_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return categories (dictionaries) as the values that they encode."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return any(of_kind(kind) for of_kind in _TEXTS)


def _gaps_error(where: str) -> DataError:
    return DataError(
        f"{where}: has gaps. Declare the number that fills them in advance: data.fill.COLUMN = NUMBER (in Python "
        "fill={...}), which a further column marks by 1; a mean over all clients' samples would be a release."
    )


def _client_names(table: pa.Table, client: str, folder: str) -> list[object]:
    column = table.column(client)
    if column.null_count:
        raise DataError(f"{folder}, column {client!r}: some samples have no client. Fill or remove them.")
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise DataError(
            f"{folder}, column {client!r}: is of {column.type}, whose values are not names ({type(error).__name__}). "
            "Use numbers or texts."
        ) from None


def _column_array(table: pa.Table, name: str, folder: str) -> Numbers:
    """Return [N, ...] of a column of numbers, lists or images. Raise DataError for other columns."""
    column, where = _category_values(table.column(name)), f"{folder}, column {name!r}"
    if _is_text(column.type):
        raise DataError(
            f"{where}: has text, and inputs must be numbers. Declare its values in advance: data.vocabulary.{name} = "
            "['...', '...'] (in Python vocabulary={...}); values collected from the samples would be a release."
        )
    if pa.types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        return _image_pixels(column, where)
    parts = [_nested_array(part, where) for part in column.chunks]
    try:
        return np.concatenate(parts) if parts else np.zeros(0)
    except ValueError:
        raise DataError(f"{where}: its samples have different shapes. Give them one shape.") from None


def _nested_array(array: pa.Array, where: str) -> Numbers:
    """Return nested lists of equal lengths as axes, at any depth."""
    shape = [len(array)]
    while True:
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        if array.null_count:
            raise _gaps_error(where)
        if not any(is_lists(array.type) for is_lists in _LISTS):
            break
        lengths = pc.unique(pc.list_value_length(array)).to_pylist() or [0]
        if len(lengths) > 1:
            raise DataError(f"{where}: its samples have different shapes. Give them one shape.")
        shape.append(lengths[0])
        array = array.flatten()
    if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_boolean(array.type)):
        raise DataError(f"{where}: is of {array.type}; must be of numbers, lists of numbers, or images. Name another.")
    flat: Numbers = array.to_numpy(zero_copy_only=False)
    return flat.reshape(shape)


def _image_pixels(column: pa.ChunkedArray, where: str) -> NDArray[np.float32]:
    """Return pixels [N, channels, height, width] in 0..1."""
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
        except Exception as error:  # an image from a stranger may raise anything
            raise DataError(
                f"{where}: an image cannot be read ({type(error).__name__}). Only PNG and JPEG images can."
            ) from None
        rows.append((pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)).astype(np.float32) / 255)
        if rows[-1].shape != rows[0].shape:
            raise DataError(f"{where}: its images have different sizes. Give them one size.")
    return np.stack(rows) if rows else np.zeros((0, 1, 1, 1), np.float32)
