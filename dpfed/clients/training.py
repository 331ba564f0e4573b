"""Local training: samples and batches of each client, along a method's course.

The processor time of training on records one by one is estimated from public numbers alone.
"""

from __future__ import annotations

import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accounting.ledger import LocalRelease
from dpfed.clients.loop import train_in_turn
from dpfed.clients.losses import CROSS_ENTROPY, Loss
from dpfed.clients.network_randomness import draws_random_numbers
from dpfed.clients.plan import (
    LOOPS,
    Precision,
    StepCost,
    Strategy,
    TrainingPlan,
    check_strategy,
    chunk_within,
    default_budget,
    fastest_plan,
    step_cost,
    takes_channels_last,
)
from dpfed.clients.records import Way, WholeGradients
from dpfed.clients.schedule import PoissonBatches, count_steps, draw_schedule
from dpfed.clients.side_by_side import ChunkSize, train_side_by_side
from dpfed.clients.task import Course, InitialState, LocalTask
from dpfed.compress.rotation import tf32
from dpfed.data.partition import Holdings, Partition
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import RecordLevel
from dpfed.models.flat import FlatModel
from dpfed.seeds import Seeds
from dpfed.stages.stage import rows_of_clients


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalTraining:
    """Local training: clients draw batches of their samples and follow `course` on the mean loss of each batch.

    Exactly one of `epochs` (passes over the client's samples, reshuffled each) and `steps` (batches) is given. A client
    without samples has the move 0. The move of a client that diverges has NaN or infinity, which the caller handles.

    inputs, labels: float32 or int64 [N, ...], and class numbers int64 [N] or other targets [N, ...] of `loss`, on the
                    device to train on
    strategy:       "loop" trains one client after the other, "vmap" makes clients a tensor dimension, "auto" chooses
                    the strategy expected to be faster (`plan`). Results are equal up to float rounding.
    chunk:          number of clients side by side, for "vmap"; None: chosen by `memory` and speed. Results are equal up
                    to rounding. Halved whenever memory runs out.
    memory:         megabytes for clients side by side; None: a quarter of main memory, or of a GPU's
    at_once:        expected number of clients in a call of `train`, for the choice of a strategy
    precision:      number format of gradients (`dpfed.clients.task`): "bf16" is faster on processors that support it,
                    "tf32" is for CUDA GPUs only. Accuracy with each: benchmarks/README.md. Private records need
                    "float32".
    record:         if given, records are private: batches are Poisson samples (`PoissonBatches`), slopes are clipped
                    record by record and noised (`RecordLevel`). Clients are then trained in a loop; vmap is refused.
    gradients_by:   computation of the slopes of private records (`dpfed.clients.records_apart` chooses it)

    start:          initial state of network and loss for each client (`dpfed.clients.trial`); None: no state is
                    restored between clients
    not_together:   reason why clients cannot be trained side by side, for "auto"; None: they can
    personal:       entries [p] of the broadcast that stay with each client (local.personal)
    probe:          public inputs [n, ...], never a client's, on which the network is called before round 1 to measure
                    its cost, its memory layout and its random draws; None: two samples of zeros

    Random draws of a network (dropout layers) are separate for each client, from the seeds
    (`dpfed.clients.network_randomness`).

    With BatchNorm each client has separate running statistics under both strategies; in short batches they are computed
    as torch does, on the client's real samples.

    Raises ConfigError for invalid values, among them batches of one sample if BatchNorm needs two.
    """

    model: FlatModel
    course: Course
    inputs: Tensor
    labels: Tensor
    partition: Holdings
    epochs: int | None = None
    steps: int | None = None
    batch_size: int
    loss: Loss = CROSS_ENTROPY
    strategy: Strategy = "auto"
    chunk: int | None = None
    memory: int | None = None
    at_once: int = 100
    precision: Precision = "float32"
    record: RecordLevel | None = None
    gradients_by: Way = "hooks"
    start: InitialState | None = None
    not_together: str | None = None
    personal: Tensor | None = None
    probe: Tensor | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ConfigError(
                f"epochs={self.epochs}, steps={self.steps}: local training needs exactly one of them. Give one, remove "
                "the other."
            )
        check_strategy(
            self.strategy, self.precision, self.model, self.inputs.device, private_records=self.record is not None
        )
        _check_single_samples(self)

    @property
    def remembers_clients(self) -> bool:
        """True if clients keep personal layers from round to round."""
        return self.personal is not None

    @property
    def poisson_batches(self) -> PoissonBatches:
        """Batch sampler for private records."""
        return PoissonBatches(batch_size=self.batch_size, epochs=self.epochs, steps=self.steps)

    def release(self, clients: NDArray[np.int64], *, number: int) -> LocalRelease | None:
        """Return the release of training `clients` [c] in a round; None if records are not private."""
        if self.record is None:
            return None
        return self.record.release(self.partition.sizes[clients], clients, self.poisson_batches, number=number)

    @property
    def period(self) -> int:
        """Local update period τ: number of steps per round of the client with the most samples.

        Under `epochs` it reveals that client's size: give `steps` if sizes are private.
        """
        if self.steps is not None:
            return self.steps
        sizes = np.array([self.partition.sizes.max()])
        return int(count_steps(sizes, batch_size=self.batch_size, epochs=self.epochs, steps=None)[0])

    def train(
        self,
        broadcast: Tensor,
        clients: NDArray[np.int64],
        *,
        number: int,
        seeds: Seeds,
        purpose: str = "local.shuffle",
        failed: set[tuple[int, ...]] | None = None,
        memory: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Return moves [c, n], float32, of `clients` [c] from broadcast [n].

        purpose: purpose of the shuffling stream
        failed:  if given, an exception of the network or the loss is recorded here and training continues
                 (`LocalTask.failed`); no warning is shown meanwhile.
        memory:  the round's memory, in which clients find and keep their personal layers; None: all layers are as
                 broadcast, and nothing is kept

        A client's move depends only on (broadcast, seeds, round, its id, its personal layers). The other clients of the
        call have no effect in a loop, and no effect beyond float rounding under vmap.
        """
        _check_broadcast(self, broadcast)
        if self.record is not None:
            schedule = self.poisson_batches.draw(self.partition, clients, self.record.randomness, number=number)
        else:
            schedule = draw_schedule(
                self.partition,
                clients,
                batch_size=self.batch_size,
                epochs=self.epochs,
                steps=self.steps,
                number=number,
                seeds=seeds,
                purpose=purpose,
            )
        kept_layers = None
        if self.personal is not None and memory is not None:
            like = broadcast[None, self.personal]
            changes = rows_of_clients(memory, "personal", clients=self.partition.clients, like=like)
            kept_layers = (self.personal, changes[torch.from_numpy(clients).to(like.device)])
        task = LocalTask(
            model=self.model,
            course=self.course,
            broadcast=broadcast.detach(),
            inputs=self.inputs,
            labels=self.labels,
            clients=clients,
            schedule=schedule,
            round=number,
            seeds=seeds,
            loss=self.loss,
            record=self.record,
            gradients_by=self.gradients_by,
            random=f"{purpose}.network" if self._draws_random_numbers else None,
            channels_last=self._channels_last,
            precision=self.precision,
            start=self.start,
            kept=kept_layers,
            failed=failed,
            windows=self._chunk is not None and self.cost.takes_windows(self.inputs.device),
        )
        kept = nullcontext() if self.start is None else self.start.restored_around()
        silence = nullcontext() if failed is None else warnings.catch_warnings(action="ignore")
        with tf32(self.precision == "tf32", self.inputs.device), silence, kept:
            moves = train_in_turn(task) if self._chunk is None else train_side_by_side(task, self._chunk)
        if kept_layers is not None and memory is not None:
            entries, before = kept_layers
            usable = moves.isfinite().all(dim=1, keepdim=True)
            places = torch.from_numpy(clients).to(moves.device)
            memory["personal"][places] = torch.where(usable, moves[:, entries], before)
        return moves

    def train_on(
        self, inputs: Tensor, labels: Tensor, broadcast: Tensor, *, number: int, seeds: Seeds, purpose: str
    ) -> Tensor:
        """Return the move [n] of one further client, which has the samples (inputs, labels) and takes `period` steps.

        Fed-SMP's server trains on public data by this method, with the clients' optimiser and local update period.
        `purpose` is the purpose of the shuffling stream.
        """
        rows = np.arange(len(labels), dtype=np.int64)
        alone = Partition(indices=rows, offsets=np.array([0, len(rows)], dtype=np.int64))
        trainer = replace(
            self,
            inputs=inputs,
            labels=labels,
            partition=alone,
            epochs=None,
            steps=self.period,
            strategy="loop",
            record=None,
        )
        return trainer.train(broadcast, np.zeros(1, dtype=np.int64), number=number, seeds=seeds, purpose=purpose)[0]

    @cached_property
    def _draws_random_numbers(self) -> bool:
        return draws_random_numbers(self.model, self._probe, training=True)

    @cached_property
    def _channels_last(self) -> bool:
        return takes_channels_last(self.model, self._probe)

    @property
    def _probe(self) -> Tensor:
        """Two public inputs, on the device of training."""
        if self.probe is None:
            return self.inputs.new_zeros(2, *self.inputs.shape[1:])
        return self.probe[torch.arange(2) % len(self.probe)].to(self.inputs.device)

    @property
    def plan(self) -> TrainingPlan:
        """Current training plan; its chunks are halved when memory runs out."""
        return self._initial_plan if self._chunk is None else replace(self._initial_plan, chunk=self._chunk.clients)

    @cached_property
    def _chunk(self) -> ChunkSize | None:
        return None if self._initial_plan.chunk is None else ChunkSize(self._initial_plan.chunk)

    @cached_property
    def _initial_plan(self) -> TrainingPlan:
        """The plan, which depends on configuration and memory only, not on any client's number of samples.

        So a resumed run keeps its plan, and the plan in a report reveals no client.
        """
        if (reason := self._reason_for_loop()) is not None:
            return TrainingPlan(strategy="loop", chunk=None, why=reason)
        cost, device = self.cost, self.inputs.device
        budget = default_budget(device) if self.memory is None else self.memory * 1_000_000
        chunk = self.chunk or chunk_within(budget, cost.bytes(self.course.size, device), device)
        if self.strategy != "auto":
            return TrainingPlan(strategy=self.strategy, chunk=chunk, why="as local.strategy says")
        return fastest_plan(cost, self.at_once, chunk, device)

    def _reason_for_loop(self) -> str | None:
        """Return the reason why clients are trained one after another; None if they can be trained together."""
        if self.strategy == "loop":
            return "as local.strategy says"
        if self.strategy == "auto" and self.not_together is not None:
            return self.not_together
        if self.record is not None:
            return LOOPS["records"].why
        if self.precision == "bf16" and self.model.has_statistics:
            return LOOPS["statistics"].why
        return LOOPS["recurrent"].why if self.strategy == "auto" and self.model.recurrent else None

    @cached_property
    def cost(self) -> StepCost:
        """Cost of one client's step."""
        return step_cost(self.model, self._probe, self.batch_size)


def _check_broadcast(training: LocalTraining, broadcast: Tensor) -> None:
    size = training.course.size
    if broadcast.shape != (size,) or broadcast.dtype != torch.float32:
        raise ConfigError(
            f"broadcast: {broadcast.dtype} of shape {tuple(broadcast.shape)}; must be float32 [{size}]. Start from "
            "the model's initial weights or the masks' initial probabilities."
        )


def _check_single_samples(training: LocalTraining) -> None:
    sizes, batch_size = training.partition.sizes, training.batch_size
    alone = (sizes % batch_size == 1) | (sizes > 0) & (batch_size == 1)
    if training.steps is not None:
        alone &= -(-sizes // batch_size) <= training.steps
    if alone.any() and not training.model.trains_on_one(training._probe[:1]):
        first = int(np.argmax(alone))
        raise ConfigError(
            f"batch_size={batch_size}: client {first} has {sizes[first]} samples and so a batch of one, for which "
            "BatchNorm has no variance. Choose another batch_size, or a model with GroupNorm."
        )


_TRIALS = 10


def seconds_of_records(clients: LocalTraining, *, rounds: int, share: float) -> tuple[float, int] | None:
    """Return (seconds of processor time, expected gradients of a round) of private records with integer noise.

    share: expected share of clients in a round. Gradients of a sample of zeros at initial weights are timed. None for
    records that are trained together, and for a custom network, which is called only where its state is restored.
    """
    record = clients.record
    if record is None or not record.one_by_one or clients.start is not None:
        return None
    gradients = WholeGradients(clients.model.bind(clients.model.initial(0)), loss=clients.loss, by="single")
    inputs, labels = torch.zeros_like(clients.inputs[:1]), torch.zeros_like(clients.labels[:1])
    row, names = torch.zeros(1, clients.course.size), torch.zeros(1, dtype=torch.int64)
    began = 0.0
    for trial in range(_TRIALS + 1):
        if trial == 1:  # the first call prepares caches
            began = time.process_time()
        gradients(inputs, labels)
        record.bound_rows(lambda _: row, names, (0, 0, 0))
    each = (time.process_time() - began) / _TRIALS
    batches = clients.poisson_batches
    sizes, number = np.unique(clients.partition.sizes, return_counts=True)
    held = zip(sizes.tolist(), number.tolist(), strict=True)
    steps = sum(clients_of * batches.expected(size) * batches.count(size) for size, clients_of in held)
    a_round = round(share * steps)
    return each * a_round * rounds, a_round
