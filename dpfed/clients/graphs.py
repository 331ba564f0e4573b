"""Gradients of clients side by side on a GPU, each network by itself, recorded once and then only replayed.

A step on a batch of ten is some fifty operations too short for a GPU: starting them takes longer than they do. A CUDA
graph starts all of them at once, for every client of a chunk, and lets those of different clients run at the same
time. `torch.vmap` saves the starts as well, but makes grouped convolutions of convolutions.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from dpfed.clients.task import LocalTask, forward_pass, out_of_memory

LANES = 8
"""Clients whose operations may run at the same time."""
MOST_RECORDED = 128
"""Clients of a chunk where nobody says how many: a graph holds every operation of each."""
_SHAPES = 8
_AGREE = 1e-3

Work = Callable[[int], None]
"""One client's part, by its place in the chunk."""
Recorder = Callable[[Work, int], Callable[[], None]]
"""Record the parts 0 .. clients-1 without running them; what is returned runs them all."""


class RecordedGradients:
    """`dpfed.clients.side_by_side.Gradients` from recordings, for one model and one set of samples.

    A shape (clients, batch) is computed as it is the first time, and recorded the second: short last batches of a
    round's few odd clients are not worth a recording. A recording that fails, or gives something else than what it
    recorded, is dropped with all others and a warning, and training goes on without.
    """

    def __init__(self, record: Recorder | None = None) -> None:
        self._record = record
        self._seen: Counter[tuple[int, int]] = Counter()
        self._recordings: dict[tuple[int, int], _Recording] = {}
        self._refused = False

    def __call__(self, task: LocalTask, weights: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
        shape = (rows.shape[0], rows.shape[1])
        if shape in self._recordings:
            return self._recordings[shape].replay(weights, rows, shares)
        self._seen[shape] += 1
        if self._refused or self._seen[shape] == 1 or len(self._recordings) >= _SHAPES:
            return one_by_one(task, weights, rows, shares)
        return self._first(shape, task, weights, rows, shares)

    def _first(self, shape: tuple[int, int], task: LocalTask, weights: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
        """Computed, and recorded for the next time if the recording gives the same."""
        before = weights.clone()
        gradient = one_by_one(task, weights, rows, shares)
        if not gradient.isfinite().all():
            return gradient
        try:
            self._record = self._record or CudaRecorder(weights.device)
            recording = _Recording(task, before, rows, shares, self._record)
            replayed, statistics = recording.replay(before, rows, shares), before
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            said = str(error).strip().splitlines()
            self._refuse(said[0][:200] if said else type(error).__name__)
            return gradient
        if _differ(replayed, gradient) or _differ(statistics, weights):
            self._refuse("a replay did not give what was recorded")
        else:
            self._recordings[shape] = recording
        return gradient

    def _refuse(self, why: str) -> None:
        self._refused = True
        self._recordings.clear()
        warnings.warn(
            f"local training: CUDA graphs do not work here ({why}); going on without, which is slower. Set "
            "local.strategy to 'loop' or 'vmap' to start so.",
            RuntimeWarning,
            stacklevel=2,
        )


def one_by_one(task: LocalTask, weights: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
    """`Gradients`, client after client."""
    gradient = torch.empty_like(weights)
    for client in range(len(rows)):
        _client_gradient(task, weights[client], rows[client], shares[client], gradient[client])
    return gradient


def _client_gradient(task: LocalTask, weights: Tensor, rows: Tensor, shares: Tensor, gradient: Tensor) -> None:
    """Into gradient [d]; no step of it waits for the device or depends on numbers there."""
    model, leaf = task.model, weights.detach().requires_grad_()
    with torch.enable_grad():
        with forward_pass(task.precision, weights.device):
            outputs, statistics = model.train_client(leaf, task.inputs[rows], shares)
        losses = task.loss.each(outputs.float(), task.labels[rows])
        total = torch.dot(losses, shares)
    gradient.copy_(torch.autograd.grad(total, leaf)[0])
    if model.has_statistics:
        weights[model.parameters_size :] = statistics


class _Recording:
    """The gradients of one shape of chunk: memory that the recorded operations read and write, filled before each."""

    def __init__(self, task: LocalTask, weights: Tensor, rows: Tensor, shares: Tensor, record: Recorder) -> None:
        self._weights, self._rows, self._shares = weights.clone(), rows.clone(), shares.clone()
        self._gradient = torch.empty_like(weights)
        self._statistics = slice(task.model.parameters_size, task.model.size)

        def work(client: int) -> None:
            own = self._weights[client], self._rows[client], self._shares[client]
            _client_gradient(task, *own, self._gradient[client])

        self._run = record(work, len(rows))

    def replay(self, weights: Tensor, rows: Tensor, shares: Tensor) -> Tensor:
        self._weights.copy_(weights)
        self._rows.copy_(rows)
        self._shares.copy_(shares)
        self._run()
        weights[:, self._statistics] = self._weights[:, self._statistics]
        return self._gradient


def _differ(found: Tensor, expected: Tensor) -> bool:
    """By more than rounding, of the whole; neither is written to."""
    difference = torch.linalg.vector_norm(found - expected)
    return not bool(difference <= _AGREE * torch.linalg.vector_norm(expected))


class CudaRecorder:
    """Recordings as CUDA graphs, which share their scratch memory: no two run at the same time.

    device: the GPU that the clients are on; it need not be the current one
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()
        # torch's stub of Stream has no types.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._lanes = [torch.cuda.Stream(device) for _ in range(LANES)]  # type: ignore[no-untyped-call]

    def __call__(self, work: Work, clients: int) -> Callable[[], None]:
        stream, graph = self._stream, torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._in_lanes(work, clients)  # libraries set themselves up when they are first used on a stream
        stream.synchronize()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            self._in_lanes(work, clients)
        torch.cuda.current_stream(self._device).wait_stream(stream)
        replay: Callable[[], None] = graph.replay
        return replay

    def _in_lanes(self, work: Work, clients: int) -> None:
        """Client i in lane i mod LANES; all lanes begin after what was on the stream, and it goes on after all."""
        lanes = self._lanes[:clients]
        for lane in lanes:
            lane.wait_stream(self._stream)
        for client in range(clients):
            with torch.cuda.stream(lanes[client % len(lanes)]):
                work(client)
        for lane in lanes:
            self._stream.wait_stream(lane)
