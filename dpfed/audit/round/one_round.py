"""One round of a method as a function of updates, and the claim of its ledger line, which an audit tests."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.compose import accountant
from accounting.ledger import Entry, Release
from accounting.mechanisms import NoisyIntegers, Sampling, SingleRelease, Unsampled, sampling_of, unsampled
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.bernoulli import BernoulliAggregate, BernoulliChannel
from dpfed.aggregation.ranks import Task
from dpfed.compress.levels import Dense
from dpfed.mechanisms.bernoulli import Coins, PrivateCoins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import IntegerNoise, Integers
from dpfed.randomness import Randomness
from dpfed.round import Method
from dpfed.seeds import Seeds
from dpfed.server.rules import ServerRule, ServerState
from dpfed.stages.chain import Stages, client_halves
from dpfed.stages.clip import AdaptiveClip, Clip, ClipMoves, DropNotFinite, FixedClip
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project
from dpfed.stages.stage import Map, Round, Stage, Tally, is_private
from dpfed.stages.wires import Symbols

BernoulliMechanism = BernoulliAggregate | BernoulliChannel


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Mechanism that the ledger records for a round, with its bounds.

    mechanism:   mechanism of the ledger line, with its sampling
    epsilon:     epsilon at `delta` by the accountant's best bound
    bound:       claimed bound on the L2 norm of one client's row, in units of the released vector
    sensitivity: largest distance between noiseless releases of neighbours, in these units: `bound` or twice `bound`
    noise_std:   standard deviation of the noise on the released vector, in these units; 0 for Bernoulli samples
    visible_output: visible output of a round: "sum" or "uploads"
    count_separation:    shift over noise of the released count of clients inside the bound; 0 if no count is released
    """

    mechanism: SingleRelease
    epsilon: float
    delta: float
    bound: float
    sensitivity: float
    noise_std: float
    visible_output: str
    count_separation: float = 0.0

    @property
    def unsampled(self) -> Unsampled:
        """Mechanism without its sampling, for a known cohort."""
        return unsampled(self.mechanism)

    @property
    def sampling(self) -> Sampling:
        """Sampling of the cohort."""
        return sampling_of(self.mechanism)

    @property
    def sampled(self) -> bool:
        """True if the cohort is drawn; False if all clients take part."""
        return not self.sampling.takes_all

    @property
    def adjacency(self) -> Adjacency:
        return Adjacency.of(self.mechanism.adjacency)

    @property
    def coins(self) -> BernoulliMechanism | None:
        """Mechanism of Bernoulli samples; None for any other."""
        return self.unsampled if isinstance(self.unsampled, BernoulliMechanism) else None

    @property
    def integers(self) -> NoisyIntegers | None:
        """Mechanism with integer noise; None for any other."""
        return self.unsampled if isinstance(self.unsampled, NoisyIntegers) else None

    @property
    def description(self) -> str:
        """Description of the claim: kind of the mechanism, and adjacency."""
        return f"{self.mechanism.to_dict()['kind']}, {self.adjacency} neighbours"


def claim_of(release: Release, *, delta: float, count_separation: float = 0.0) -> Claim:
    """Return the claim of one release. count_separation: as in `Claim`; the count and the vector form one Gaussian
    release.

    The sensitivity, in units of the release, follows from the mechanism alone. For Gaussians it is sqrt(mu^2 -
    count_separation^2) noise_std; for integers the accounted integer bound over the steps of a unit; for Bernoulli
    samples the clip.
    """
    sampled = release.mechanism
    mechanism = unsampled(sampled)
    if mechanism.mu is None:
        sensitivity = release.clip_norm * mechanism.adjacency.sensitivity_in_clips
    else:
        sensitivity = math.sqrt(mechanism.mu**2 - count_separation**2) * release.noise_std
    return Claim(
        mechanism=sampled,
        epsilon=accountant.epsilon(sampled, delta=delta),
        delta=delta,
        bound=sensitivity / mechanism.adjacency.sensitivity_in_clips,
        sensitivity=sensitivity,
        noise_std=0.0 if isinstance(mechanism, BernoulliMechanism) else release.noise_std,
        visible_output="uploads" if release.noise_placement == "uploads" else "sum",
        count_separation=count_separation,
    )


ENCODERS = (Encode, Integers, Coins, PrivateCoins, Symbols, DitheredNoise)
BOUNDS = (Clip, ClipMoves, FixedClip, DropNotFinite)


