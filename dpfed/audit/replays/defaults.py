"""Default pairs of a replay audit: chosen from what the first run has shown of the code's data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpfed.audit.replays.pairs import NOT_FINITE, REMOVED, REPORTING, SAME, Pair
from dpfed.audit.replays.replay_run import RunFindings

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
        *(Pair((who,), change, at) for change, (who, at) in zip(changes, _repeated(places), strict=False)),
    ]


def _repeated(places: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return places * -(-(len(_OF_RECORDS) + 1) // len(places))


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
