"""Trial of a custom network and loss before round 1: one synthetic client's data must not affect another's update.

The trial never uses a client's samples. A refusal that depended on them would be a release without a charge.
"""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpfed.clients.plan import LOOPS
from dpfed.clients.state import OUTSIDE, StateChanges
from dpfed.clients.task import InitialState
from dpfed.clients.training import LocalTraining
from dpfed.compress.rotation import one_thread
from dpfed.config.own_code import error_text, errors_of_user_code
from dpfed.data.partition import partition_of_lists
from dpfed.errors import ConfigError, DpfedError
from dpfed.randomness import Simulated
from dpfed.replayed import without_replay
from dpfed.seeds import Seeds

SECONDS = 0.25
"""Processor seconds for the calls before an update is compared, for each of two sets of clients."""
_STEPS = 16
_BATCH = 8
_ROWS = 256
_LONE = 4
"""Number of samples that are tried as a batch of one."""
_SEEDS = Seeds(root=0)
_ROUNDING = 1e-4
"""Relative difference allowed between equal updates on a GPU, where sums are taken in varying order."""
_PADDING = 1e-2
"""Relative change of an update under other padding above which samples of a batch count as mixed; rounding is below."""

_Generator = Literal["torch", "numpy", "random"]
_NAMES: dict[_Generator, str] = {
    "torch": "torch's global generator (outside forward, or in gradient checkpointing with dropout)",
    "numpy": "numpy's global generator (numpy.random)",
    "random": "Python's global generator (random)",
}
_OWN_DRAWS = (
    "Draw by torch's functions without generator= in forward, where each client has a separate stream; no gradient "
    "checkpointing with dropout."
)
_NO_STATE = "Keep state in attributes of the network or the loss, which are restored before each client."


def training_after_trial(
    training: LocalTraining, broadcast: Tensor, samples: tuple[Tensor, Tensor], start: InitialState, *, cohort: int
) -> LocalTraining:
    """Return local training in which every client starts with the state `start`, if training changes that state.

    With strategy "auto" clients train in a loop if the trial finds that they cannot train side by side.

    samples: public inputs [n, ...] and targets [n, ...], from which synthetic clients are made
    start:   state of network and loss before any use
    cohort:  number of clients in a round

    Clients with one batch of one sample, half a batch and a full batch train first (`_Trial.batch_failure`). A
    synthetic client B trains by itself, after clients A, and after clients A with other samples, by the strategy of
    the run. The number of A's is the number of clients in a round, or the number that trains within `SECONDS`. B's
    updates must be bitwise equal (on a GPU up to rounding) under any state of the global random generators, and
    training must not change these generators.

    Raises ConfigError with the dependence that was found. The global generators are always restored.
    """
    training, moved = replace(training, start=start), StateChanges()
    with one_thread(), without_replay(), _global_generators(training.inputs.device):
        training = _after_trial_of_batches(training, broadcast, samples, start)
        strategy = training.plan.strategy
        problem = _Trial(training, broadcast, samples, strategy=strategy, cohort=cohort).dependence(start, moved)
        together = strategy != "loop" and training.strategy == "auto"
        if together and problem is None and moved.names:
            problem = f"training keeps {_first_names(moved.names)} from one step to the next"
        if together and problem is not None:
            training, moved = replace(training, not_together=f"{LOOPS['trial'].why}: {problem}"), StateChanges()
            start.restore()
            problem = _Trial(training, broadcast, samples, strategy="loop", cohort=cohort).dependence(start, moved)
    start.restore()
    if problem is not None:
        raise ConfigError(f"model, local.loss or course, on synthetic clients ({training.plan.strategy}): {problem}")
    start.alone = start.shared_between_modules(moved)
    return replace(training, start=start if moved.names or training.model.kept_buffers else None)


def training_after_batch_trial(
    training: LocalTraining, broadcast: Tensor, samples: tuple[Tensor, Tensor], start: InitialState
) -> LocalTraining:
    """Return local training without privacy, after a trial of batches as in `training_after_trial`. With strategy
    "auto" it is a loop if synthetic clients cannot train side by side.
    """
    with one_thread(), without_replay(), _global_generators(training.inputs.device):
        training = _after_trial_of_batches(training, broadcast, samples, start)
    start.restore()
    return training


