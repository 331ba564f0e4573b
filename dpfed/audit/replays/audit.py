"""Replay audit (`dpfed.audit.replay`): record a run on data D and compare runs on neighbouring data D' with it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import multiprocessing
import os
import pickle
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accounting.disk_cache import VARIABLE
from dpfed import replayed
from dpfed.audit.replays import adapters, flower_rounds
from dpfed.audit.replays.adapters import install_hooks
from dpfed.audit.replays.draws import Draws, existing_generators
from dpfed.audit.replays.findings import Difference, RunFindings, traceback_of_call
from dpfed.audit.replays.pairs import (
    NOT_FINITE,
    REMOVED,
    REPORTING,
    SAME,
    SAME_PAIR,
    SIZES,
    Pair,
    default_pairs_of_run,
    have_samples,
)
from dpfed.audit.replays.replay_run import Recording, ReplayRun, RunStopped, seed_global_generators
from dpfed.audit.replays.verdict import PairResult, ReplayFindings, Scope, result_of
from dpfed.audit.verdict import Verdict
from dpfed.errors import ConfigError, DataError, DpfedError
from dpfed.forks import Fork

Call = Callable[["Neighbour", Path], object]

_OF_TRAINING = ("update of local training", "clipped gradient in step")
"""Prefixes of the names of values that local training computes."""


@dataclass(frozen=True)
class Neighbour:
    """First argument of the audited `call`: `data(clients)` returns the clients of this run of the audit.

    reporting: True if the call should evaluate and track its run as much as possible
    """

    pair: Pair | None

    def __call__(self, clients: object) -> Any:
        """Return the clients (a sequence, a mapping, a dpfed Dataset) of this run, with those of the pair changed."""
        world = replayed.current_replay()
        if isinstance(world, ReplayRun) and hasattr(clients, "__len__") and not hasattr(clients, "train_inputs"):
            world.seen.units = len(clients)
            world.seen.rows += 0 if self.pair is None else len(self.pair.clients)
            if world.first:
                world.recording.units = len(clients)
                world.seen.has_sizes = have_samples(clients)
        return clients if self.pair is None else self.pair.changed(clients)

    def coins(self, clients: Any, rate: float) -> NDArray[np.bool_]:
        """Return independent draws of the clients with probability `rate`, equal in both runs for each client.

        clients: the clients that `data(...)` has returned, or their number
        """
        count = clients if isinstance(clients, int) else len(clients)
        world = replayed.current_replay()
        if not isinstance(world, ReplayRun):
            return np.random.default_rng().random(count) < rate
        return world.coins(count, rate)

    @property
    def reporting(self) -> bool:
        return self.pair is not None and self.pair.change == REPORTING


def replay(
    call: Call,
    pairs: Sequence[Pair] | int | None = None,
    seed: int = 0,
    *,
    rounds: int | None = None,
    last: int | None = None,
    n_is_public: bool = False,
    records_public: bool = False,
    to_the_end: bool = False,
    name: str = "",
    progress: Callable[[str], None] = lambda words: None,
) -> Verdict:
    """Run `call` on data D and again on neighbours D', with all mechanisms' outputs frozen, and compare the rest.

    call:   function call(data, out) that trains anything. `data(clients)` returns the clients of the run: unchanged in
            the first run, and with the pair's clients changed in all others. A `dpfed.run` needs no `data`: the audit
            changes its data. `out` is an empty folder; the public files in it are compared
    pairs:  pairs to try; a number n for the first n default pairs; None for all of them, about twenty. Default pairs
            change the values, targets and numbers of samples of a random half of the participants, then of the other
            half, and of single clients; they remove clients, and set values to NaN. For private records they change
            single records
    seed:   seed of the default pairs, and of the global generators at the start of every run
    rounds: rounds of dpfed after which a run ends; None for all rounds
    last:   rounds of `dpfed.run` that are replayed at its end, after rounds without clients; None for all rounds
    n_is_public, records_public: True if the number of clients, or of records, is public. Default pairs then remove none
            of them, and the verdict names the neighbours that were tested. Sizes of clients are never public
    to_the_end: True to try all pairs even after a pair has failed

    Claim: the verdict is "fail" only if, for the printed pair, a value outside all mechanisms depends on the changed
    clients, a row exceeds its bound, the input of a mechanism moves by more than its declared sensitivity, or the code
    is not repeatable. A pass is a test of the pairs and the code that they reached, and no proof.
    Source: Annamalai et al., arXiv 2602.17454. Every run is a process forked from this one, so that state in modules,
    closures and generators is equal at the start of all runs.
    Adjacency: add-remove, zero-out or replace-one, according to the change of the pair. Direction of error: faults may
    be missed.
    Errors: ConfigError for no pairs. DpfedError if the first run fails or reaches no mechanism.

    >>> import numpy as np, dpfed.audit
    >>> def call(data, out):
    ...     total = sum(np.clip(one, -1, 1) for one in data([np.ones(1), np.zeros(1)]))
    ...     dpfed.audit.mechanism(lambda x: x + np.random.normal(size=1), sensitivity=1.0)(total)
    >>> dpfed.audit.replay(call, pairs=[dpfed.audit.Pair((0,), "far")]).verdict
    'pass'
    """
    given = isinstance(pairs, Sequence) and pairs and all(isinstance(one, Pair) for one in pairs)
    if pairs is not None and not (pairs >= 1 if isinstance(pairs, int) else given):
        raise ConfigError(f"pairs={pairs!r}: nothing would be tested. Give pairs, a number from 1, or None for all.")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dpfed-replay-") as folder:
        runs = _AuditRuns(call=call, seed=seed, last_round=rounds, last=last, folder=Path(folder))
        progress("the first run")
        first = runs.record(loop=False)
        _import_modules(first.modules)
        if first.error:
            raise DpfedError(f"the first run of the replay audit fails:\n{first.error}")
        if not first.mechanisms:
            raise DpfedError(
                "the first run reached no mechanism: it has no private release, and every value may depend on every "
                "client. Add [privacy] or [local.record], or mark the code that adds noise by dpfed.audit.mechanism."
            )
        public = records_public if first.units_are_records or first.of_records else n_is_public
        removal = not public and not first.declared_replacement
        chosen = list(pairs) if isinstance(pairs, Sequence) else default_pairs_of_run(first, seed, removal=removal)
        results = [result_of(SAME_PAIR, first)] if first.differences else []
        for pair in chosen[: pairs if isinstance(pairs, int) else None]:
            failed = results[-1] if results and results[-1].outcome == "fail" else None
            if failed is not None and (failed.pair.change == SAME or not to_the_end):
                break
            progress(pair.words)
            results.append(runs.with_explanation(runs.compare(pair)))
    seconds = time.monotonic() - began
    return ReplayFindings(
        pairs=tuple(results),
        seed=seed,
        name=name,
        seconds=seconds,
        first_megabytes=first.megabytes,
        scope=Scope.of(first, number_is_public=public, limited=pairs is not None),
        skipped_files=tuple(sorted({file for one in results for file in one.findings.skipped_files})),
    ).as_verdict()


@dataclass(frozen=True, kw_only=True)
class _AuditRuns:
    """Runs of one replay audit, each in a separate process.

    last_round: rounds after which a run ends; None for all. last: rounds with clients, at the end; None for all.
    folder: temporary folder of the recordings.
    existing: random generators that exist before the first run.
    compares_modules: True to compare the modules of the network, too.
    """

    call: Call
    seed: int
    last_round: int | None
    folder: Path
    last: int | None = None
    existing: list[Any] = field(default_factory=existing_generators)
    compares_modules: bool = False

    def record(self, *, loop: bool) -> RunFindings:
        """Make the first run and record it. loop: True to train clients one by one."""
        at = self._recording(loop)
        at.mkdir()
        return self._run_in_process(None, at, loop=loop)

    def compare(self, pair: Pair) -> PairResult:
        """Make the second run of a pair; if needed, first record a first run with the pair's form of local training."""
        loop = pair.changes_sizes
        if not self._recording(loop).exists():
            failed = self.record(loop=loop).error
            if failed:
                return result_of(pair, RunFindings(error=failed, refused=True))
        return result_of(pair, self._run_in_process(pair, self._recording(loop), loop=loop))

    def with_explanation(self, result: PairResult) -> PairResult:
        """Return the result with the network module in which the first difference arises, found by two more runs.

        Only differences of local training are explained; all other results are returned unchanged.
        """
        first = result.first_difference
        if first is None or first.round is None or not first.value.startswith(_OF_TRAINING):
            return result
        from dpfed.audit.replays.modules import place_in_network

        folder = self.folder / f"explained-{len(list(self.folder.glob('explained-*')))}"
        folder.mkdir()
        again = replace(self, last_round=first.round, folder=folder, compares_modules=True).compare(result.pair)
        for other in again.findings.differences:
            if made := place_in_network(other.value):
                explained = [replace(first, made_by=made), *result.findings.differences[1:]]
                return replace(result, findings=replace(result.findings, differences=explained))
        return result

    def _recording(self, loop: bool) -> Path:
        return self.folder / ("in-a-loop" if loop else "first")

    def _run_in_process(self, pair: Pair | None, at: Path, *, loop: bool) -> RunFindings:
        """Make one run in a separate process, and return the differences and counts that it found."""
        answer = self.folder / f"answer-{hashlib.sha256(repr((pair, loop)).encode()).hexdigest()[:12]}"
        status = _status_of_process(functools.partial(_run_and_store, self, pair, at, loop, answer))
        if not answer.exists():
            return RunFindings(
                error=f"the process of the run died with status {status}",
                differences=[] if pair is None else [Difference(value="the run", words=_ENDED)],
            )
        seen: RunFindings = pickle.loads(answer.read_bytes())
        return seen


