"""Pairs of a replay audit: the clients, or the record, that differ between two runs, and the default pairs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpfed.audit.replays.findings import Array, RunFindings
from dpfed.errors import ConfigError, DataError


def _constant_floats(value: float) -> Callable[[Array, Array], tuple[Array, Array]]:
    return lambda x, y: (np.full_like(x, value) if x.dtype.kind == "f" else x[::-1].copy(), y)


def _other_target(y: Array) -> Any:
    """Return the first target; if all targets are equal to it, return a different value."""
    return 0 if not y.size else y.flat[0] if (y != y.flat[0]).any() else y.flat[0] == 0


VALUES: Mapping[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "far": _constant_floats(-30.0),
    "huge": _constant_floats(1e30),
    "nan": _constant_floats(float("nan")),
    "one class": lambda x, y: (x, np.full_like(y, _other_target(y))),
    "turned": lambda x, y: (x, (y.max(initial=0) - y).astype(y.dtype)),
    "negated": lambda x, y: (-x if x.dtype.kind == "f" else x[::-1].copy(), y),
    "order": lambda x, y: (x[::-1].copy(), y[::-1].copy()),
}
"""Changes of samples (inputs [n, ...], targets [n, ...]) that keep the number of samples."""
TARGETS = ("one class", "turned")
SIZES: Mapping[str, Callable[[Array], Array]] = {
    "zeroed": lambda rows: rows[:0],
    "one sample": lambda rows: rows[:1],
    "many": lambda rows: np.tile(rows, 5),
    "very many": lambda rows: np.tile(rows, 50),
}
"""Changes of the number of a client's samples, as functions of the samples' rows."""
NOT_FINITE = ("nan", "huge")
"""Changes to values that many programs do not reject; in code without rounds of dpfed, they are a row of their own."""
REMOVED = "removed"
SAME = "same data"
"""Change that leaves the data equal: every difference of the second run shows that the code is not repeatable."""
REPORTING = "other reporting"
"""Change that leaves the data equal and evaluates after every round: evaluation must not change the model."""
CHANGES = (*VALUES, *SIZES, REMOVED, SAME, REPORTING)


@dataclass(frozen=True)
class Pair:
    """Clients that differ between the two runs, and the change of their data.

    clients: changed clients. Half of the clients at once test more than one client: the sensitivity for n clients is
             n times the bound on one row, and all other values must be equal for any number of clients
    change:  "far", "huge", "nan", "negated" (values), "one class", "turned" (targets: class k becomes the k-th from the
             end), "order" (of samples), "zeroed", "one sample", "many", "very many" (numbers of samples: none, one, 5
             and 50 times the client's), "removed" (the client is missing; all others keep their ids), "same data" or
             "other reporting" (equal data)
    record:  index of the one record that differs, of the only client in `clients`; None to change whole clients

    Errors: ConfigError for an unknown change, or a record of several clients.

    >>> import dpfed.audit
    >>> dpfed.audit.Pair((3, 1), "far").words
    '2 clients: far'
    """

    clients: tuple[int, ...]
    change: str
    record: int | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "clients", tuple(sorted(map(int, self.clients))))
        except (TypeError, ValueError):
            raise ConfigError(
                f"clients={self.clients!r} of a pair: must be numbers of clients, as in (3, 1)."
            ) from None
        if self.change not in CHANGES:
            raise ConfigError(f"change={self.change!r} of a pair: must be one of {', '.join(CHANGES)}.")
        if self.record is not None and (len(self.clients) != 1 or self.change in SIZES):
            raise ConfigError(
                f"record={self.record} of a pair: must be a record of exactly one client, with its values changed or "
                f"the record removed. Given: {len(self.clients)} clients and change={self.change!r}."
            )

    @property
    def removes_clients(self) -> bool:
        """True if whole clients are missing in the second run."""
        return self.change == REMOVED and self.record is None

    @property
    def changes_sizes(self) -> bool:
        """True if the change alters numbers of samples: clients are then trained one by one, for equal
        float rounding.
        """
        return self.change in SIZES or self.removes_clients

    @property
    def words(self) -> str:
        """Description of the pair for a reader."""
        if self.change in (SAME, REPORTING):
            return self.change
        if self.record is not None:
            return f"record {self.record} of client {self.clients[0]}: {self.change}"
        who = f"client {self.clients[0]}" if len(self.clients) == 1 else f"{len(self.clients)} clients"
        return f"{who}: {self.change}"

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of the pair."""
        return {"clients": list(self.clients), "change": self.change, "record": self.record}

    @classmethod
    def read(cls, path: Path) -> Pair:
        """Return the pair of a file that `dpfed audit` has written. Raises ConfigError for any other file."""
        try:
            kept = json.loads(path.read_text())
            found = kept["pair"] if "pair" in kept else kept["reproduce"]["pair"]
            return cls(clients=tuple(found["clients"]), change=found["change"], record=found["record"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: must be a file with a pair that `dpfed audit` has written ({error}).") from None

    def changed(self, data: Any) -> object:
        """Return the data of the second run: a sequence or mapping of clients, with the arrays of the pair's clients
        changed.

        Clients are numbered by position. A dpfed Dataset is returned unchanged, since `dpfed.run` changes it. Only the
        last clients of a sequence can be removed: all others keep their positions.
        Errors: DataError for data of any other type, and for other clients removed from a sequence; the pair then
        counts as refused.
        """
        if self.change in (SAME, REPORTING) or hasattr(data, "train_inputs"):
            return data
        if isinstance(data, Mapping):
            return {
                key: _changed_client(one, self) if place in self.clients else one
                for place, (key, one) in enumerate(data.items())
                if not (self.removes_clients and place in self.clients)
            }
        if not isinstance(data, Sequence) and not hasattr(data, "__getitem__"):
            raise DataError(
                f"data of type {type(data).__name__}: must be a sequence or a mapping of clients. Give data(...) a "
                "list with one entry for each client."
            )
        if self.removes_clients:
            rest = len(data) - len(self.clients)
            if self.clients != tuple(range(rest, len(data))):
                raise DataError(
                    f"change='removed' of clients {self.clients} of a sequence of {len(data)}: later clients would "
                    "move to other positions. Remove the last ones, or give data(...) a mapping from names to clients."
                )
            return data[:rest]
        changed = [_changed_client(data[i], self) if i in self.clients else data[i] for i in range(len(data))]
        if hasattr(data, "dtype"):
            return _like(data, np.stack([np.asarray(one) for one in changed]))
        return tuple(changed) if isinstance(data, tuple) else changed


def _like(data: object, array: Array) -> Any:
    """Return the array as an object of the type of `data`, an array or a tensor."""
    if isinstance(data, np.ndarray | np.generic):
        return array
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))


def have_samples(clients: Any) -> bool:
    """Return True if the entries of the data are clients with samples, whose number can be changed.

    Every array of such an entry has one row for each sample. Entries with numbers, or with vectors of one length, are
    taken as single records.
    """
    entries = list(clients.values()) if isinstance(clients, Mapping) else [clients[i] for i in range(len(clients))]
    columns = [_columns(one) for one in entries]
    if not columns or not all(columns) or any(len({len(one) for one in each}) > 1 for each in columns):
        return False
    return any(one.ndim > 1 for one in columns[0]) or len({len(each[0]) for each in columns}) > 1


def _columns(client: Any) -> list[Any]:
    """Return the arrays of a client, with one row for each sample; an empty list if the client has no such arrays."""
    if _is_list_of_samples(client):
        return [np.zeros((len(client), 1))]
    parts = client.values() if isinstance(client, Mapping) else client if isinstance(client, tuple | list) else [client]
    found = [one for one in parts if hasattr(one, "dtype")]
    return found if len(found) == len(parts) and all(one.ndim for one in found) else []


def _is_list_of_samples(client: object) -> bool:
    return isinstance(client, list) and not (
        len(client) < 4 and len({len(one) for one in client if hasattr(one, "dtype") and one.ndim > 0}) == 1
    )


def _changed_client(client: Any, pair: Pair) -> Any:
    """Return a client's data with every array changed: floats are taken as inputs, whole numbers as targets."""
    if pair.record is not None:
        return _with_changed_record(client, pair.record, replace(pair, record=None))
    if pair.change in SIZES and _is_list_of_samples(client):
        return [client[i] for i in SIZES[pair.change](np.arange(len(client)))]
    if isinstance(client, Mapping):
        return {key: _changed_client(one, pair) for key, one in client.items()}
    if isinstance(client, tuple | list):
        return type(client)(_changed_client(one, pair) for one in client)
    if isinstance(client, int | float) and not isinstance(client, bool):
        return _changed_client(np.asarray(client), pair).item()
    if not hasattr(client, "dtype"):
        return client
    array = np.asarray(client)
    if pair.change in SIZES:
        changed = array[SIZES[pair.change](np.arange(len(array)))]
    else:
        whole = array.reshape(-1) if array.ndim == 0 else array
        x, y = VALUES[pair.change](whole, whole)
        changed = (y if array.dtype.kind in "iub" and pair.change in TARGETS else x).reshape(array.shape)
        if array.dtype.kind in "iub" and pair.change not in (*TARGETS, "order"):
            changed = array
    return _like(client, changed)


def _with_changed_record(client: Any, record: int, pair: Pair) -> object:
    """Return a client's data with one record changed: one entry of a list, and one row of every array."""
    if isinstance(client, Mapping):
        return {key: _with_changed_record(one, record, pair) for key, one in client.items()}
    if isinstance(client, tuple):
        return tuple(_with_changed_record(one, record, pair) for one in client)
    if not isinstance(client, list) and not hasattr(client, "dtype"):
        return client
    changed = client[:0] if pair.change == REMOVED else _changed_client(client[record : record + 1], pair)
    parts = [client[:record], changed, client[record + 1 :]]
    if isinstance(client, list):
        return [one for part in parts for one in part]
    return _like(client, np.concatenate([np.asarray(part) for part in parts]))


SAME_PAIR = Pair((), SAME)
_CHANGES = ("far", "one class", "turned")
_OF_RECORDS = ("huge", "far", REMOVED, "negated", "one class")
_ONE_CLIENTS_SIZES = ("zeroed", "one sample", "many", "very many")
"""Changes of the number of one client's samples."""


def default_pairs_of_run(first: RunFindings, seed: int, *, removal: bool = True) -> list[Pair]:
    """Return the default pairs for the mechanisms of the first run. removal: False to keep all clients or records."""
    if first.of_records:
        return _pairs_of_records(first, removal=removal)
    of_rounds = bool(first.present)
    present = first.present if of_rounds or not first.units else [list(range(first.units))]
    sizes = ("zeroed", "many", *((REMOVED,) if removal else ())) if first.of_dataset else ()
    if of_rounds and not first.of_dataset and removal:
        sizes = (REMOVED,)
    pairs = [SAME_PAIR, *_pairs_of_halves(present, seed=seed, sizes=sizes)]
    if not pairs[1:]:
        return pairs
    alone = _one_client(present, last=not first.of_dataset)
    if first.has_sizes or first.of_dataset:
        pairs += [Pair(alone, change) for change in _ONE_CLIENTS_SIZES]
    if removal and not of_rounds and not first.fixed_size:
        pairs.append(Pair((first.units - 1,), REMOVED))
    if of_rounds and first.removal_is_neighbour and removal:  # all clients are removed, so that cohorts are empty
        pairs.append(Pair(tuple({client for one in present for client in one}), REMOVED))
    pairs += [Pair(alone, change) for change in NOT_FINITE]
    return [*pairs, Pair((), REPORTING)] if first.of_dataset else pairs


def _pairs_of_records(first: RunFindings, *, removal: bool) -> list[Pair]:
    changes = [one for one in _OF_RECORDS if removal or one != REMOVED] + ["nan"]
    here = sorted({client for one in first.present for client in one})
    alone = [client for client in here if first.of_records.get(client)][:: max(1, len(here) // 5)][: len(changes)]
    places = [(client, place % first.of_records[client]) for place, client in enumerate(alone)]
    if not places:
        return [SAME_PAIR]
    return [
        SAME_PAIR,
        *(Pair((who,), change, at) for change, (who, at) in zip(changes, itertools.cycle(places), strict=False)),
    ]


def _participants(present: Sequence[Sequence[int]]) -> list[int]:
    """Return the clients that took part in the first round that had any."""
    return sorted(next((one for one in present if len(one)), ()))


def _one_client(present: Sequence[Sequence[int]], *, last: bool) -> tuple[int, ...]:
    """Return one client of the first round: the last one, after whose draws no other client draws in that round."""
    group = _participants(present)
    return (group[-1 if last else len(group) // 3],)


def _pairs_of_halves(present: Sequence[Sequence[int]], *, seed: int, sizes: Sequence[str]) -> list[Pair]:
    """Return pairs that change the values of a random half of the participants, of the other half, and of single ones.

    present: clients that took part in each round of the first run. Pairs change these clients only, since a pair whose
             clients are never drawn tests nothing
    sizes:   changes of the numbers of samples of both halves
    """
    everyone = np.unique(np.concatenate([np.asarray(one, dtype=np.int64) for one in present] or [np.zeros(0, int)]))
    if not len(everyone):
        return []
    mixed = np.random.default_rng(seed).permutation(everyone)
    middle = (len(mixed) + 1) // 2
    halves = [tuple(map(int, mixed[:middle])), tuple(map(int, mixed[middle:]))]
    group = _participants(present)
    alone = dict.fromkeys((group[0], group[len(group) // 2], group[-1]))
    pairs = [Pair(half, change) for change in (*_CHANGES, *sizes) for half in halves if half]
    return pairs + [Pair((one,), change) for one, change in zip(alone, (*_CHANGES[:2], _CHANGES[0]), strict=False)]