def _after_trial_of_batches(
    training: LocalTraining, broadcast: Tensor, samples: tuple[Tensor, Tensor], start: InitialState
) -> LocalTraining:
    """Return local training in a loop, if synthetic clients fail only side by side and the strategy is "auto", or if
    the network keeps state, since a failed trial side by side would leave its tensors in a class or a global.

    Raises ConfigError if they fail in a loop, which every run may use: with secure randomness, or after a failure of
    memory.
    """
    loop, moved = _Trial(replace(training, start=start), broadcast, samples, strategy="loop", cohort=1), StateChanges()
    start.moved = moved
    try:
        problem = loop.batch_failure() or loop.buffer_change()
    finally:
        start.moved = None
    if problem is not None:
        raise ConfigError(f"model, local.loss or course, on synthetic clients: {problem}")
    if _strategy(training) == "loop":
        return training
    if training.strategy == "auto" and moved.names:
        kept = f"training keeps {_first_names(moved.names)} from one step to the next"
        return replace(training, not_together=f"{LOOPS['trial'].why}: {kept}")
    problem = _Trial(training, broadcast, samples, strategy="vmap", cohort=1).batch_failure()
    if problem is not None and training.strategy != "auto":
        raise ConfigError(
            f"model, local.loss or course, on synthetic clients ({training.strategy}): {problem} A loop has no such "
            "limits: choose local.strategy 'auto' or 'loop', or write conditions on tensors as torch.where."
        )
    return training if problem is None else replace(training, not_together=f"{LOOPS['trial'].why}: {problem}")


def _strategy(training: LocalTraining) -> Literal["loop", "vmap"]:
    """Return the planned strategy. Raise ConfigError if the network fails on the plan's inputs."""
    with errors_of_user_code("model: fails on one test sample in evaluation mode"):
        return training.plan.strategy


