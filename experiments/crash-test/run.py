"""Kill private runs at every file operation and at random times, resume them, and check their folders.

    python experiments/crash-test/run.py [--random 200] [--cases NAME ...] [--json] [--beside]

With --beside a thread writes the files of a round while the next one trains, as in a run on a GPU.
Exit status 1 if a promise was broken or a planted fault was not found.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # a process with further threads cannot be forked

import torch
from crash_checks import History, Violation, check_after_kill, check_charged_again, check_repeated
from crash_faults import FAULTS, Fault
from crash_points import How, Kill, Points

from accounting.compose import lower_bound
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import schedule_of
from dpfed.config.tables import override, parse
from dpfed.runs import loop as federation
from dpfed.runs.durable_files import FileWriter
from dpfed.runs.experiment import Experiment, build

TABLES = {
    "data": {"name": "digits", "train_samples": 240, "test_samples": 50},
    "model": {"name": "mlp", "hidden": [4]},
    "federation": {"clients": 24, "cohort": 8, "rounds": 3},
    "local": {"learning_rate": 0.3, "epochs": 1, "batch_size": 10},
    "method": {"name": "dp-fedavg"},
    "privacy": {"noise_multiplier": 2.0, "clip_norm": 1.0, "accountant": "rdp"},
}
DISCRETE = ("privacy.noise=discrete-gaussian", "aggregation.steps=1000")
SHARES = (*DISCRETE, "privacy.placement=clients", "federation.sampling=fixed", "privacy.adjacency=zero-out")
COINS = ("method.name=fedpm", "mask.edge=0.1", "server.rule=posterior", "local.learning_rate=0.1")
RECORDS = ("local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0", "local.record.accountant=rdp")
CASES: dict[str, tuple[str, ...]] = {
    "adaptive-canaries": ("privacy.adaptive.quantile=0.5", "audit.canaries=6"),
    "project": ("method.name=fed-smp-randk", "method.keep=0.2", "server.momentum=0.9"),
    "fedpm": (*COINS, "privacy.epsilon=20"),
    "shares": (*SHARES, "aggregation.dropout=0.1"),
    "error-feedback": ("method.name=fedavg-topk", "method.keep=0.1", "method.error_feedback=true", *RECORDS),
    "secure": (*DISCRETE, "run.randomness=secure", "audit.canaries=6"),
    "secure-project": (*SHARES, "run.randomness=secure", "aggregation.kind=masked"),
    "correlated": ("federation.sampling=cyclic", "privacy.buffers=2", "server.momentum=0.9"),
    "secure-schedule": (*DISCRETE, "run.randomness=secure", "federation.sampling=balls-and-bins"),
}
BESIDE = "DPFED_CRASH_TEST_BESIDE"
WAYS: tuple[How, ...] = get_args(How)


@dataclass(kw_only=True)
class Case:
    """Uninterrupted run, with its duration and its operations."""

    name: str
    experiment: Experiment
    reference: Path
    seconds: float
    points: list[tuple[str, str]]
    budget: float

    @property
    def secure(self) -> bool:
        return self.experiment.config.run.randomness == "secure"

    @property
    def of_project(self) -> bool:
        return "project" in self.name


def prepared(name: str, scratch: Path) -> Case:
    tables = {key: dict(value) for key, value in TABLES.items()}
    if name == "fedpm":
        tables["privacy"] = {"accountant": "rdp"}
    if name == "error-feedback":
        del tables["privacy"]
    experiment = build(parse(override(tables, CASES[name]), source=name))
    case = Case(name=name, experiment=experiment, reference=scratch / name, seconds=0, points=[], budget=1000.0)
    federation.run(experiment, scratch / f"{name}-warm")  # children inherit modules and tables that are loaded once
    case.reference.mkdir()
    _project(case, case.reference)
    began = time.monotonic()
    ended = _wait(_child(case, case.reference, None, None))
    case.seconds = time.monotonic() - began
    if ended != 0:
        raise SystemExit((case.reference.parent / f"{name}.log").read_text())
    case.points = [tuple(one) for one in json.loads((scratch / f"{name}.points").read_text())]
    if case.of_project and not case.secure:  # less than a thousandth remains, so that a double charge would be found
        case.budget = ProjectLedger.open(case.reference / "project.jsonl").spent().epsilon * 1.001
    return case


def killed_and_resumed(case: Case, kills: Sequence[Kill | float], scratch: Path, fault: Fault | None = None) -> int:
    """Return the number of kills that hit the run; Violation if a promise was broken."""
    history, met = History(), 0
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        base = Path(place)
        _project(case, base)
        project = base / "project.jsonl" if case.of_project else None
        for kill in [*kills, None]:
            child = _child(case, base, kill if isinstance(kill, Kill) else None, fault)
            if isinstance(kill, float):
                time.sleep(kill * case.seconds)
                os.kill(child, signal.SIGKILL)
            ended = _wait(child)
            if ended == -signal.SIGKILL:
                met += 1
                check_after_kill(base / "run", project, history)
            elif ended != 0:
                log = (scratch / f"{case.name}.log").read_text().splitlines()
                raise Violation(f"the run does not go on: {log[-1] if log else ended}")
            else:
                break
        check_after_kill(base / "run", project, history)
        if case.secure:
            scheduled = schedule_of(case.experiment.privacy_target.mechanism) is not None
            check_charged_again(base / "run", case.experiment.config.federation.rounds, once=scheduled)
        else:
            check_repeated(base / "run", case.reference / "run")
    return met


def every_point(case: Case, ways: Sequence[How]) -> Iterator[Kill]:
    for at, (kind, _) in enumerate(case.points):
        yield from (Kill(at=at, how=how) for how in ways if how != "torn" or kind == "write")


def random_instants(generator: random.Random) -> list[float]:
    """Return one, two or three kills at random times within the duration of a run."""
    return [generator.uniform(0.0, 1.0) for _ in range(generator.choice((1, 1, 2, 3)))]


def broken(tries: Iterator[Callable[[], int]]) -> tuple[int, list[str]]:
    """Return the number of tests in which a kill hit the run, and their findings."""
    count, found = 0, []
    for one in tries:
        try:
            count += one() > 0
        except Violation as violation:
            count += 1
            found.append(str(violation))
    return count, found


def _project(case: Case, base: Path) -> None:
    if case.of_project:
        ProjectLedger.create(base / "project.jsonl", clients=24, epsilon=case.budget, delta=1e-3, reserve=0.0)


def _child(case: Case, base: Path, kill: Kill | None, fault: Fault | None) -> int:
    """Start a process with the run in base/run, which is resumed if it exists."""
    child = os.fork()
    if child:
        return child
    points = Points(base, kill, lambda name: fault is not None and name == fault.unsynced)
    status = 3
    try:
        if fault is not None:
            fault.plant()
        points.install()
        if BESIDE in os.environ:
            federation.FileWriter = lambda **given: FileWriter(beside=True)  # type: ignore[misc, assignment]
        project = ProjectLedger.open(base / "project.jsonl") if case.of_project else None
        resume = (base / "run" / "config.toml").exists()
        federation.run(case.experiment, base / "run", resume=resume, project=project)
        (case.reference.parent / f"{case.name}.points").write_text(json.dumps(points.seen))
        status = 0
    except BaseException:
        (case.reference.parent / f"{case.name}.log").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def _wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=200, help="random instants, over all cases")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--points", nargs="*", choices=CASES, help="cases killed at every operation; default: --cases")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--faults", nargs="*", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--beside", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.beside:
        os.environ[BESIDE] = "1"
    lower_bound.epsilon = functools.cache(lower_bound.epsilon)  # takes a second of a short run; children inherit it
    generator, good = random.Random(options.seed), True
    report: dict[str, dict[str, object]] = {"points": {}, "random": {}, "faults": {}}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        needed = {*options.cases, *(options.points or ()), *(FAULTS[name].case for name in options.faults)}
        cases = {name: prepared(name, scratch) for name in CASES if name in needed}
        for name in options.cases if options.points is None else options.points:
            case = cases[name]
            kills = every_point(case, options.ways)
            count, found = broken(_try(case, [kill], scratch) for kill in kills)
            report["points"][name] = {"operations": len(case.points), "kills": count, "broken": found}
            good &= not found
            _say(f"{name}: {count - len(found)} of {count} kills at {len(case.points)} operations", found)
        for name in options.cases:
            share = len(range(options.cases.index(name), options.random, len(options.cases)))
            count, found = 0, list[str]()
            while count < share:  # a kill may come after the end
                again = (random_instants(generator) for _ in range(share - count))
                made, wrong = broken(_try(cases[name], times, scratch) for times in again)
                count, found = count + made, found + wrong
            report["random"][name] = {"instants": count, "broken": found}
            good &= not found
            _say(f"{name}: {count - len(found)} of {count} runs killed at random instants", found)
        for name in options.faults:
            fault = FAULTS[name]
            tried, first = _first_found(cases[fault.case], fault, scratch)
            report["faults"][name] = {"kills": tried, "found": first}
            good &= first is not None
            _say(f"planted: {name}: " + (f"found by kill {tried}" if first else "NOT FOUND"), [first] if first else [])
    if options.json:
        print(json.dumps(report, indent=2))
    return 0 if good else 1


def _try(case: Case, kills: Sequence[Kill | float], scratch: Path) -> Callable[[], int]:
    return lambda: killed_and_resumed(case, kills, scratch)


def _first_found(case: Case, fault: Fault, scratch: Path) -> tuple[int, str | None]:
    kills = list(every_point(case, fault.hows))
    random.Random(0).shuffle(kills)
    for tried, kill in enumerate(kills, 1):
        try:
            killed_and_resumed(case, [kill], scratch, fault)
        except Violation as violation:
            return tried, str(violation)
    return tried, None


def _say(words: str, details: Sequence[str]) -> None:
    print(words, *(f"\n    {one}" for one in details[:5]), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