class RowRecorder:
    """Observer that keeps the rows of a round between stages, and their sum.

    bounded: rows after the bound [n, sent], or after the map if there is no bound. given: rows that enter the encoding
    [n, sent]. arrived: rows after the wire, or after a bound behind it [n, width]. total: decoded sum [width].
    sent: released sum [sent].
    """

    def __init__(self, stages: Stages) -> None:
        self._last = next((stage for stage in stages.after_wire if isinstance(stage, BOUNDS)), stages.wire)
        self._rows: dict[str, list[Tensor]] = {"mapped": [], "bounded": [], "given": [], "arrived": []}
        self._ids: list[NDArray[np.int64]] = []
        self.total = self.sent = torch.empty(0)

    @property
    def bounded(self) -> Tensor:
        return torch.cat(self._rows["bounded"] or self._rows["mapped"])

    @property
    def given(self) -> Tensor:
        return torch.cat(self._rows["given"])

    @property
    def arrived(self) -> Tensor:
        return torch.cat(self._rows["arrived"])

    @property
    def uploads(self) -> dict[int, tuple[Tensor, Tensor]]:
        """For each client, the row that enters the encoding [sent] and the row that arrives [width]."""
        if not self._ids:
            return {}
        rows = zip(self.given, self.arrived, strict=True)
        return {int(one): row for one, row in zip(np.concatenate(self._ids), rows, strict=True)}

    def entering(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if isinstance(stage, ENCODERS):
            self._rows["given"].append(rows.clone())
            self._ids.append(ids)

    def norms_before_clip(self, norms: Tensor) -> None:
        pass

    def left(self, stage: Stage, rows: Tensor, ids: NDArray[np.int64]) -> None:
        if isinstance(stage, Project):
            self._rows["mapped"].append(rows.clone())
        if isinstance(stage, BOUNDS):
            self._rows["bounded"].append(rows.clone())
        if stage is self._last:
            self._rows["arrived"].append(rows.clone())

    def added(self, rows: Tensor, ids: NDArray[np.int64]) -> None:
        pass

    def noise(self, noise: Tensor, draws: int = 1) -> None:
        pass

    def summed(self, stage: Stage, total: Tensor) -> None:
        if isinstance(stage, ENCODERS):
            self.total = total.clone()
        if isinstance(stage, Project):
            self.sent = total.clone()


class RecordedRule:
    """Server's rule that records its last inputs."""

    def __init__(self, rule: ServerRule) -> None:
        self._rule = rule
        self.move: Tensor | None = None
        self.count = 1.0

    def step(self, state: ServerState, mean_move: Tensor, *, count: float) -> ServerState:
        self.move, self.count = mean_move.clone(), count
        return self._rule.step(state, mean_move, count=count)

    def repeat_last_step(self, before: ServerState) -> ServerState | None:
        """Return the state that the rule computes from `before` and its last inputs; None if it was not called."""
        return None if self.move is None else self._rule.step(before, self.move.clone(), count=self.count)


class StateRecorder(Stage):
    """Last stage of a chain, which changes nothing and records the clip norm of the next state."""

    def __init__(self) -> None:
        self.clip_norm: float | None = None

    def next_state(self, state: ServerState, now: Round) -> ServerState:
        self.clip_norm = state.clip_norm
        return state


def without_server_half(stage: Stage, seen: list[Callable[[], bool]]) -> Stage:
    """Return a copy of a custom stage whose server half leaves the sum as it is, since it is post-processing.

    Bounds, encoders and noise keep theirs. seen: gets a test for each call, True if the server half of `stage` returns
    the same from the sum and public values alone, now: after rounds of other updates.
    """
    if isinstance(stage, (*ENCODERS, *BOUNDS, Project)) or is_private(stage) or not hasattr(stage, "__dict__"):
        return stage
    made, empty = copy.copy(stage), np.zeros(0, dtype=np.int64)

    def server(total: Tensor, now: Round) -> Tensor:
        kept, moved = total.clone(), type(stage).server(made, total.clone(), now)
        task = replace(now.task, cohort=empty, participants=empty)
        public = replace(now, task=task, tally=Tally(), memory={}, votes=[], uploads=0)
        seen.append(lambda: torch.equal(stage.server(kept.clone(), public), moved))
        return total

    object.__setattr__(made, "server", server)
    return made


class LedgerInMemory:
    """Ledger that keeps its entries in memory."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def record(self, entry: Entry) -> None:
        self.entries.append(entry)


PUBLIC_SEEDS = 16
"""Number of different public seeds that trials use in turn."""


class RandomnessByCallOrder:
    """Randomness whose draws depend on the order of calls, not on their names.

    An audit repeats one round thousands of times; draws that depend on their names would be equal in every repetition.
    That no two rounds or clients share noise, which names ensure in a run, is tested by `seeds_check` with the run's
    randomness.
    """

    def __init__(self, seed: int) -> None:
        self._numpy = np.random.Generator(np.random.Philox(seed))

    @property
    def name(self) -> str:
        return "simulated"

    def uniform(self, count: int, purpose: str, *path: int) -> NDArray[np.float64]:
        return self._numpy.random(count)

    def bits(self, count: int, purpose: str, *path: int) -> NDArray[np.uint64]:
        return self._numpy.integers(0, 1 << 64, count, dtype=np.uint64)

    def subset(self, size: int, population: int, purpose: str, *path: int) -> NDArray[np.int64]:
        drawn = self._numpy.choice(population, size, replace=False, shuffle=False)
        return np.sort(drawn).astype(np.int64)

    def normal(self, count: int, purpose: str, *path: int, device: str = "cpu") -> Tensor:
        return torch.from_numpy(self._numpy.standard_normal(count).astype(np.float32)).to(device)


class ExactCount(AdaptiveClip):
    """Adaptive clip whose count of clients inside the bound has no noise."""

    def noisy_count(self, centred_count: float, number: int) -> float:
        return centred_count


@dataclass(frozen=True, kw_only=True)
class UploadedRows:
    """Rows of n uploads.

    bounded: rows after the bound [n, sent]. coded: rows that enter the encoding [n, sent]. arrived: rows that are
    summed [n, width].
    """

    bounded: Tensor
    coded: Tensor
    arrived: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class OneRound:
    """Round `state.round` of this method, with `clients` uploads in the sum.

    Uploads of several trials are computed together. Client i of trial t has the id t * clients + i, so that values that
    depend on a client's public seed differ between trials; equal trial numbers have equal public seeds. Secret draws
    are those of the stages, or of another source by `with_randomness`.
    """

    method: Method
    state: ServerState
    seeds: Seeds
    clients: int

    @cached_property
    def announcement(self) -> Round:
        """Announcement of the round, computed once with its public map."""
        no_clients = np.zeros(0, dtype=np.int64)
        return self.method.announce(Task(state=self.state, cohort=no_clients, participants=no_clients), self.seeds)

    @property
    def size(self) -> int:
        """Number d of entries of an update."""
        return self.method.clients.course.size

    @property
    def projection(self) -> Map:
        return self.announcement.projection

    @property
    def reference(self) -> Tensor:
        return self.announcement.reference

    @property
    def without_noise(self) -> OneRound:
        """Round without noise: stages that add noise are removed, and the count of adaptive clipping has no noise.

        The clip is kept, and Bernoulli samples are still drawn.
        """
        stages = self.method.stages
        if stages.find(DitheredNoise) is not None:
            stages = stages.replace_stage(DitheredNoise, lambda noise: Encode(scheme=Dense(), seeds=self.seeds))
        stages = stages.without(GaussianNoise, IntegerNoise)
        if stages.adaptive_clip is not None:
            exact = ExactCount(**vars(stages.adaptive_clip))
            stages = stages.replace_stage(Clip, lambda clip: replace(clip, adaptive=exact))
        return replace(self, method=replace(self.method, stages=stages))

    def with_randomness(self, randomness: Randomness) -> OneRound:
        """Return the round with every secret draw from this source.

        Errors: TypeError for a stage whose randomness cannot be replaced: its noise would be equal in every trial.
        """
        stages = Stages(*(_with_source(stage, randomness) for stage in self.method.stages))
        return replace(self, method=replace(self.method, stages=stages, randomness=randomness))

    def upload(self, updates: Tensor, ids: NDArray[np.int64]) -> UploadedRows:
        """Return the uploads of clients `ids` with these updates [n, d], computed by the client halves
        of all stages.
        """
        seen = RowRecorder(self.method.stages)
        now = replace(self.announcement, memory=dict(self.state.stages), votes=[], tally=Tally(), observer=seen)
        arrived = client_halves(self.method.stages, updates.clone(), ids, now)
        return UploadedRows(bounded=seen.bounded, coded=seen.given, arrived=arrived)

    def rows_of_client(self, update: Tensor, trials: NDArray[np.int64]) -> Tensor:
        """Return the rows [n, width] of the client under test as they arrive, one for each trial."""
        return self.upload(update.expand(len(trials), -1), trials * self.clients).arrived


def _with_source(part: object, randomness: Randomness) -> Any:
    """Return a stage, or a part of a stage, that draws from this source, as do all its parts."""
    names = [field.name for field in fields(part)] if is_dataclass(part) else []
    if hasattr(part, "randomness") and "randomness" not in names:
        raise TypeError(
            f"{type(part).__name__}: draws from a source of randomness that cannot be replaced. Make `randomness` a "
            "dataclass field."
        )
    within = {name: getattr(part, name) for name in names}
    changed = {name: _with_source(one, randomness) for name, one in within.items() if hasattr(one, "randomness")}
    if "randomness" in names:
        changed["randomness"] = randomness
    return replace(cast(Any, part), **changed) if changed else part
