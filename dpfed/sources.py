"""Sources of a round's rows: clients that this process trains, and rows that a caller gives.

The other sources are `dpfed.engines.flower.nodes.Nodes` and the trials of an audit (`dpfed.audit.round.whole_round`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from accounting.errors import AccountingError
from dpfed.aggregation.sums import OpenSum, PlainSum
from dpfed.compress.rotation import one_thread
from dpfed.config.own_code import error_text
from dpfed.errors import DpfedError, TrainingFailed
from dpfed.round import OpenRound, present_canaries
from dpfed.seeds import Seeds
from dpfed.stages.stage import stage_attribute

_AT_ONCE = 1 << 21
"""Numbers that pass through the stages at a time: 8 MiB (measured: benchmarks/README.md)."""
_INTEGERS_AT_ONCE = 1 << 18
"""Integers of 64 bits, with their noise, that pass through the stages at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedClients:
    """Clients that this process trains with `method.clients`: the cohort, or this rank's part of it. Canaries send
    their direction, other participants send zeros."""

    seeds: Seeds

    def take_part(self, opened: OpenRound[OpenSum]) -> None:
        method, now, total = opened.method, opened.now, opened.total
        ranks, canaries = method.ranks, present_canaries(method, now.number)
        mine = ranks.clients_of_rank if ranks.count > 1 else np.asarray
        trained = mine(np.intersect1d(total.senders, np.setdiff1d(now.task.cohort, canaries)))
        now.tally.trained += len(trained)
        at_once = _numbers_at_once(opened)
        if now.broadcast.device.type != "cpu":
            for stage in method.stages:
                stage_attribute(stage, "start_draws")(trained, now)
        # Training uses every core; the tensors of the stages after it are too small to divide among cores.
        alone = one_thread if at_once == _AT_ONCE else nullcontext
        for ids, updates in method.updates(trained, now, self.seeds, at_once=at_once):
            with alone():
                opened.add_updates(updates, ids)
        opened.add_canaries(mine(np.intersect1d(total.senders, canaries)))
        opened.fill(mine(np.setdiff1d(total.senders, now.task.cohort)))
        if ranks.count > 1:
            opened.gather(ranks)


@dataclass(frozen=True, kw_only=True, eq=False)
class InProcessClients(TrainedClients):
    """Clients of this process and of the processes that it leads; errors in training are raised as `TrainingFailed`."""

    def take_part(self, opened: OpenRound[OpenSum]) -> None:
        opened.method.ranks.send_task(opened.now.task)
        with training_errors(f"round {opened.now.number + 1}"):
            super().take_part(opened)


@contextmanager
def training_errors(what: str) -> Iterator[None]:
    """Raise TrainingFailed for any error of torch (GPU lost, out of memory, process died) or of a custom network."""
    try:
        yield
    except (DpfedError, AccountingError):
        raise
    except Exception as error:  # a custom network may raise any exception
        raise TrainingFailed(
            f"{what}: training failed ({error_text(error)}). Nothing of it was released; the rounds before it are "
            "saved: once the cause is removed, --resume continues."
        ) from error


@dataclass(frozen=True, kw_only=True, eq=False)
class GivenRows:
    """Rows of the cohort's clients, in the cohort's order, a few at a time: from the caller of a loop or an audit."""

    rows: Iterator[Tensor]

    def take_part(self, opened: OpenRound[OpenSum]) -> None:
        cohort, start = opened.now.task.cohort, 0
        for rows in self.rows:
            ids = cohort[start : start + len(rows)]
            opened.now.tally.trained += len(ids)
            opened.add_updates(rows, ids)
            start += len(ids)


def _numbers_at_once(opened: OpenRound[OpenSum]) -> int | None:
    """Return how many numbers pass through all stages together; None: whole groups.

    On a CPU, about the number that fits its caches. A secure sum receives whole groups, so that the mask shared by two
    clients of a group is made once.
    """
    if opened.now.broadcast.device.type != "cpu" or not isinstance(opened.total, PlainSum):
        return None
    private = opened.method.stages.private
    whole = private is not None and not opened.method.stages.summed_as.is_floating_point
    return _INTEGERS_AT_ONCE if whole else _AT_ONCE
