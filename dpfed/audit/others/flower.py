"""Round of a Flower strategy with its mods, as a function from updates to what an attacker sees, without Ray."""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_NEXT_TO_NOTHING = 1e-12


@dataclass(frozen=True, kw_only=True)
class StrategyRound:
    """Round of a strategy, as a function from updates [clients, d] and a seed to the visible outputs.

    make_strategy: function from the number of clients of the round to a strategy
    mods:     mods of the clients, outermost first
    examples: num-examples that clients 0, 1, ... report; repeated if there are more clients
    shown_attributes: names of attributes of the strategy that the next round reveals (an adaptive clip norm, for
    example)
    returns_upload: True if the output is the last client's reply, not the new model
    expected_clients: number of clients that the strategy is configured for; None for the number of updates

    The model is zeros in two arrays, so that a client's new arrays are its update. Zero entries are sent as 1e-12,
    because Flower 1.41 divides by the norm of an update.
    """

    make_strategy: Callable[[int], Any]
    mods: tuple[object, ...] = ()
    examples: tuple[int, ...] = (1,)
    shown_attributes: tuple[str, ...] = ()
    returns_upload: bool = False
    expected_clients: int | None = None

    def __call__(self, updates: Floats, seed: int) -> list[Floats]:
        from flwr.app import ArrayRecord, ConfigRecord

        np.random.seed(seed)  # noqa: NPY002 - Flower draws its noise from the global source
        random.seed(seed)
        _silence_flower()
        grid = _NodeIds(count=self.expected_clients or len(updates))
        strategy = self.make_strategy(grid.count)
        start = _two_layer_record(ArrayRecord, np.zeros(updates.shape[1], dtype=np.float32))
        messages = list(strategy.configure_train(1, start, ConfigRecord({}), grid))[: len(updates)]
        replies = [
            self._reply(message, np.where(row == 0, _NEXT_TO_NOTHING, row).astype(np.float32), k)
            for k, (message, row) in enumerate(zip(messages, updates, strict=True))
        ]
        if self.returns_upload:
            return _arrays_of_record(next(iter(replies[-1].content.array_records.values())))
        arrays, _ = strategy.aggregate_train(1, replies)
        told = [np.array([getattr(strategy, name)], dtype=np.float32) for name in self.shown_attributes]
        return [*_arrays_of_record(arrays), *told]

    def _reply(self, message: object, row: Floats, client: int) -> Any:
        from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict

        def train(received: object, _: object) -> object:
            metrics = MetricRecord({"num-examples": self.examples[client % len(self.examples)]})
            content = RecordDict({"arrays": _two_layer_record(ArrayRecord, row), "metrics": metrics})
            return Message(content, reply_to=received)

        context = Context(run_id=1, node_id=client + 1, node_config={}, state=RecordDict(), run_config={})
        app = train
        for mod in reversed(self.mods):
            app = _with_mod(mod, app)
        return app(message, context)


@dataclass(frozen=True, kw_only=True)
class _NodeIds:
    """Flower grid that provides only the ids of its nodes."""

    count: int

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.count + 1))


def _with_mod(mod: Any, app: object) -> Any:
    return lambda message, context: mod(message, context, app)


def _two_layer_record(make: Any, row: Floats) -> object:
    """Return a record with the row as two arrays, so that layer-wise processing is visible."""
    return make([part.copy() for part in np.array_split(row, 2)])


def _arrays_of_record(record: Any) -> list[Floats]:
    return list(record.to_numpy_ndarrays())


def _silence_flower() -> None:
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore")
