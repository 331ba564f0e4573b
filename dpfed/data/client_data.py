"""Data sets from the data of each client: arrays, data sets of torch, tables with a client column, partitioners."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpfed.data.arrays import array_of, from_arrays, inputs_of, items_of, join_types, rows_of, several_inputs
from dpfed.data.client_ids import ClientIds
from dpfed.data.dataset import Classes, Columns, Dataset, Numbers
from dpfed.data.parts import Inputs, parts_of_batch
from dpfed.errors import DataError

_NONE: Mapping[str, Any] = {}

ClientData = object
"""Data of a client: (inputs, labels), or a `torch.utils.data` Dataset, Subset or DataLoader of such pairs, or a
table.
"""


def from_clients(
    clients: object,
    test: ClientData,
    *,
    classes: Classes,
    name: str = "own",
    client: str | None = None,
    ids: Sequence[str | int] | None = None,
    inputs: Sequence[str] = (),
    label: str | None = None,
    ignored: int | None = None,
    vocabulary: Mapping[str, Sequence[str]] = _NONE,
    fill: Mapping[str, float] = _NONE,
    range: Mapping[str, tuple[float, float]] = _NONE,  # noqa: A002  the key of [data]
) -> Dataset:
    """Return a data set from each client's data: given as a list, in one table, or by a partitioner.

    clients: one of
             - a list with an item for each client, which may be empty: a pair (inputs, labels) of arrays or tensors, a
               `torch.utils.data` data set or loader, a dictionary (`input_ids`, `attention_mask`, `labels`) or a list
               of dictionaries
             - a dictionary of them, whose keys are then the clients' ids; or a generator of them
             - a table with a column of clients, or a list of tables
             - a partitioner of `flwr_datasets`
    test:    test half: one pair, data set, dictionary or table
    classes: number of classes, or their names if labels are text; None for other targets
    ids:     public ids of the clients of a list, distinct texts or whole numbers. Lanes under add-remove need them
    client:  the column that names the client of a row
    ignored: label that neither loss nor accuracy counts, such as -100 for padding or 255 in images
    inputs, label: columns of tables: pandas and polars frames, Arrow tables, a Hugging Face `Dataset`, images included
             (`pip install 'dpfed[tables]'`)

    vocabulary, fill, range: public declarations by column: values of a column of text, the number for a gap, the
             interval of a column of numbers (`dpfed.data.columns`)

    Clients are numbered in their order; clients named in a column by their sorted names. With such a data set
    `dpfed.run` sets `data.partition` to "natural". Of a loader its data set is read, in its order. Raises DataError.
    """
    if hasattr(clients, "load_partition") and hasattr(clients, "num_partitions"):
        clients = _partitions(clients)
    if isinstance(clients, Mapping):
        ids = list(clients) if ids is None else ids
        clients = list(clients.values())
    elif isinstance(clients, Iterator):
        clients = list(clients)
    if inputs or label is not None or client is not None:
        if isinstance(inputs, str) or not inputs or label is None:
            raise DataError(
                f"dataset {name!r}: tables need inputs=[...], a list of column names, and label=..., one column name. "
                "Give both."
            )
        columns = Columns(
            inputs=tuple(inputs), label=label, client=client, vocabulary=vocabulary, fill=fill, range=range
        )
        return _add_ids(_table_dataset(clients, test, columns, classes, name, ignored), ids, in_a_list=client is None)
    if not isinstance(clients, Sequence):
        raise DataError(
            f"dataset {name!r}: clients are {type(clients).__name__}; must be a list with the data of each client. For "
            "a table name its columns: client=, inputs= and label=."
        )
    called = ids if isinstance(ids, Sequence) and len(ids) == len(clients) else [i for i, _ in enumerate(clients)]
    held = [
        pair_of(one, f"dataset {name!r}, client {i}", twice=one is clients[0])
        for i, one in zip(called, clients, strict=True)
    ]
    if not held:
        raise DataError(f"dataset {name!r}: there is no client. The data of each must be a pair (inputs, labels).")
    full = [one for one in held if len(one[1])]
    if not full:
        raise DataError(f"dataset {name!r}: no client has a sample. There is nothing to train on.")
    try:
        together = (
            _join_inputs([one[0] for one in full], f"dataset {name!r}, inputs"),
            np.concatenate([one[1] for one in full]),
        )
    except DataError:
        raise
    except ValueError:
        raise DataError(f"dataset {name!r}: clients' samples have different shapes. Give them one shape.") from None
    made = from_arrays(
        together, pair_of(test, f"dataset {name!r}, test half"), classes=classes, name=name, ignored=ignored
    )
    owners = np.repeat(np.arange(len(held)), [len(one[1]) for one in held])
    return _add_ids(replace(made, train_clients=owners, natural_clients=len(held)), ids)


def _partitions(partitioner: Any) -> list[object]:
    return [partitioner.load_partition(i) for i in range(partitioner.num_partitions)]


def _add_ids(dataset: Dataset, ids: Sequence[str | int] | None, *, in_a_list: bool = True) -> Dataset:
    """Return the data set with the ids of its clients. Raise DataError unless there is one id for each client."""
    if ids is None:
        return dataset
    where = f"dataset {dataset.name!r}, ids"
    if not in_a_list:
        raise DataError(f"{where}: with client=, the column that has the ids. Remove ids=.")
    found = ClientIds.of(ids) if isinstance(ids, Iterable) and not isinstance(ids, str) else None
    if found is None or len(found) != dataset.natural_clients:
        raise DataError(
            f"{where}: must be a list of {dataset.natural_clients} texts or whole numbers, one for each client, in the "
            "order of the clients."
        )
    return replace(dataset, client_ids=found)


def pair_of(given: ClientData, where: str, *, twice: bool = True) -> tuple[Inputs, Numbers]:
    """Return inputs and labels of a pair, of a dictionary of named parts, or of a `torch.utils.data` data set or
    loader; with `twice` its first items are read twice (`items_of`). Raise DataError unless inputs and labels have
    equal lengths."""
    if hasattr(given, "dataset") and hasattr(given, "batch_size"):
        given = _whole_dataset(given, where)
    tensors = getattr(given, "tensors", None)
    if isinstance(tensors, tuple) and type(given).__name__ == "TensorDataset":  # a subclass may change its items
        given = tensors
    if isinstance(given, Mapping):
        given = parts_of_batch(given, where)
    if isinstance(given, list) and given and all(map(_is_sample, given)):
        return rows_of(given, where)
    if isinstance(given, tuple | list) and not (given and isinstance(given[-1], Mapping)):
        if len(given) > 2 and all(hasattr(part, "shape") for part in given):
            raise DataError(several_inputs(where, len(given) - 1))
        pair = [inputs_of(part, where) for part in given]
        counts = {len(one) for part in pair for one in (part.values() if isinstance(part, Mapping) else [part])}
        if len(pair) != 2 or len(counts) != 1:
            raise DataError(f"{where}: must be a pair (inputs, labels) of equal lengths; lengths 0 for no sample.")
        return pair[0], array_of(pair[1], where)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        rows: Any = given
        try:
            items = items_of(rows) if twice else [rows[i] for i in range(len(rows))]
        except Exception as error:  # a user's data set may raise anything
            raise DataError(
                f"{where}: {type(given).__name__} raises {type(error).__name__} when its items are read by "
                "range(len(it)); an iterable data set has no such items. Read them in a loop first, or mend it."
            ) from error
        return rows_of(items, where)
    raise DataError(
        f"{where}: is {type(given).__name__}; must be a pair (inputs, labels), a data set of torch.utils.data whose "
        "items are such pairs, or a DataLoader of one; for a table, name its columns by inputs= and label=."
    )


def _is_sample(item: object) -> bool:
    """Return True for a tuple of an array and a single label, which is no half of a pair (inputs, labels)."""
    try:
        return type(item) is tuple and len(item) == 2 and np.ndim(item[0]) > 0 and np.ndim(item[1]) == 0
    except ValueError:  # a ragged list
        return False


def _join_inputs(several: Sequence[Inputs], where: str) -> Inputs:
    """Return the inputs concatenated. Raise DataError if they have different parts, ValueError if different shapes."""
    arrays = [one for one in several if not isinstance(one, Mapping)]
    named = [one for one in several if isinstance(one, Mapping)]
    if not named:
        return np.concatenate(join_types(arrays, where))
    if arrays or any(set(one) != set(named[0]) for one in named):
        raise DataError(f"{where}: some samples have the parts {list(named[0])!r:.200}, others not. Give all one form.")
    return {name: np.concatenate(join_types([one[name] for one in named], where)) for name in named[0]}


def _whole_dataset(loader: Any, where: str) -> ClientData:
    """Return the data set of a DataLoader that yields each sample once and unchanged; raise DataError for others."""
    sampler, collate = type(loader.sampler).__name__, getattr(loader.collate_fn, "__name__", "")
    batches = type(loader.batch_sampler).__name__
    collate = collate if str(getattr(loader.collate_fn, "__module__", "")).startswith("torch.") else ""
    plain = sampler == "SequentialSampler" or (
        sampler == "RandomSampler" and not loader.sampler.replacement and len(loader.sampler) == len(loader.dataset)
    )
    plain &= batches in ("BatchSampler", "NoneType") and collate in ("default_collate", "default_convert")
    if not plain:
        raise DataError(
            f"{where}: a DataLoader with a custom sampler, batch_sampler or collate_fn, which may leave samples out "
            "or change them. Give a torch.utils.data.Subset, or a data set whose items are the client's samples."
        )
    return loader.dataset


def _table_dataset(
    clients: Any, test: object, columns: Columns, classes: Classes, name: str, ignored: int | None
) -> Dataset:
    try:
        from dpfed.data import columns as tables
    except ImportError as error:
        raise DataError(f"tables need pyarrow ({error}): pip install 'dpfed[tables]'.") from None
    where = f"dataset {name!r}"
    test_table = tables.table_of(test, columns, f"{where}, test half", with_client=False)
    if tables.is_table(clients):
        if columns.client is None:
            raise DataError(f"{where}: client= is missing: the column that names the client of each row. Give it.")
        train = tables.table_of(clients, columns, where, with_client=True)
        return tables.of_tables(train, test_table, columns, classes=classes, where=where, name=name, ignored=ignored)
    if columns.client is not None:
        raise DataError(f"{where}: client={columns.client!r} with a list of tables, one per client. Remove client=.")
    each = [tables.table_of(one, columns, f"{where}, client {i}", with_client=False) for i, one in enumerate(clients)]
    if not each:
        raise DataError(f"{where}: there is no client. Give a table of each client.")
    made = tables.of_tables(
        tables.concatenate(each, where), test_table, columns, classes=classes, where=where, name=name, ignored=ignored
    )
    owners = np.repeat(np.arange(len(each)), [len(one) for one in each])
    return replace(made, train_clients=owners, natural_clients=len(each))