class _Trial:
    """Trial of one strategy with five kinds of synthetic clients: one each of C, B, P and D, and `many` of A.

    B has one batch less than C and A, and two less than D, so that B is trained last.

    All batches are full, except the last one of some A's; P has two batches, and the second is short.
    """

    def __init__(
        self,
        training: LocalTraining,
        broadcast: Tensor,
        samples: tuple[Tensor, Tensor],
        *,
        strategy: Literal["loop", "vmap"],
        cohort: int,
    ) -> None:
        device, record = training.inputs.device, training.record
        self._strategy, self._broadcast, self._cohort = strategy, broadcast, cohort
        self._wanted = training.steps or 10 * (training.epochs or 1)
        self._batch = min(training.batch_size, _BATCH)
        self._short = self._batch // 2 if self._batch > 2 or not training.model.has_statistics else 0
        self._base = replace(
            training,
            inputs=samples[0][:_ROWS].to(device),
            labels=samples[1][:_ROWS].to(device),
            partition=partition_of_lists([np.zeros(self._batch, dtype=np.int64)]),
            batch_size=self._batch,
            epochs=1,
            steps=None,
            strategy=strategy,
            chunk=3,
            record=None if record is None else replace(record, randomness=Simulated(seeds=_SEEDS)),
        )
        self._drawn: dict[_Generator, None] = {}
        self._full: NDArray[np.int64] = np.arange(min(training.batch_size, _ROWS)) % len(self._base.inputs)
        """Rows of a full batch."""

    def dependence(self, start: InitialState, moved: StateChanges) -> str | None:
        """Return a description of a dependence between clients, or None."""
        start.moved = moved
        try:
            found = self._dependence_of_updates(moved)
        except DpfedError:
            raise
        except Exception as error:  # a user's network and loss may raise any exception
            found = f"training fails ({error_text(error)})"
        finally:
            start.moved = None
        drawn = [_NAMES[name] for name in self._drawn] + list(moved.generators)
        if drawn:
            return f"training draws from {', '.join(drawn)}. {_OWN_DRAWS}"
        return found

    def batch_failure(self) -> str | None:
        """Return a description of a failure for a batch of some size, or None.

        Clients have one batch: a full one, half of one, or one sample. A client of one sample trains by itself and,
        side by side, beside a full client, where its batch is padded. Where a full batch has a finite update, each
        smaller batch of its samples must have one. Batches of one are left out if BatchNorm refuses them
        (`LocalTraining` refuses clients that have one).
        """
        full = len(self._full)
        smaller = [self._full[: max(1, full // 2)], *self._full[:_LONE, None]]
        if not self._base.model.trains_on_one(self._base.inputs[:1]):
            smaller = [rows for rows in smaller if len(rows) > 1]
        clients = [self._full, *smaller]
        variant = replace(self._base, partition=partition_of_lists(clients), batch_size=full)
        finite = self._is_finite(variant, [0])
        if isinstance(finite, str):
            return f"training fails on a batch of {_sample_count(full)} ({finite})."
        for place in range(1, len(clients)):
            for together in ([place], [0, place]):
                found = self._is_finite(variant, together)
                if found is True or (found is False and not finite):
                    continue
                what = "gives an update that is not finite" if found is False else f"fails ({found})"
                return (
                    f"training {what} on a batch of {_sample_count(len(clients[place]))}, as a client's last batch "
                    f"may be, but not on {full}. Networks and losses must accept any batch size: name dimensions in "
                    "squeeze and view, and compute no statistics of a batch."
                )
        return None

    def buffer_change(self) -> str | None:
        """Return a description of saved buffers that forward passes in training change, or None."""
        model = self._base.model
        if not model.kept_buffers:
            return None
        module = model.bind(self._base.model.initial(0).to(self._base.inputs.device))
        before = {name: tensor.clone() for name, tensor in module.named_buffers() if name in model.kept_buffers}
        with torch.no_grad():
            for rows in (self._full, self._full[:2], self._full):
                module(self._base.inputs[torch.from_numpy(rows)])
        now = dict(module.named_buffers())
        changed = [name for name, tensor in before.items() if not _same_tensor(tensor, now.get(name))]
        if not changed:
            return None
        return (
            f"training changes the buffers {_first_names(changed)}; only parameters and the running statistics of "
            "BatchNorm are trained, noised and sent. Replace the layer that has them, a normalisation by GroupNorm or "
            "LayerNorm; buffers that no pass changes are constants and stay."
        )

    def _is_finite(self, variant: LocalTraining, clients: list[int]) -> bool | str:
        """Return True if the update of the last client is finite, or the text of the error that its training raises."""
        try:
            return bool(self._train(variant, clients)[-1].isfinite().all())
        except DpfedError:
            raise
        except Exception as error:  # a user's network and loss may raise any exception
            return error_text(error)

    def _dependence_of_updates(self, moved: StateChanges) -> str | None:
        steps, many = self._trial_sizes()
        variant, other = (self._make_training(steps, many, others=others) for others in (False, True))
        b, p = many + 1, many + 2
        alone, short = self._train(variant, [b]), self._train(variant, [p])
        after, after_others = (self._last_updates(one, list(range(b + 1)), steps * many) for one in (variant, other))
        beside, again = self._train(variant, [0, p]), self._updates_after_calls(variant, b)
        drawn = self._train(variant, [b], set(_NAMES))
        same = self._same_bits(after[0], after_others[0]) and self._same_bits(after[-1], after_others[-1])
        if self._strategy == "loop":
            same = same and self._same_bits(alone[0], after[-1]) and self._same_bits(short[0], beside[1])
        elif not _is_near(short[0], beside[1]):
            return "an update depends on the number of samples of other clients, as samples of a batch are mixed"
        if not (same and all(self._same_bits(alone, one) for one in again)):
            return f"an update depends on the clients that trained before it, {_state_location(moved)}. {_NO_STATE}"
        if not self._same_bits(alone, drawn):
            self._drawn |= {one: None for one in _NAMES if not self._same_bits(alone, self._train(variant, [b], {one}))}
            return f"an update depends on a global random generator. {_OWN_DRAWS}"
        if moved.escaped_tensors:
            return f"training keeps {_first_names(moved.escaped_tensors)} from one step to the next"
        return None

    def _updates_after_calls(self, variant: LocalTraining, b: int) -> list[Tensor]:
        """Return updates of B after numbers of calls with coprime differences, so that a state of any period is found.

        With s the steps of B, these numbers are 0, s + 1 of C and s + 2 of D in a loop. Side by side, where B's
        position must not change, s and 3 s + 1 calls are between B's.
        """
        if self._strategy == "loop":
            return [self._train(variant, before)[-1:] for before in ([b], [0, b], [b + 2, b])]
        found = [self._train(variant, [b]), self._train(variant, [b])]
        self._train(variant, [0])
        return [*found, self._train(variant, [b])]

    def _trial_sizes(self) -> tuple[int, int]:
        """Return the batches of B, and the number of A's, that fit into `SECONDS`.

        Fast steps get at least `_STEPS` batches, so that a dependence which starts after a few calls is found on a busy
        machine as well.
        """
        self._seconds(1)  # the first step also loads libraries
        few = min(4, self._wanted)
        longer, shorter = (min(self._seconds(steps), self._seconds(steps)) for steps in (few + 1, 1))
        each = max(longer - shorter, 0) / few
        room = SECONDS / max(each, 1e-6)
        least = min(self._wanted, _STEPS) if room > _STEPS else 1
        return max(least, min(self._wanted, int(room / 8))), 4 if room > 40 else 1

    def _seconds(self, steps: int) -> float:
        """Return the processor time in seconds for which B trains with this number of batches."""
        variant, began = self._make_training(steps, 1, others=False), time.process_time()
        self._train(variant, [2])
        return time.process_time() - began

    def _make_training(self, steps: int, many: int, *, others: bool) -> LocalTraining:
        """Return the training of clients with these numbers of batches. `others` replaces the A's samples by others,
        equal for all A's, with one batch short.
        """
        inputs = self._base.inputs
        order = np.argsort(inputs.flatten(1).double().norm(dim=1).cpu().numpy(), kind="stable")
        small, middle = order[: 1 + len(order) // 3], order[len(order) // 3 :]
        full = (steps + 1) * self._batch
        a = np.resize(order[-1:] if others else small, full - self._short if others else full)
        sizes = full, steps * self._batch, 2 * self._batch - self._short, full + self._batch
        c, b, p, d = (np.resize(middle, size) for size in sizes)
        return replace(self._base, partition=partition_of_lists([c, *[a] * many, b, p, d]))

    def _last_updates(self, variant: LocalTraining, clients: list[int], calls: int) -> Tensor:
        """Return the last updates of as many calls as a round makes, or as fit into `SECONDS`."""
        began, left = time.process_time(), self._cohort * self._wanted
        while True:
            moves, left = self._train(variant, clients), left - calls
            if left <= 0 or time.process_time() - began > SECONDS:
                return moves

    def _train(self, variant: LocalTraining, clients: list[int], changed: Collection[_Generator] = ()) -> Tensor:
        """Return updates [c, n], with other seeds of the global generators if `changed`."""
        _seed_generators({name: 2 if name in changed else 1 for name in _NAMES})
        before = _global_states()
        moves = variant.train(self._broadcast, np.array(clients), number=0, seeds=_SEEDS)
        self._drawn |= {name: None for name, state in _global_states().items() if state != before[name]}
        return moves

    def _same_bits(self, first: Tensor, second: Tensor) -> bool:
        if first.device.type == "cpu":
            return torch.equal(first.view(torch.int32), second.view(torch.int32))
        return bool((first - second).norm() <= _ROUNDING * first.norm())


def _is_near(first: Tensor, second: Tensor) -> bool:
    """Return True if the rows differ by padding's rounding at most, or an update is not finite."""
    return not bool((first - second).norm() > _PADDING * first.norm())


def _sample_count(number: int) -> str:
    return "1 sample" if number == 1 else f"{number} samples"


def _same_tensor(first: Tensor, second: Tensor | None) -> bool:
    """Return True if two tensors have equal type, shape and numbers; two NaNs are equal."""
    if second is None or first.shape != second.shape or first.dtype != second.dtype:
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


def _first_names(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


def _state_location(moved: StateChanges) -> str:
    outside = [name for name in moved.names if name.startswith(OUTSIDE)]
    return f"through {_first_names(outside)}" if outside else "through something outside of the network and the loss"


def _global_states() -> dict[_Generator, object]:
    """Return the states of the global generators, for torch that of the CPU."""
    numbers = pickle.dumps(np.random.get_state())  # noqa: NPY002  # a user's code may draw from it
    return {"torch": torch.get_rng_state().numpy().tobytes(), "numpy": numbers, "random": random.getstate()}


def _seed_generators(seeds: Mapping[_Generator, int]) -> None:
    torch.manual_seed(seeds["torch"])
    np.random.seed(seeds["numpy"])  # noqa: NPY002
    random.seed(seeds["random"])


@contextmanager
def _global_generators(device: torch.device) -> Iterator[None]:
    """Context that restores the global random generators at its end."""
    numpys, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            np.random.set_state(numpys)  # noqa: NPY002
            random.setstate(pythons)
