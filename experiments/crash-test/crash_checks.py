"""Checks of a run folder after every kill, and at the end."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from accounting.errors import LedgerError
from accounting.ledger import Ledger
from accounting.ledger.project import ProjectLedger
from dpfed.runs.protection import SUM_MAY_BE_SEEN


class Violation(Exception):
    """Error whose text states a broken promise."""


@dataclass(kw_only=True)
class History:
    """Observations of a run over all its kills: states of rounds by fingerprint, and their noise."""

    states: dict[int, set[str]] = field(default_factory=dict)
    noise: dict[str, str] = field(default_factory=dict)


def check_after_kill(folder: Path, project: Path | None, history: History) -> None:
    """Check that every release is charged in the ledgers of run and project, and noise is never reused for other data.

    Lines cut off by a crash are ignored."""
    charges = charges_of(folder / "ledger.jsonl", project)
    saved = checkpoint_of(folder)
    rounds_done = saved.round if saved else 0
    told = {line["round"] for name in ("metrics", "diagnostics", "canaries") for line in lines(folder, name)}
    for shown in [*range(1, rounds_done + 1), *sorted(told)]:
        if not charges[shown - 1]:
            raise Violation(f"round {shown} can be seen and has no charge in ledger.jsonl")
    if project is not None:
        _check_project(folder, project, charges)
    if saved is not None:
        _check_published(saved, charges, history)


def check_repeated(folder: Path, reference: Path) -> None:
    """Check that the run equals an uninterrupted run: cohorts, noise, weights, ledger, and all output."""
    for name in ("model.safetensors", "model.mask.safetensors"):
        if _tensors(folder / name) != _tensors(reference / name):
            raise Violation(f"{name} is not that of the run that was never killed")
    if checkpoint_of(folder) != checkpoint_of(reference):
        raise Violation("the last state is not that of the run that was never killed")
    ours, theirs = (Ledger.read(one / "ledger.jsonl") for one in (folder, reference))
    if [one.to_dict() for one in ours.entries] != [one.to_dict() for one in theirs.entries]:
        raise Violation("ledger.jsonl is not that of the run that was never killed")
    for name in ("metrics", "diagnostics", "canaries"):
        if [_timeless(one) for one in lines(folder, name)] != [_timeless(one) for one in lines(reference, name)]:
            raise Violation(f"{name}.jsonl is not that of the run that was never killed")
    if summary_of(folder) != summary_of(reference):
        raise Violation("summary.json is not that of the run that was never killed")


def check_charged_again(folder: Path, rounds: int, *, once: bool = False) -> None:
    """Check that all rounds ran, each charged once per draw of noise, and that the summary counts interrupted charges.

    once: True for rounds of a schedule, in which an interrupted round is charged and skipped."""
    ledger, summary = Ledger.read(folder / "ledger.jsonl"), summary_of(folder)
    charges = Counter(entry.round for entry in ledger.releases)
    if sorted(charges) != list(range(rounds)) or summary["rounds"] != rounds:
        raise Violation(f"rounds {sorted(charges)} were charged and {summary['rounds']} done, of {rounds}")
    if once and max(charges.values()) > 1:
        raise Violation(f"rounds of a schedule were charged more than once: {dict(charges)}")
    if summary["interrupted_charges"] != sum(charges.values()) - rounds and summary["project_ledger"] is None:
        raise Violation(f"{summary['interrupted_charges']} charges are said to be in vain, of {dict(charges)}")
    if summary["epsilon"] != ledger.guarantee(summary["delta"], accountant=summary["accountant"]).epsilon:
        raise Violation("the summary's epsilon is not that of the ledger")
    for name in ("metrics", "diagnostics"):
        if [one["round"] for one in lines(folder, name)] != list(range(1, rounds + 1)):
            raise Violation(f"{name}.jsonl does not have every round once")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Fingerprints of a checkpoint."""

    round: int
    state: str
    noise: str | None


