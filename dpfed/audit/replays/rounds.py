"""Run of a replay audit that compares rounds of dpfed: of `dpfed.run`, a ClientLevel loop, or dpfed in Flower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.mechanisms.adjacency import Adjacency
from dpfed.aggregation.ranks import Ranks
from dpfed.audit.replays.draws import Draws
from dpfed.audit.replays.findings import Array, Floats, Key, digest
from dpfed.audit.replays.neighbour import ChangedHoldings, changed_data
from dpfed.audit.replays.pairs import REMOVED, REPORTING, Pair
from dpfed.audit.replays.replay_run import ROUNDING, Recording, ReplayRun, RunStopped
from dpfed.data.partition import Holdings
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import IntegerNoise
from dpfed.randomness import Simulated
from dpfed.round import Method, RoundResult
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.clip import ClipMoves
from dpfed.stages.stage import Private, Round, Stage

PUBLIC = ("who is drawn", "who is asked", "who arrives")
"""Values that must not depend on a removed client under any adjacency, even if removal is not a charged change."""
_IN_BOUND = 1 + 1e-9
_BLOCKS = 64
_MEMORY = "memory of the server"
"""Name of values in the server's memory. It exists from the first participant on; a run without one may lack it."""


@dataclass(frozen=True, kw_only=True)
class RenamedRandomness(Simulated):
    """Seeded randomness with the name of the randomness that it replaces."""

    new_name: str

    @property
    def name(self) -> str:
        return self.new_name


class RowDigests:
    """Digests of rows [c, k] after each stage.

    A row that a stage leaves unchanged, bit for bit, keeps its digest: comparing is much faster than hashing.
    """

    def __init__(self) -> None:
        self.rows = self.before = np.zeros((0, 0), dtype=np.float32)
        self._digests: list[str] = []

    def digests_of(self, rows: Tensor) -> tuple[list[str], list[bool] | None]:
        """Return the digests, and for each row True if it differs from that of the last call; None if the shape
        differs.
        """
        given = np.ascontiguousarray(rows.detach().cpu().numpy())
        if given.shape != self.rows.shape or given.dtype != self.rows.dtype or not given.size:
            self.before, self.rows = self.rows, given.copy()
            self._digests = [digest(row) for row in given]
            return self._digests, None
        bits = f"u{given.dtype.itemsize}"
        changed = [not np.array_equal(a, b) for a, b in zip(self.rows.view(bits), given.view(bits), strict=True)]
        if self.before.shape != given.shape or self.before.dtype != given.dtype:
            self.before = np.empty_like(given)
        self.before, self.rows = self.rows, self.before
        self.rows[...] = given
        self._digests = [
            digest(row) if other else kept for row, kept, other in zip(given, self._digests, changed, strict=True)
        ]
        return self._digests, changed


