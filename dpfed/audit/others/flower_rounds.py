"""One round of a Flower strategy, driven with given updates: no network, no Ray, no training."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_NEXT_TO_NOTHING = 1e-12


@dataclass(frozen=True, kw_only=True)
class StrategyRound:
    """A function of updates [clients, d] and a seed: the round that a strategy makes of them, and what is seen of it.

    make:     clients of the round to a strategy
    mods:     of the clients, outermost first
    examples: num-examples that clients report, one each, repeated as often as needed
    shows:    names of attributes of the strategy that the next round tells (an adaptive clip norm, say)
    upload:   see the last client's reply instead of the new model

    The model is zeros in two arrays, so that a client's new arrays are its update. Zeros are sent as next to nothing:
    Flower 1.41 divides by their norm.
    """

    make: Callable[[int], Any]
    mods: tuple[Any, ...] = ()
    examples: tuple[int, ...] = (1,)
    shows: tuple[str, ...] = ()
    upload: bool = False
    expected: int | None = None

    def __call__(self, updates: Floats, seed: int) -> list[Floats]:
        from flwr.app import ArrayRecord, ConfigRecord

        np.random.seed(seed)  # noqa: NPY002 - Flower draws its noise from the global source
        random.seed(seed)
        _quiet()
        grid = _Nodes(count=self.expected or len(updates))
        strategy = self.make(grid.count)
        start = _record(ArrayRecord, np.zeros(updates.shape[1], dtype=np.float32))
        messages = list(strategy.configure_train(1, start, ConfigRecord({}), grid))[: len(updates)]
        replies = [
            self._reply(message, np.where(row == 0, _NEXT_TO_NOTHING, row).astype(np.float32), k)
            for k, (message, row) in enumerate(zip(messages, updates, strict=True))
        ]
        if self.upload:
            return _arrays(next(iter(replies[-1].content.array_records.values())))
        arrays, _ = strategy.aggregate_train(1, replies)
        told = [np.array([getattr(strategy, name)], dtype=np.float32) for name in self.shows]
        return [*_arrays(arrays), *told]

    def _reply(self, message: Any, row: Floats, client: int) -> Any:
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

        def train(received: Any, _: Any) -> Any:
            metrics = MetricRecord({"num-examples": self.examples[client % len(self.examples)]})
            content = RecordDict({"arrays": _record(ArrayRecord, row), "metrics": metrics})
            return Message(content, reply_to=received)

        context = Context(run_id=1, node_id=client + 1, node_config={}, state=RecordDict(), run_config={})
        app = train
        for mod in reversed(self.mods):
            app = _wrapped(mod, app)
        return app(message, context)


@dataclass(frozen=True, kw_only=True)
class _Nodes:
    """A grid that only knows how many nodes there are."""

    count: int

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))


def _wrapped(mod: Any, app: Any) -> Any:
    return lambda message, context: mod(message, context, app)


def _record(make: Any, row: Floats) -> Any:
    """Two layers, so that what is done layer by layer shows."""
    return make([part.copy() for part in np.array_split(row, 2)])


def _arrays(record: Any) -> list[Floats]:
    return list(record.to_numpy_ndarrays())


def _quiet() -> None:
    import logging
    import warnings

    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore")
