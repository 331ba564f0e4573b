"""Hooks of a replay audit in Flower's differentially private strategies and mods.

Clipped updates are compared, and noisy means are frozen. Supported are the strategies and mods of the message API
(`flwr.serverapp`, `flwr.clientapp`), with nodes in this process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

import numpy as np

from dpfed.audit.replays.adapters import COUNT_SENSITIVITY, Hook, compare_rows, frozen_arrays, key_of_finding
from dpfed.audit.replays.findings import Array, Floats
from dpfed.audit.replays.replay_run import ROUNDING, ReplayRun


def _watch_strategies(world: ReplayRun, module: ModuleType) -> None:
    for name, strategy in vars(module).items():
        if name.startswith("DifferentialPrivacy") and "aggregate_train" in vars(strategy):
            _watch_strategy(world, strategy)


def _watch_strategy(world: ReplayRun, strategy: Any) -> None:
    configure, aggregate = strategy.configure_train, strategy.aggregate_train

    @wraps(configure)
    def configure_train(self: Any, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        world.seen.fixed_size = "Flower's strategies draw a fixed number of clients"
        world.outside("model that Flower announces", arrays.to_numpy_ndarrays())
        world.outside("clip norm that Flower announces", float(self.clipping_norm))
        self._replay_announced = arrays.to_numpy_ndarrays()
        return configure(self, server_round, arrays, config, grid)

    @wraps(aggregate)
    def aggregate_train(self: object, server_round: int, replies: object) -> Any:
        with _FlowerRound(world, self).watching():
            return aggregate(self, server_round, replies)

    strategy.configure_train, strategy.aggregate_train = configure_train, aggregate_train


class _FlowerRound:
    """Round of a private strategy: clipped updates are compared row by row, noisy means and counts are frozen."""

    def __init__(self, world: ReplayRun, strategy: Any) -> None:
        self._world, self._strategy = world, strategy
        self._aggregate = strategy.strategy.aggregate_train
        self._noise = strategy._add_noise_to_aggregated_arrays
        self._fraction = getattr(strategy, "_noisy_fraction", None)
        self._rows: list[Floats] | None = None
        self._rounding = 0.0
        self._differing: int | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        strategy, inner = self._strategy, self._strategy.strategy
        inner.aggregate_train, strategy._add_noise_to_aggregated_arrays = (
            self.aggregate_and_keep_rows,
            self.add_frozen_noise,
        )
        if self._fraction is not None:
            strategy._noisy_fraction = self.frozen_fraction
        try:
            yield
        finally:
            del inner.aggregate_train, strategy._add_noise_to_aggregated_arrays
            if self._fraction is not None:
                del strategy._noisy_fraction

    def aggregate_and_keep_rows(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        came = sorted((one for one in replies if not one.has_error()), key=lambda one: one.metadata.src_node_id)
        announced = _concatenated(self._strategy._replay_announced)
        self._rows = [_concatenated(_arrays_of(one)) - announced for one in came]
        self._rounding = 2**-22 * (float(np.linalg.norm(announced)) + float(self._strategy.clipping_norm))
        return self._aggregate(server_round, replies)

    def _compare_rows(self) -> int | None:
        """Compare the rows once, with the clip norm to which the noise is scaled; return the number of
        differing rows.
        """
        if self._rows is not None and self._differing is None:
            bound = float(self._strategy.clipping_norm)
            name = "clipped updates in Flower"
            self._differing = compare_rows(self._world, name, self._rows, bound, 1e-5 * bound + self._rounding)
        return self._differing

    def add_frozen_noise(self, aggregated: Any) -> Any:
        strategy, name = self._strategy, "mean of clipped updates in Flower"
        units = self._compare_rows()
        before = [np.array(one) for one in aggregated.to_numpy_ndarrays()]
        self._require_mean(name, before)
        noisy = self._noise(aggregated)
        bound = float(strategy.clipping_norm) / strategy.num_sampled_clients
        frozen = frozen_arrays(self._world, name, before, noisy.to_numpy_ndarrays(), bound, units)
        return _record_like(noisy, frozen)

    def _require_mean(self, name: str, arrays: list[Array]) -> None:
        """Record a finding if FedAvg's mean is not the sum of the updates over `num_sampled_clients`.

        Unequal weights or another divisor cause it. Other strategies are not checked.
        """
        from flwr.serverapp.strategy import FedAvg

        strategy = self._strategy
        if not self._rows or type(strategy.strategy).aggregate_train is not FedAvg.aggregate_train:
            return
        mean = np.sum(self._rows, axis=0) / strategy.num_sampled_clients
        apart = float(np.abs(_concatenated(arrays) - _concatenated(strategy._replay_announced) - mean).max(initial=0))
        room = ROUNDING * float(np.abs(mean).max(initial=0)) + 2 * self._rounding
        if not apart <= room:
            words = "is not the sum of the updates over num_sampled_clients"
            self._world.finding(words, key_of_finding(self._world, name), by=apart, allowed=room)

    def frozen_fraction(self, count: int, total: int) -> float:
        assert self._fraction is not None
        noisy = float(self._fraction(count, total))
        name, units = "share of clipped updates in Flower", self._differing
        return float(
            self._world.mechanism(name, float(count / total), noisy, sensitivity=COUNT_SENSITIVITY / total, units=units)
        )


def _watch_local_dp(world: ReplayRun, module: Any) -> None:
    """Set hooks in the mod of local DP: each client's update is the output of a mechanism."""
    call, add = module.LocalDpMod.__call__, module.add_gaussian_noise_inplace
    now: list[tuple[Any, int, Floats]] = []

    @wraps(call)
    def watched(self: Any, msg: Any, ctxt: Any, call_next: Any) -> Any:
        client = int(ctxt.node_config.get("partition-id", ctxt.node_id))
        now.append((self, client, _concatenated(_arrays_of(msg))))
        try:
            return call(self, msg, ctxt, call_next)
        finally:
            now.pop()

    def noised(arrays: list[Array], std_dev: float) -> None:
        mod, client, announced = now[-1]
        name = f"update that client {client} makes private in Flower"
        before = [array.copy() for array in arrays]
        row = _concatenated(before) - announced
        if not float(np.linalg.norm(row)) <= mod.clipping_norm * (1 + 1e-5) + 2**-22 * float(np.linalg.norm(announced)):
            world.finding(
                "is beyond its bound",
                key_of_finding(world, name),
                by=float(np.linalg.norm(row)),
                allowed=mod.clipping_norm,
            )
        world.outside(name, row, client)
        add(arrays, std_dev)
        mine = int(client in world.changed)
        frozen = frozen_arrays(world, name, before, arrays, float(mod.sensitivity), mine)
        for array, made in zip(arrays, frozen, strict=True):
            array[...] = made

    module.LocalDpMod.__call__, module.add_gaussian_noise_inplace = watched, noised