class ReplayRunOfRounds(ReplayRun):
    """Run of a replay audit that compares dpfed's rounds: a `dpfed.round.RoundComparison` and an observer of rows.

    loop: True to train clients one by one, so that no client's number of samples affects the rounding of others
    most: number of rounds after which the run ends; None for all
    last: number of rounds of `dpfed.run` with clients, at its end; None for all. Earlier cohorts are empty
    """

    _method: Method
    """Method of the present round, from its opening on."""
    _now: Round

    def __init__(
        self,
        pair: Pair | None,
        recording: Recording,
        draws: Draws | None = None,
        *,
        loop: bool = False,
        most: int | None = None,
        last: int | None = None,
    ) -> None:
        super().__init__(pair, recording, draws)
        self._loop, self._most, self._last, self._empty = loop, most, last, 0
        self._chains: list[Stages] = []
        """Chain of this round's method, and the chain of the node whose rows are compared."""
        self._bits: int | None = None
        self._model: bytes | None = None
        self._held: Holdings | None = None
        self._cohort: frozenset[int] = frozenset()
        self._beside: frozenset[int] = frozenset()
        self._away = 0
        self._units = 0
        self._sum: Array | None = None
        self._added = 0
        self._digests = RowDigests()
        self._in_rows: bool | None = None
        self._charged: dict[int, Array] = {}
        """Rows of this group of clients as the private stage left them."""
        self._halves: list[str] = []
        """Stages whose server half has received the noisy sum in this round, starting with the private stage."""

    @property
    def rounds(self) -> ReplayRunOfRounds:
        return self

    # ---- parts of a run

    def randomness(self, made: Any) -> Any:
        if made.name != "secure":
            return made
        return RenamedRandomness(seeds=Seeds(root=10**9 + 7), new_name=made.name)

    def own(self, given: Any, config: Any) -> Any:
        data, self._held = changed_data(given.data, config, self.pair)
        self._empty = 0 if self._last is None else max(0, config.federation.rounds - self._last)
        return replace(given, data=data)

    def training(self, made: Any) -> Any:
        held = made.partition if self._held is None else self._held
        self.seen.units, self.seen.of_dataset = held.clients, True
        if self.pair is not None and (self.pair.changes_sizes or self.pair.change == REMOVED):
            held = ChangedHoldings.resized(held, self.pair)
        return replace(made, partition=held, strategy="loop" if self._loop else made.strategy)

    def drawn(self, cohort: Any, number: int) -> Any:
        if number < self._empty:
            return cohort[:0]
        if not self.removes_clients:
            return cohort
        here = ~np.isin(cohort, list(self.changed))
        self._away = int((~here).sum())
        self.seen.rows += self._away
        return cohort[here]

    def batch(self, records: Any) -> Any:
        if self.record is None or self.change != REMOVED or self._held is None:
            return records
        (client,) = self.changed
        row = self._held.of(client)[self.record]
        return records[records != row]

    # ---- a round

    def compare_opening(self, now: Round, method: Method, arriving: NDArray[np.int64]) -> ReplayRunOfRounds:
        self.stop_if_found()
        self.round, self._method, self._now, self._bits = now.number, method, now, method.stages.bits
        self._sum, self._added, self._in_rows = None, 0, None
        self._chains, self._halves = [method.stages], []
        self._set_scope(method, now)
        cohort, participants = now.task.cohort, now.task.participants
        if len(np.unique(participants)) < len(participants):
            self.finding("has a client twice", (self.round, "who is drawn", None, 0))
        if not self.first and self.compared_names is not None and now.number not in self.recording.cohorts:
            raise RunStopped  # a budget that counts uploads lasts longer without some clients
        if self.first:
            self.recording.cohorts[now.number] = (cohort, participants)
            self.seen.present.append([int(i) for i in cohort if i < method.sampler.clients])
            if method.clients.record is not None:
                self.seen.of_records |= {int(i): int(method.clients.partition.sizes[i]) for i in cohort}
        before, asked_before = self.recording.cohorts.get(now.number, (cohort[:0], participants[:0]))
        self._cohort = frozenset(map(int, cohort))
        entered = self._entered_clients(
            "who is drawn", before, cohort, may_enter=method.sampler.law.cohort_cap is not None
        )
        filled = self._entered_clients(
            "who is asked",
            np.setdiff1d(asked_before, before),
            np.setdiff1d(participants, cohort),
            may_enter=method.fill is not None,
        )
        self._beside = frozenset((*entered, *filled))
        self._units = len(self.changed & {*self._cohort, *map(int, before)}) + len(entered)
        came = np.array([i for i in np.intersect1d(arriving, cohort) if int(i) not in self._beside], dtype=np.int64)
        exactly = method.dropouts is not None and bool(method.dropouts.lost)
        if (
            self.compared_names is None or not exactly
        ):  # with a fixed number of dropouts, removing a client changes who drops out
            self.outside("who arrives", self._without_changed(came))
        self.outside("announced model", now.broadcast)
        bits = now.broadcast.cpu().numpy().tobytes()
        if self._model is not None and self._model != bits:
            self.finding("was modified after the end of the previous round", self._key("announced model", None))
        self.outside("announced clip norm", now.clip_norm)
        self.outside("announced reference", now.reference)
        for name, value in sorted(vars(now.projection).items()):
            if isinstance(value, Tensor | int | float | str):
                self.outside(f"announced map, {name}", value)
        return self

    def _set_scope(self, method: Method, now: Round) -> None:
        private = method.stages.private
        if private is not None:
            self.seen.removal_is_neighbour = (
                private.mechanism().adjacency is Adjacency.ADD_REMOVE and not private.in_every_upload
            )
        alone = self.removes_clients and not self.seen.removal_is_neighbour
        self.compared_names = frozenset(PUBLIC) if alone else None

    def _entered_clients(
        self, name: str, before: NDArray[np.int64], now: NDArray[np.int64], *, may_enter: bool
    ) -> tuple[int, ...]:
        """Compare client ids, and return the ids that entered only because a removed client left a free place."""
        self._key(name, None)
        if self.pair is None:
            return ()
        one, two = self._without_changed(before), self._without_changed(now)
        gone, entered = np.setdiff1d(one, two), np.setdiff1d(two, one)
        allowed = self._away if may_enter and self.change == REMOVED else 0
        if len(gone) or len(entered) > allowed:
            first = int(gone[0] if len(gone) else entered[0])
            where = "first" if len(gone) else "second"
            self.finding(f"client {first} is in the {where} run only", (self.round, name, None, 0))
        return tuple(map(int, entered))

    def _without_changed(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids without those of removed clients; the presence of all other clients must not
        depend on them.
        """
        return ids[~np.isin(ids, list(self.changed))] if self.removes_clients else ids

    def outside(self, name: str, value: object, client: int | tuple[int, int] | None = None) -> None:
        if name == "who arrives" and isinstance(value, np.ndarray):
            self._key(name, None)
            if self.first:
                self.recording.arriving[self.round] = value
            elif not np.array_equal(self._without_changed(self.recording.arriving[self.round]), value):
                self.finding("differs", (self.round, name, None, 0))
            return
        super().outside(name, value, client)

    def may_miss(self, key: Key) -> bool:
        no_client_came = key[1].startswith(_MEMORY) and self.change == REMOVED
        return self.compared_names is not None or no_client_came

    # ---- rows: an observer

    def node_observer(self, method: Method) -> ReplayRunOfRounds:
        self._chains = [*self._chains[:1], method.stages]
        return self

    def _is_private(self, stage: Stage) -> bool:
        return any(stage is one.private for one in self._chains)

    def entering(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        stages = self._method.stages
        if any(stage is next(iter(one)) for one in self._chains):
            self._compare_rows("update of local training", rows, ids, fillers=False)
        if self._is_private(stage):
            assert stages.private is not None
            self._row_beyond_bound(stages.private, rows, ids)

    def norms_before_clip(self, norms: Tensor) -> None:
        pass

    def left(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        changed = self._compare_rows(f"row after {type(stage).__name__}", rows, ids)
        if self._is_private(stage):
            self._charged = dict(zip(ids.tolist(), rows.detach().cpu().numpy().copy(), strict=True))
            self._check_noise_in_rows(type(stage).__name__, changed, ids)
            if self._in_rows and isinstance(stage, GaussianNoise | IntegerNoise):
                self._compare_noise(type(stage).__name__, ids)

    def _check_noise_in_rows(self, stage: str, changed: Sequence[bool] | None, ids: NDArray[np.int64]) -> None:
        """Record a finding if some rows have noise and others have none: noise must be in all rows, or in the sum."""
        if changed is None:
            self._in_rows = True
            return
        for noised, client in zip(changed, ids, strict=True):
            if self._in_rows not in (None, noised):
                self.finding("adds noise to some rows only", (self.round, f"row after {stage}", int(client), 0))
            self._in_rows = noised

    def _compare_noise(self, stage: str, ids: NDArray[np.int64]) -> None:
        """Compare the noise of each row by its sums over 64 blocks; noise must not depend on the row."""
        for row, entered, client in zip(self._digests.rows, self._digests.before, ids, strict=True):
            if int(client) not in self._beside:
                noise = row.astype(np.float64) - entered.astype(np.float64)
                sums = np.array([block.sum() for block in np.array_split(noise, _BLOCKS)])
                nothing = np.zeros_like(sums)
                self.mechanism(f"noise of {stage}", nothing, sums, sensitivity=None, client=int(client))

    def _compare_rows(
        self, name: str, rows: Tensor, ids: NDArray[np.int64], *, fillers: bool = True
    ) -> Sequence[bool] | None:
        """Compare rows; return for each True if this stage changed it, or None if this stage changed the length of
        rows.
        """
        digests, changed = self._digests.digests_of(rows)
        for found, client in zip(digests, ids, strict=True):
            drawn = int(client) in self._cohort
            self.seen.rows += drawn and not fillers and int(client) in self.changed
            if (drawn or fillers) and int(client) not in self._beside:
                self._compare(name, found, int(client))
        return changed

    def _row_beyond_bound(self, private: Private, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Record a finding for each row, of any client and in any run, whose norm is above the charged bound."""
        moves = self._method.stages.find(ClipMoves)
        for row, client in zip(rows, ids, strict=True):
            if moves is not None:
                part = moves.largest_bound_fraction(row[None], self._now.reference, self._now.clip_norm)
            else:
                part = float(torch.linalg.vector_norm(row.double())) / _charged_bound(private, self._now)
            if not part <= _IN_BOUND:
                key: Key = (self.round, f"row that enters {type(private).__name__}", int(client), 0)
                self.finding("is beyond its bound", key, by=part, allowed=1.0)

    def clipped(self, rows: Tensor, records: Tensor, bound: float, path: tuple[int, ...]) -> None:
        """Compare the clipped gradients [b, d] of a batch's records, in step `path` (round, client, step)."""
        longest = float(torch.linalg.vector_norm(rows.double(), dim=1).max()) if len(rows) else 0.0
        name = f"clipped gradient in step {path[2]}"
        if not longest <= bound * (1 + 1e-6):
            self.finding("is beyond its bound", (path[0], name, path[1], 0), by=longest, allowed=bound)
        for row, record in zip(rows, records.tolist(), strict=True):
            self.outside(name, row, (path[1], self.place_of(path[1], record)))
            self.seen.rows += self._belongs_to_changed((path[1], self.place_of(path[1], record)))

    def place_of(self, client: int, record: int) -> int:
        assert self._held is not None
        return int(np.flatnonzero(self._held.of(client) == record)[0])

    def private_rows(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> Tensor:
        if not self._is_private(stage) or not self._method.stages.every_upload_is_a_release or not len(rows):
            return rows
        name = f"upload that {type(stage).__name__} makes private"
        return torch.stack(
            [
                self.mechanism(name, row, row, sensitivity=None, client=int(client), adds_noise=False)
                for row, client in zip(rows, ids, strict=True)
            ]
        )

    def arrived(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        self._compare_rows("upload", rows, ids)
        self._compare_uploads(rows, ids)
        exact = torch.float64 if rows.is_floating_point() else torch.int64
        if self._sum is None:
            self._sum = np.zeros(rows.shape[1], dtype=np.float64 if rows.is_floating_point() else np.int64)
        self._sum += (rows[0] if len(rows) == 1 else rows.sum(dim=0, dtype=exact)).cpu().numpy()
        self._added += len(rows)

    def _compare_uploads(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        """Find rows of a sum that changed after their bound was checked; integers may be reduced modulo 2^bits."""
        if self._method.stages.every_upload_is_a_release:
            return  # a release may be changed in any way
        for row, client in zip(rows.detach().cpu().numpy(), ids.tolist(), strict=True):
            charged = self._charged.pop(client, row)
            if charged.shape == row.shape and not np.array_equal(charged, row):
                apart = float(np.abs(self.difference(charged, row)).max())
                if apart != 0:
                    self.finding(
                        "differs from its bounded row", (self.round, "upload", client, 0), by=apart, allowed=0.0
                    )

    def gather(self, ranks: Ranks) -> None:
        if self._sum is None:
            floating = self._method.stages.summed_as.is_floating_point
            self._sum = np.zeros(self._method.stages.width, dtype=np.float64 if floating else np.int64)
        self._sum = ranks.sum_over_ranks(torch.from_numpy(self._sum)).numpy()
        self._added = int(ranks.sum_over_ranks(torch.tensor([self._added])))

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        pass

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        pass

    def summed(self, stage: Stage, total: Tensor) -> None:
        """Compare the noisy sum after each server half of a stage, so that a difference names the stage
        that caused it.
        """
        if self._halves:
            self.outside(f"sum after {self._halves[-1]}", total)
        if self._halves or self._is_private(stage):
            self._halves.append(type(stage).__name__)

    # ---- the sum

    def compare_noise(self, stage: Private, total: Tensor, noisy: Tensor, now: Round) -> Tensor:
        name = f"sum that {type(stage).__name__} makes private"
        entered = total.cpu().numpy()
        self._check_sum(name, entered, now.uploads)
        in_rows = stage.in_rows or stage.in_every_upload if self._in_rows is None else self._in_rows
        made: Tensor = self.mechanism(
            name,
            total,
            noisy,
            sensitivity=None if in_rows else _charged_bound(stage, now),
            units=self._units,
            adds_noise=not in_rows,
        )
        return made

    def _check_sum(self, name: str, entered: Array, uploads: int) -> None:
        """Record a finding if the sum that enters the private stage is not the sum of the uploaded rows."""
        if self._sum is None or self._added != uploads or self._sum.shape != entered.shape:
            return
        apart = np.abs(self.difference(self._sum, entered))
        scale = float(np.abs(self._sum.astype(np.float64)).max(initial=0))
        of_rows = 2**-22 * uploads * self._now.clip_norm  # rows may cancel, so that the sum does not bound rounding
        room = 0.0 if entered.dtype.kind in "iu" else max(ROUNDING * scale, of_rows, 1e-30)
        if len(apart) and not float(apart.max()) <= room:
            self.finding("is not the sum of the rows", (self.round, name, None, 0), by=float(apart.max()), allowed=room)

    def difference(self, one: Array, two: Array) -> Floats:
        apart = super().difference(one, two)
        if self._bits is None:
            return apart
        half = 2.0 ** (self._bits - 1)
        return (apart + half) % (2 * half) - half

    def compare_result(self, done: RoundResult) -> None:
        state = done.state
        if done.mean is not None:
            after = f", after {self._halves[-1]} and the division" if self._halves else ""
            self.outside(f"released mean{after}", done.mean)
        self._model = state.broadcast.cpu().numpy().tobytes()
        self.outside("model of the server", state.broadcast)
        self.outside("clip norm of the server", state.clip_norm)
        for name, value in sorted({**state.memory, **state.stages}.items()):
            self._compare_memory(name, value)
        self.outside("round aborted", done.record.aborted is not None)
        self.outside("charge", repr(done.release))
        self.seen.rounds += 1
        if self.ranks == 1 and self.change != REPORTING:
            self.check_missing_values()  # with several ranks, values of other ranks arrive only at the end of the run
        self.stop_if_found()
        if self._most is not None and self.seen.rounds >= self._most:
            raise RunStopped

    def _compare_memory(self, name: str, value: Tensor) -> None:
        """Compare a value of the server's memory; if it has one row for each client, row by row."""
        if value.ndim == 2 and len(value) == self._method.sampler.clients:
            for client, row in enumerate(value):
                self.outside(f"{_MEMORY}, {name}", row, client)
        else:
            self.outside(f"{_MEMORY}, {name}", value)


def _charged_bound(private: Private, now: Round) -> float:
    """Return the charged bound on the L2 norm of a row."""
    return private.noise.l2_bound if isinstance(private, IntegerNoise) else now.clip_norm
