"""Neighbouring data of a `dpfed.run`: its data set with the samples of a pair's clients changed.

The data set is changed before samples are set apart, so that public and validation samples are under test. The
assignment of samples to clients is that of the first run, since the guarantee is about this assignment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpfed.audit.replays.pairs import REMOVED, REPORTING, SAME, SIZES, VALUES, Pair
from dpfed.config.tables import Config
from dpfed.data.dataset import Dataset
from dpfed.data.partition import Holdings, Partition
from dpfed.data.population import Resampled
from dpfed.data.samples import OF_LETTERS, partition_of, public_samples, validation_samples, whole_data
from dpfed.seeds import Seeds

Ids = NDArray[np.int64]


def changed_data(given: Dataset | None, config: Config, pair: Pair | None) -> tuple[Dataset | None, Holdings]:
    """Return the data of this run (None for those of the configuration), and the training samples of each client."""
    whole = _configured_data(config) if given is None else given
    rows, dataset = _rows_without_public(config, whole)
    held = partition_of(config, dataset, Seeds(root=config.data.partition_seed))
    if pair is None or pair.change in (SAME, REPORTING) or isinstance(held, Resampled):
        return given, held
    mine = np.concatenate([np.zeros(0, dtype=np.int64), *(held.of(client) for client in pair.clients)])
    if pair.record is not None:
        mine = mine[[pair.record]]
    at = rows[mine]
    change = VALUES.get(pair.change, VALUES["negated"])
    inputs, labels = whole.train_inputs.copy(), whole.train_labels.copy()
    letters = config.model.name == OF_LETTERS  # changed as whole numbers: -30 is no letter
    inputs[at], labels[at] = change(inputs[at].astype(np.int64) if letters else inputs[at], labels[at])
    if pair.change in (REMOVED, "zeroed"):  # removed samples must not be used by any code that still reads them
        labels[at] = labels[at][::-1]
    return replace(whole, train_inputs=inputs, train_labels=labels), held


def _configured_data(config: Config) -> Dataset:
    """Return the data set of the configuration without its features, which are computed from this run's data."""
    return whole_data(config.model_copy(update={"data": config.data.model_copy(update={"features": None})}))


def _rows_without_public(config: Config, whole: Dataset) -> tuple[Ids, Dataset]:
    """Return the training rows of `whole`, without validation and public samples, and the data set of these rows."""
    import torch

    count = len(whole.train_labels)
    numbered = replace(whole, train_clients=np.arange(count), natural_clients=count, client_ids=None)
    division, device = Seeds(root=config.data.partition_seed), torch.device("cpu")
    rest, _ = validation_samples(config, numbered, division, device)
    dataset, _ = public_samples(config, rest, division, device)
    assert dataset.train_clients is not None
    rows = dataset.train_clients
    natural = None if whole.train_clients is None else whole.train_clients[rows]
    clients, ids = whole.natural_clients, whole.client_ids
    return rows, replace(dataset, train_clients=natural, natural_clients=clients, client_ids=ids)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChangedHoldings:
    """Holdings equal to `base`, except for the rows of the clients in `changed_rows`."""

    base: Holdings
    changed_rows: dict[int, Ids]

    @classmethod
    def resized(cls, base: Holdings, pair: Pair) -> Holdings:
        """Return `base` with the number of rows of the pair's clients changed; a removed client holds no rows."""
        if pair.record is not None:
            return base
        change = SIZES.get(pair.change, SIZES["zeroed"])
        others = {client: change(base.of(client)) for client in pair.clients}
        if not isinstance(base, Partition):
            return cls(base=base, changed_rows=others)
        rows = [others.get(client, base.of(client)) for client in range(base.clients)]
        sizes = np.array([len(one) for one in rows], dtype=np.int64)
        return Partition(
            indices=np.concatenate([np.zeros(0, dtype=np.int64), *rows]),
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            ids=base.ids,
        )

    @property
    def clients(self) -> int:
        return self.base.clients

    @property
    def sizes(self) -> Ids:
        sizes = np.array(self.base.sizes)
        for client, rows in self.changed_rows.items():
            sizes[client] = len(rows)
        return sizes

    @property
    def total(self) -> int:
        return int(self.sizes.sum())

    def of(self, client: int) -> Ids:
        return self.changed_rows.get(client, self.base.of(client))

    def rows_at(self, clients: Ids, places: Ids) -> Ids:
        rows = [
            self.changed_rows[int(client)][place]
            if int(client) in self.changed_rows
            else self.base.rows_at(np.array([client]), place[None])[0]
            for client, place in zip(clients, places, strict=True)
        ]
        return np.stack(rows) if rows else self.base.rows_at(clients, places)