def _arrays_of(message: Any) -> list[Array]:
    arrays: list[Array] = next(iter(message.content.array_records.values())).to_numpy_ndarrays()
    return arrays


def _concatenated(arrays: Sequence[Array]) -> Floats:
    return np.concatenate([np.zeros(0), *(np.asarray(one, dtype=np.float64).reshape(-1) for one in arrays)])


def _record_like(record: Any, arrays: Sequence[Array]) -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({key: Array(np.asarray(one)) for key, one in zip(record.keys(), arrays, strict=True)})


class FlowerNodes:
    """Grid for a Flower strategy whose nodes run in this process, one for each partition, without Ray and network.

    app:   ClientApp; its `context.node_config` has "partition-id" and "num-partitions"
    count: number of nodes
    """

    def __init__(
        self, app: Callable[[Any, Any], Any], count: int, run_config: Mapping[str, object] | None = None
    ) -> None:
        from flwr.app import Context, RecordDict
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        self._app = app
        self._contexts = {
            place + 1: Context(
                run_id=1,
                node_id=place + 1,
                node_config={"partition-id": place, "num-partitions": count},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for place in range(count)
        }
        self._kept: dict[str, Any] = {}
        self._numbers = itertools.count()

    def get_node_ids(self) -> list[int]:
        """Return the ids of all nodes."""
        return list(self._contexts)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[object]:
        """Return the reply of the node that each message is addressed to."""
        return [self._app(one, self._contexts[one.metadata.dst_node_id]) for one in messages]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Pass each message to its node and store the reply; return the message ids.

        If the app raises, the reply is an error, as in Flower's simulation.
        """
        from flwr.app import Error, Message

        pushed = []
        for one in messages:
            name = f"{len(self._contexts)} nodes, message {next(self._numbers)}"
            one.metadata.__dict__["_message_id"] = name
            try:
                self._kept[name] = self._app(one, self._contexts[one.metadata.dst_node_id])
            except Exception as error:  # the app under audit may raise anything
                self._kept[name] = Message(Error(code=0, reason=str(error)), reply_to=one)
            pushed.append(name)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[object]:
        """Return the stored replies to these messages, and delete them."""
        return [self._kept.pop(name) for name in message_ids if name in self._kept]


def _replace_simulation(world: ReplayRun, module: Any) -> None:
    """Run the nodes of Flower's simulation engine in this process, in which the audit sees them, and not in Ray's.

    Apps and messages are Flower's.
    """

    def simulate(*, num_supernodes: int, client_app: Any, server_app: Any, **given: Any) -> None:
        from flwr.app import Context, RecordDict

        grid = FlowerNodes(client_app, num_supernodes)
        server_app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}))

    module._run_simulation = simulate


HOOKS: dict[str, Hook] = {
    "flwr.simulation.run_simulation": _replace_simulation,
    "flwr.serverapp.strategy.dp_fixed_clipping": _watch_strategies,
    "flwr.serverapp.strategy.dp_adaptive_clipping": _watch_strategies,
    "flwr.clientapp.mod.localdp_mod": _watch_local_dp,
}