_ENDED = "its process ended in the second run only"
_LIBRARIES = ("accounting", "dpfed", "matplotlib", "numpy", "opacus", "scipy", "sklearn", "torch")


def _import_modules(modules: Sequence[str]) -> None:
    """Import the library modules that the first run has imported, so that processes of later runs start with them."""
    for name in modules:
        if name.partition(".")[0] in _LIBRARIES and name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _status_of_process(call: Callable[[], None]) -> int | None:
    """Call a function in a new process and return its exit status: a fork, or a new interpreter if a GPU is in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        spawned = multiprocessing.get_context("spawn").Process(target=call)
        spawned.start()
        spawned.join()
        return spawned.exitcode
    process = Fork(call)
    try:
        return process.wait()
    except BaseException:  # Ctrl-C
        process.kill()
        raise


def _run_and_store(runs: _AuditRuns, pair: Pair | None, at: Path, loop: bool, answer: Path) -> None:
    """Make one run in this process, and write the differences and counts that it found to `answer`."""
    recording = Recording(at) if pair is None else Recording.load(at)
    began, out = time.monotonic(), Path(tempfile.mkdtemp(dir=runs.folder)) / "run"
    out.mkdir()
    draws = Draws(seed=runs.seed, existing=runs.existing)
    draws.watch()
    world = _new_run(runs, pair, recording, draws, loop=loop)
    if os.environ.get(VARIABLE) == "":  # the user has disabled the cache: the runs of this audit share a temporary one
        os.environ[VARIABLE] = str(runs.folder / "cache")
    replayed.enter_replay(world)
    seen = world.seen
    try:
        with (
            (runs.folder / "output.txt").open("a") as log,  # the output of the code under audit
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
            _seeded_generators(runs.seed, draws),
        ):
            install_hooks(
                world, adapters.HOOKS | flower_rounds.HOOKS | {"torch": lambda _, torch: draws.watch_torch(torch)}
            )
            result = runs.call(Neighbour(pair), out)
        world.round = -1
        world.couple_draws((-2, "end of the run", None, 0))
        if world.change != REPORTING:
            _compare_result(world, "result of the call", result)
        world.round = 1 << 30
        _compare_files(world, out)
    except RunStopped:
        pass
    except Exception as error:  # the code under audit may raise anything
        words = f"{type(error).__name__}: {str(error)[:400]}"
        seen.error = traceback_of_call(error) if pair is None else words
        seen.refused = pair is not None and (isinstance(error, DataError) or _may_be_refused(world, pair))
        if pair is not None and not seen.refused and not seen.differences:
            key = (world.round, "the run", None, 0)
            world.finding(f"raises in the second run only ({words})", key)
    world.take_certain()
    if pair is None:
        world.recording.save()
        seen.modules = tuple(sys.modules)
        if not seen.fixed_size and draws.permuted[recording.units] and recording.units > 1:
            seen.fixed_size = "batches are of fixed size"
    seen.seconds = time.monotonic() - began
    seen.megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    answer.with_suffix(".new").write_bytes(pickle.dumps(seen))
    answer.with_suffix(".new").rename(answer)


def _may_be_refused(world: ReplayRun, pair: Pair) -> bool:
    """Return True if code without rounds of dpfed may refuse the change: other numbers, or NaN and huge values."""
    changes = (*SIZES, REMOVED, *NOT_FINITE)
    return pair.change in changes and world.round < 0 and not world.seen.of_dataset


def _new_run(runs: _AuditRuns, pair: Pair | None, recording: Recording, draws: Draws, *, loop: bool) -> ReplayRun:
    """Return a run that compares rounds of dpfed if torch is installed, else one that compares marked values only."""
    try:
        from dpfed.audit.replays.rounds import ReplayRunOfRounds
    except ImportError:
        return ReplayRun(pair, recording, draws)  # type: ignore[abstract]  # nothing of a dpfed.run without torch
    world = ReplayRunOfRounds(pair, recording, draws, loop=loop, most=runs.last_round, last=runs.last)
    if runs.compares_modules:
        from dpfed.audit.replays.modules import ModuleValues

        ModuleValues(world).set_hooks()
    return world


def _compare_result(world: ReplayRun, name: str, value: object) -> None:
    """Compare the result of the call if it is a number, text, array, model, or a collection of these."""
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    parts: Iterable[tuple[object, object]] = ()
    match value:
        case Mapping():
            world.outside(f"{name}, keys", [str(key) for key in value])
            parts = dict(value).items()
        case set() | frozenset():
            parts = enumerate(sorted(map(repr, value)))
        case list() | tuple():
            parts = enumerate(value)
        case int() | float() | str() | bytes() | object(dtype=_):
            world.outside(name, value)
    for key, one in parts:
        _compare_result(world, f"{name}, {key}", one)


def _compare_files(world: ReplayRun, out: Path) -> None:
    from dpfed.audit.replays.findings import public_files

    found = public_files(out, world.run_folders)
    world.seen.skipped_files = found.skipped
    if world.first:
        world.recording.files, world.recording.reports = found.values, found.reports
        return
    if world.change == REPORTING:
        names = [name for name in found.values if name.endswith(".safetensors")]
    elif world.compared_names is not None:
        names = []
    else:
        names = sorted({*found.values, *world.recording.files})
    unwritten = set() if world.writes_reports else world.recording.reports
    for name in [one for one in names if one not in unwritten]:
        one, two = (str(files.get(name, "missing")) for files in (world.recording.files, found.values))
        if one != two:
            at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), 0)
            first, second = (text[max(0, at - 30) : at + 40] for text in (one, two))
            world.finding(f"differs ({first!r} and {second!r})", (-1, f"file {name}", None, 0))
            return
    world.check_missing_values()


@contextlib.contextmanager
def _seeded_generators(seed: int, draws: Draws) -> Iterator[None]:
    """Seed the global generators, and replace the operating system's by a seeded one, so that all runs draw alike.

    The process belongs to one run of the audit, so that no other code is affected.
    """
    seed_global_generators(seed)
    before = os.urandom
    os.urandom = random._urandom = draws.secure_bytes  # type: ignore[attr-defined]
    try:
        yield
    finally:
        os.urandom = random._urandom = before  # type: ignore[attr-defined]