def checkpoint_of(folder: Path) -> Saved | None:
    """Return the checkpoint, or None if there is none; Violation if it cannot be read, so that no run could resume."""
    path = folder / "checkpoint.safetensors"
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            facts = file.metadata()
            found = hashlib.sha256(facts["clip_norm"].encode())
            for name in sorted(file.keys()):
                found.update(name.encode() + file.get_tensor(name).tobytes())
    except (SafetensorError, OSError) as error:
        raise Violation(f"the checkpoint is lost ({error})") from None
    told = json.loads(facts["told"])["diagnostics"]
    noise = told["noise"]["digest"] if told["noise"] else None
    return Saved(round=int(facts["round"]), state=found.hexdigest(), noise=noise)


def charges_of(ledger: Path, project: Path | None) -> Counter[int]:
    """Return the completely written lines by round, including aborted rounds, but not notes on repeated ones.

    A line with a nonce counts only if the project has this nonce; otherwise nothing was released."""
    paid = {one.get("nonce") for one in _whole_lines(project)} if project is not None else set()
    own = [one for one in _whole_lines(ledger) if one.get("reason") != SUM_MAY_BE_SEEN]
    return Counter(one["round"] for one in own if "nonce" not in one or one["nonce"] in paid)


def _whole_lines(ledger: Path) -> list[dict[str, Any]]:
    """Return the completely written lines after the header."""
    *whole, _ = ledger.read_bytes().split(b"\n") if ledger.exists() else [b""]
    return [json.loads(line) for line in whole[1:]]


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the completely written lines of a JSON-lines file of the folder."""
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def summary_of(folder: Path) -> dict[str, Any]:
    """Return summary.json without values that depend on time or on other runs of the project."""
    return _timeless(json.loads((folder / "summary.json").read_text()))


def _check_project(folder: Path, project: Path, charges: Counter[int]) -> None:
    first = (folder / "ledger.jsonl").read_bytes().split(b"\n") if (folder / "ledger.jsonl").exists() else []
    if len(first) < 2:
        return
    run = json.loads(first[0])["about"]["run"]
    try:
        opened = ProjectLedger.open(project)
    except LedgerError as error:
        raise Violation(f"no run can go on with the project ({error})") from None
    there = Counter(one.round for one in opened.ledger.releases if one.detail["run"] == run)
    if charges - there:
        raise Violation(f"rounds {sorted(charges - there)} are charged to the run and not to its project")
    if opened.spent().epsilon > opened.terms.epsilon:
        raise Violation("the project is overspent")


def _check_published(saved: Saved, charges: Counter[int], history: History) -> None:
    states = history.states.setdefault(saved.round, set())
    states.add(saved.state)
    if len(states) > charges[saved.round - 1]:
        raise Violation(f"{len(states)} results of round {saved.round} were seen, {charges[saved.round - 1]} charged")
    if saved.noise is not None and history.noise.setdefault(saved.noise, saved.state) != saved.state:
        raise Violation(f"the noise of round {saved.round} has been seen with different data")


def _timeless(record: Mapping[str, Any]) -> dict[str, Any]:
    # The metadata of a mask file have no fixed order, so its hash differs between processes.
    apart = ("seconds", "project_epsilon", "project_ledger", "mask_sha256") if "method" in record else ("seconds",)
    if (
        record.get("project_ledger") is not None
    ):  # depends on the run's name and the project's key, which are drawn anew
        apart += ("population", "ledger_head", "project_head")
    return {name: value for name, value in record.items() if name not in apart} | (
        {"project_ledger": None if record["project_ledger"] is None else "..."} if "method" in record else {}
    )


def _tensors(path: Path) -> object:
    """Return metadata and tensors of a safetensors file, whose header has no fixed order."""
    if not path.exists():
        return None
    with safe_open(path, framework="np") as file:
        return file.metadata(), {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
