"""Planted faults that the checks must find; each function changes the package in its process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from crash_points import How

from accounting.ledger import Ledger, backups
from accounting.ledger.hash_chain import chained_line
from dpfed.randomness import Simulated
from dpfed.runs import durable_files
from dpfed.runs.book import LedgerBook
from dpfed.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Fault planted in runs of `case` that are killed in the ways `hows`. `unsynced`: the file without fsync."""

    case: str
    hows: tuple[How, ...] = ("before",)
    plant: Callable[[], None] = lambda: None
    unsynced: str | None = None


def charge_after(step: str) -> Callable[[], None]:
    """Delay charges until this step of the run folder."""

    def plant() -> None:
        record, done, waiting = LedgerBook.record, getattr(RunFolder, step), []

        def after(self: RunFolder, *what: Any) -> None:
            done(self, *what)
            while waiting:
                record(*waiting.pop(0))

        LedgerBook.record = lambda self, entry: waiting.append((self, entry))  # type: ignore[method-assign]
        setattr(RunFolder, step, after)

    return plant


def project_after_ledger() -> None:
    record = LedgerBook.record

    def late(self: LedgerBook, entry: Any) -> None:
        project, self.project = self.project, None
        record(self, entry)
        self.project = project
        if project is not None:
            population = self.ledger.header.population
            project.charge(entry, run=self.run, population=population, repeatable=True)

    LedgerBook.record = late  # type: ignore[method-assign]


def head_before_line() -> None:
    """Write PATH.head before the line that it names."""
    record = Ledger.record

    def early(self: Ledger, entry: Any) -> None:
        if "head_kept" in self.header.about:
            backups.write_head(self.path, chained_line(entry.to_dict(), self.head)[1])
        record(self, entry)

    Ledger.record = early  # type: ignore[method-assign]


def noise_of_the_process() -> None:
    """Make simulated noise depend on the round in which the process started."""
    real, first = Simulated.normal, []

    def normal(self: Simulated, count: int, purpose: str, *path: int, device: str = "cpu") -> torch.Tensor:
        first.append(path[0])
        return real(self, count, purpose, *path, *first[:1] * (first[0] > 0), device=device)

    Simulated.normal = normal  # type: ignore[method-assign]


def noise_from_the_start() -> None:
    """Count rounds from the start of the process in the name of the noise."""
    real, first = Simulated.normal, []

    def normal(self: Simulated, count: int, purpose: str, *path: int, device: str = "cpu") -> torch.Tensor:
        first.append(path[0])
        return real(self, count, purpose, path[0] - first[0], *path[1:], device=device)

    Simulated.normal = normal  # type: ignore[method-assign]


def clients_forget() -> None:
    load = RunFolder.load_checkpoint

    def without(self: RunFolder, start: Any) -> Any:
        saved = load(self, start)
        return replace(saved, state=replace(saved.state, stages={}))

    RunFolder.load_checkpoint = without  # type: ignore[method-assign]


def written_in_place() -> None:
    def put(path: Path, content: bytes) -> None:
        path.unlink(missing_ok=True)
        durable_files.append(path, content)

    durable_files.put = put


def lines_only_once() -> None:
    """Do not repeat lines that a crash kept out of metrics.jsonl after a resumption."""
    load = RunFolder.load_checkpoint

    def silent(self: RunFolder, start: Any) -> Any:
        saved = load(self, start)
        object.__setattr__(saved, "report", None)
        return saved

    RunFolder.load_checkpoint = silent  # type: ignore[method-assign]


FAULTS = {
    "checkpoint before the charge": Fault(case="fedpm", plant=charge_after("save_checkpoint")),
    "metrics before the charge": Fault(case="fedpm", plant=charge_after("append")),
    "the run's ledger before the project's": Fault(case="project", plant=project_after_ledger),
    "the head of the project before its line": Fault(case="project", plant=head_before_line),
    "no fsync of the ledger": Fault(case="fedpm", hows=("cut",), unsynced="ledger.jsonl"),
    "no fsync of the project's ledger": Fault(case="project", hows=("cut",), unsynced="project.jsonl"),
    "no fsync of the checkpoint": Fault(case="fedpm", hows=("cut",), unsynced="checkpoint.safetensors.part"),
    "checkpoint written in place": Fault(case="fedpm", hows=("torn",), plant=written_in_place),
    "another noise after a resume": Fault(case="adaptive-canaries", plant=noise_of_the_process),
    "the first noise again after a resume": Fault(case="adaptive-canaries", plant=noise_from_the_start),
    "clients forget what they kept": Fault(case="error-feedback", plant=clients_forget),
    "lines of a killed round are lost": Fault(case="fedpm", plant=lines_only_once),
}
