"""Local training one client at a time: for models too large to train side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from dpfed.clients.gradients import BatchGradients
from dpfed.clients.records import gradients_of_records
from dpfed.clients.side_by_side import allocate_moves
from dpfed.clients.task import LocalTask, Walk, forward_pass, out_of_memory
from dpfed.compress.rotation import one_thread
from dpfed.errors import TrainingFailed


def train_in_turn(task: LocalTask) -> Tensor:
    """Return moves [c, n]; a client's move is bitwise equal whatever other clients are in the task.

    On a CPU every core trains one client at a time, on one thread, so the number of cores does not change a move.
    Raises TrainingFailed if memory runs out.
    """
    moves = allocate_moves(len(task.schedule.steps), task.course.size, task.broadcast.device)
    longest_first = np.argsort(-task.schedule.steps, kind="stable").tolist()
    try:
        if moves.device.type == "cpu":
            _on_every_core(task, longest_first, moves)
        else:
            _train_clients(task, longest_first, moves)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise TrainingFailed(
            f"local training: one client per core does not fit into memory ({str(error).strip()[:200]}). Choose a "
            "smaller local.batch_size or model, or fewer cores (OMP_NUM_THREADS)."
        ) from error
    return moves


def _on_every_core(task: LocalTask, clients: Iterable[int], moves: Tensor) -> None:
    """Train clients as `_train_clients`, on every core; an idle core takes the next client."""
    waiting = iter(clients)
    alone = task.start is not None and task.start.alone
    # OpenMP keeps its number of threads per thread, so each worker must set it.
    with one_thread() as cores, ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done in [pool.submit(_train_clients, task, waiting, moves) for _ in range(1 if alone else cores)]:
            done.result()


def _train_clients(task: LocalTask, clients: Iterable[int], moves: Tensor) -> None:
    """Train the clients and write their moves into the rows `clients` of `moves`.

    If an exception is forgiven, the client's row is NaN. The next client then gets a new module, because the exception
    may have left data in the old module.
    """
    step: _PlainStep | _PrivateStep | None = None
    for client in clients:
        try:
            walk = task.begin(np.array([client]))
            if step is None:
                task.restore_shared_state()
                step = _PrivateStep(task, walk) if task.record else _PlainStep(task, walk)
            step.start_client(walk)
            for number, batch in enumerate(_batches(task, client)):
                walk.place_weights(1, number)
                step.take_step(client, number, batch)
            moves[client] = walk.finish()[0]
        except BaseException as error:
            if not task.forgives_error(error):
                raise
            assert task.failed is not None
            task.failed.add((client,))
            moves[client] = torch.nan
            step = None


class _PlainStep:
    """Step on one batch of a client; module and buffers are kept from client to client."""

    def __init__(self, task: LocalTask, walk: Walk) -> None:
        self._task, self._walk = task, walk
        self._module = task.model.bind(walk.weights[0])
        self._gradients = BatchGradients(task.model, self._module)
        self._parameters = [one for one in self._module.parameters() if one.requires_grad]
        self._room = walk.weights.new_empty(task.model.size)
        self._restore = task.restorer(self._module)
        self._views = [one.data for one in self._parameters]

    def start_client(self, walk: Walk) -> None:
        self._walk = walk
        self._restore()
        self._task.model.rebind(self._module, walk.weights[0])
        self._views = [one.data for one in self._parameters]

    def take_step(self, client: int, number: int, batch: Tensor) -> None:
        task, walk = self._task, self._walk
        with torch.enable_grad():
            drawn = task.own_randomness(np.array([client]), number)
            with forward_pass(task.precision, batch.device), drawn:
                outputs = self._module(task.batch_inputs(batch))
            self._keep_replaced()
            loss = task.loss.mean(outputs.float(), task.labels[batch])
        if walk.rate is not None:
            self._gradients.subtract_gradient(loss, walk.rate)
            return
        self._gradients.write(loss, self._room)
        walk.step(1, number, walk.slope(1, self._room[None]))

    def _keep_replaced(self) -> None:
        """Copy a parameter that the forward pass has moved to other memory back into the client's weights.

        An example is `weight.data = renorm(weight.data)`. The step starts from the client's weights, and the update is
        computed from them.
        """
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.data_ptr() != view.data_ptr():
                view.copy_(parameter.data)
                parameter.data = view


class _PrivateStep:
    """Step on one batch of a client with private records."""

    def __init__(self, task: LocalTask, walk: Walk) -> None:
        self._task, self._walk = task, walk
        self._room = walk.weights[0].clone()
        self._prepare()

    def _prepare(self) -> None:
        self._task.restore_shared_state()
        self._module = self._task.model.bind(self._room)
        # Before integer noise records are computed one by one, where a plain backward pass is fastest.
        one_by_one = self._task.record is not None and self._task.record.one_by_one
        by = "single" if one_by_one else self._task.gradients_by
        self._together = by != "single"
        self._records = gradients_of_records(self._module, loss=self._task.loss, by=by)
        self._restore = self._task.restorer(self._module)

    def start_client(self, walk: Walk) -> None:
        self._walk = walk

    def take_step(self, client: int, number: int, batch: Tensor) -> None:
        """Step along the sum of the records' gradients, clipped per record, with noise."""
        task = self._task
        assert task.record is not None
        assert task.schedule.expected is not None

        def slopes(rows: Tensor) -> Tensor:
            gradients = self._gradients(client, number, rows)
            if type(self._walk).__module__.startswith("dpfed."):
                return self._walk.slope(1, gradients)
            # A custom walk may mix the rows that it receives, as by gradient / gradient.norm().
            return torch.cat([self._walk.slope(1, one) for one in torch.split(gradients, 1)])

        slope = task.record.slope(
            slopes,
            batch,
            size=task.course.size,
            expected=int(task.schedule.expected[client]),
            path=(task.round, int(task.clients[client]), number),
        )
        self._walk.step(1, number, slope[None])

    def _gradients(self, client: int, step: int, rows: Tensor) -> Tensor:
        """Return per-record gradients [b, d], computed at a copy of the client's weights.

        A forward pass may write to its parameters, and no clipping bounds that, so the copy is discarded. If an
        exception is forgiven, the records of the batch are computed one by one. A record that raises alone, or whose
        gradient is not finite, has the gradient 0.
        """
        task = self._task
        if self._together or len(rows) == 1:
            self._restore()  # so that no record affects later ones through a state of the network
            self._room.copy_(self._walk.weights[0])
            task.model.rebind(self._module, self._room)
            drawn = task.own_randomness(np.array([client]), step, records=rows.cpu().numpy())
            try:
                return self._records(task.inputs[rows], task.labels[rows], drawn)
            except BaseException as error:
                if not task.forgives_error(error):
                    raise
            self._prepare()
        if len(rows) == 1:
            assert task.failed is not None
            task.failed.add((client, step, int(rows[0])))
            return self._room.new_zeros(1, len(self._room))
        return torch.cat([self._gradients(client, step, row[None]) for row in rows])


def _batches(task: LocalTask, client: int) -> Iterator[Tensor]:
    """Yield the client's batches in order, each an int64 tensor of its real rows; all are copied to the device at
    once."""
    steps = int(task.schedule.steps[client])
    samples, real = task.schedule.samples[client, :steps], task.schedule.real[client, :steps]
    rows = torch.from_numpy(samples[real]).to(task.labels.device)
    yield from torch.split(rows, real.sum(axis=1).tolist())
