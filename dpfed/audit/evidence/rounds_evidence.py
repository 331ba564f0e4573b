"""Rounds and charges, counted: configuration, ledger, checkpoint, all files of lines and the project must agree."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from accounting.compose import accountant
from accounting.errors import AccountingError, EditedLedger, LedgerError
from accounting.ledger import Aborted, Release
from accounting.ledger.project import ProjectLedger
from accounting.mechanisms import Composed
from accounting.rounding import upwards
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Finding, rounds_text
from dpfed.records.reading import Unavailable
from dpfed.runs.book import project_releases_of

_STREAMED = 1e-3
"""Relative difference of epsilon during a run, which is computed by another order of convolutions."""


def rounds_agree(files: RunFiles) -> Finding:
    """Check that summary, metrics, diagnostics and checkpoint end with the same round.

    A run that ended by "rounds" has all configured rounds; one that ended by "budget" had no room for another; and
    charges without a round are counted.
    """
    done = files.summary.rounds
    counts = {
        "metrics.jsonl": len(files.published),
        "diagnostics.jsonl": len(files.rounds),
        "checkpoint.safetensors": files.checkpoint.round,
    }
    other = [f"{name} has {count}" for name, count in counts.items() if count != done]
    if other:
        return False, f"summary.json states {done} rounds; " + ", ".join(other) + ". Rounds were cut off or added."
    problem = _problem_of_ending(files, done) or _charges(files, done)
    if problem is not None:
        return False, problem
    return True, f"{done} rounds in the summary, both files of lines and the checkpoint; {_reason_unchecked(files)}."


def _problem_of_ending(files: RunFiles, done: int) -> str | None:
    """Return the problem with the run's stated reason of its end, if any."""
    configured, stopped_by = files.config.federation.rounds, files.summary.stopped_by
    if stopped_by == "rounds":
        if done == configured:
            return None
        return f"{done} rounds, config.toml has {configured}, and the run says that it ended with the last of them."
    if stopped_by != "budget":
        return f"summary.json: stopped_by is {stopped_by!r}, no run ends so."
    if done >= configured:
        return f"all {configured} rounds were run; that is no end by budget."
    table = files.private_table
    budget = table.epsilon if table is not None else None
    if files.summary.project_ledger is not None:
        return None
    if budget is None:
        return "the run says that its budget ended it, config.toml has no epsilon."
    if files.config.privacy is None or not files.released:
        return None
    epsilon = _with_one_more(files)
    if epsilon * (1 + _STREAMED) > budget:
        return None
    after, allowed = upwards(epsilon), upwards(budget)
    return f"the run says that its budget ended it, with round {done + 1} epsilon were {after} of {allowed}."


def _with_one_more(files: RunFiles) -> float:
    """Return epsilon with one more round, charged at its largest."""
    privacy_target = files.promise.privacy_target
    mechanisms = [entry.mechanism for entry in files.trusted_ledger.shared_releases]
    mechanisms.append(privacy_target.mechanism_of_round(len(mechanisms)))
    try:
        return accountant.epsilon(
            Composed.of(mechanisms), delta=privacy_target.delta, accountant=privacy_target.accountant
        )
    except AccountingError as error:
        raise Unavailable(f"epsilon with one more round could not be found ({error}).") from None


def _charges(files: RunFiles, done: int) -> str | None:
    """Return charges beyond the last round: of a round that was interrupted before the budget ended the run."""
    beyond = sorted(number for number, entries in files.entries.items() if number > done and not _only_aborted(entries))
    if beyond and files.summary.stopped_by != "budget":
        return f"ledger.jsonl: round {beyond[0]} is charged, the run ended before it. Rounds were cut off."
    charges = Counter(entry.round for entry in files.trusted_ledger.releases)
    extra = sum(charges.values()) - sum(round < done for round in charges)
    stated = files.summary.interrupted_charges
    if stated is None:
        raise Unavailable("summary.json: does not count interrupted charges.")
    if stated < extra or (stated > extra and files.summary.project_ledger is None):
        return f"ledger.jsonl: {extra} charges have no round of their own, summary.json counts {stated}."
    return None


def project_agrees(files: RunFiles, path: Path) -> Finding:
    """Check that the project's ledger has every release of the run's ledger, in an equal line.

    It has no charge of fresh noise that the run's ledger lacks.
    """
    header, own = files.trusted_ledger.header, files.trusted_ledger.releases
    try:
        project = ProjectLedger.open(path)
    except EditedLedger as error:
        return False, str(error)
    except LedgerError as error:
        raise Unavailable(str(error)) from None
    run = header.about.get("run")
    if run is None:
        return False, f"the run's ledger does not say that it draws from a project; {path} cannot cover it."
    if (project.ledger.header.clients, project.population) != (header.clients, header.population):
        return False, f"{path} is for other clients than the run's."
    heads = {"ledger.jsonl": header.about.get("project_head"), "summary.json": files.summary.project_head}
    for name, head in heads.items():
        if not isinstance(head, str) or project.ledger.entries_after(head) is None:
            return False, f"{path} lacks the line that {name} names as its last: lines were cut off, or it is another."
    charged = project_releases_of(str(run), project)
    ours = _contents(one for one in own if isinstance(one, Release))
    theirs = _contents(charged)
    if unpaid := _rounds(ours - theirs):
        return False, f"{path} was not charged as ledger.jsonl says for {rounds_text(unpaid)}."
    repeatable = header.randomness == "simulated"
    if beyond := [one for one in (theirs - ours).elements() if repeatable or "nonce" in json.loads(one)]:
        words = rounds_text(_rounds(beyond))
        return False, f"{path} was charged for {words} besides, which ledger.jsonl lacks: another copy of the run."
    return True, f"{len(own)} releases, each with a line of its own in {path} that says the same."


def _contents(lines: Iterable[Release]) -> Counter[str]:
    """Return lines as text, without what a project adds."""
    found: Counter[str] = Counter()
    for line in lines:
        record = line.to_dict()
        record["detail"] = {
            key: value for key, value in record["detail"].items() if key not in ("run", "population", "charged_as")
        }
        found[json.dumps(record, sort_keys=True)] += 1
    return found


def _rounds(contents: Iterable[str]) -> list[int]:
    """Return rounds of these lines, counted from 1."""
    return sorted({json.loads(one)["round"] + 1 for one in contents})


def _only_aborted(entries: tuple[object, ...]) -> bool:
    return all(isinstance(entry, Aborted) for entry in entries)


def _reason_unchecked(files: RunFiles) -> str:
    if files.summary.stopped_by == "rounds":
        return "they are all that are configured"
    if files.summary.project_ledger is not None:
        return "the project's budget, which is not in these files, may have ended them"
    if files.config.privacy is None:
        return "that no other fits the budget of its clients is not looked at"
    return "no other fits the budget"
