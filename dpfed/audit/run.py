"""Audit of a finished run: a comparison of its files with its privacy claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from accounting import require
from accounting.errors import AccountingError
from accounting.rounding import upwards
from dpfed.audit.evidence import canary_test, conformance, noise_evidence
from dpfed.audit.evidence.canary_test import CanaryResult
from dpfed.audit.evidence.loop import LoopFiles, ledger_of_loop
from dpfed.audit.evidence.rounds_evidence import require_own_code
from dpfed.audit.evidence.run_checks import STATISTICAL, checks_of_loop, checks_of_run
from dpfed.audit.evidence.run_files import RunFiles, value_or
from dpfed.audit.evidence.summary_evidence import unchecked_keys
from dpfed.audit.verdict import Check, Verdict, check, names_of_failed_checks, verdict
from dpfed.config.own_code import load_own_code
from dpfed.errors import ConfigError, DpfedError
from dpfed.records.reading import InvalidRecord, Unavailable
from dpfed.records.round import replay_text


@dataclass(frozen=True, kw_only=True, eq=False)
class RunEvidence:
    """Files of an audited run and the scores of its canaries."""

    files: RunFiles
    confidence: float
    canaries: CanaryResult | None = None

    @property
    def alpha(self) -> float:
        """Error probability of each statistical check."""
        return (1 - self.confidence) / STATISTICAL


def audit_run(path: Path, *, confidence: float = 0.95, project: Path | None = None, compare: bool = False) -> Verdict:
    """Audit the folder of a run, or the ledger (or its folder) of a `dpfed.ClientLevel`.

    `evidence.run_checks` lists the checks. project: the project ledger that the run was charged to; each release of the
    run is compared with it. compare: True to compare epsilon with that of dp-accounting, which is loaded for it; the
    verdict does not depend on it.
    Claim: the files of a correct run are called "fail" with probability at most 1 - confidence, over the run's
    randomness. The converse does not hold: "pass" says that no file contradicts the claim, and files can be forged (the
    ledger's hashes have no key). Errors: ConfigError if `path` has no run, or a run without a privacy claim.
    """
    alpha = (1 - require.open_probability(confidence=confidence)) / STATISTICAL
    load_own_code()
    loop = ledger_of_loop(path)
    if loop is not None and project is not None:
        raise ConfigError(f"--project {project}: a dpfed.ClientLevel is not charged to a project. Leave --project out.")
    if loop is not None:
        at = LoopFiles(loop)
        table, planned = at.config.privacy, value_or(None, lambda: at.guarantee.epsilon)
        planned = planned if table is None or table.epsilon is None else table.epsilon
        checks, notes = checks_of_loop(at, alpha), _limitations_of_loop(at)
        return _run_verdict(RunEvidence(files=at, confidence=confidence), planned, checks, notes, (), compare)
    files = RunFiles(path if path.is_dir() or not path.exists() else path.parent)
    require_own_code(files)
    _require_claim(files)
    checks, canaries = checks_of_run(files, alpha, project), None
    if files.has_canaries:
        found, canaries = _canary_check(files, alpha)
        checks.append(found)
    return _run_verdict(
        RunEvidence(files=files, confidence=confidence, canaries=canaries),
        value_or(None, lambda: files.epsilon),
        checks,
        _limitations_of_run(files, project),
        unchecked_keys(files),
        compare,
    )


def _run_verdict(
    evidence: RunEvidence,
    claimed: float | None,
    checks: Sequence[Check],
    notes: tuple[str, ...],
    not_checked: tuple[str, ...],
    compare: bool,
) -> Verdict:
    """Return the verdict of the checks of a run.

    claimed:     epsilon that the run states
    notes:       limitations of a pass
    not_checked: keys of summary.json that no check compared with other files
    compare:     True to compare epsilon with dp-accounting's
    """
    files, canaries, table = evidence.files, evidence.canaries, evidence.files.private_table
    planned = files.config.privacy
    recomputed, delta = value_or(None, lambda: files.guarantee.epsilon), value_or(None, lambda: files.delta)
    opinion, remarks = _second_opinion(files) if compare else (None, ())
    return Verdict(
        audited=str(files.path),
        verdict=verdict(checks),
        text=_reasons(checks, claimed, recomputed, delta),
        scope="on these files",
        claimed_epsilon=claimed,
        delta=delta,
        adjacency=value_or(planned.adjacency if planned else None, lambda: files.summary.adjacency),
        unit=None if table is None else "client" if planned is not None else "record",
        lower_bound=canaries.lower_bound if canaries else None,
        checks=tuple(checks),
        not_tested=(*notes, *remarks),
        details={
            "recomputed_epsilon": recomputed,
            "ledger_head": value_or(None, lambda: files.trusted_ledger.head),
            "second_opinion": opinion,
            "confidence": evidence.confidence,
            "method": "conformance" if canaries is None else "conformance; canaries, of one round without sampling",
            "trials": len(canaries.scores) if canaries else 0,
            "score_gap": canaries.score_gap if canaries else None,
            "canaries": canaries.to_dict() if canaries else None,
            "notes": (*notes, *remarks),
            "not_checked": not_checked,
        },
        evidence=evidence,
    )


def _second_opinion(files: RunFiles) -> tuple[float | None, tuple[str, ...]]:
    """Return (epsilon, remarks) of dp-accounting for the run's ledger.

    The remarks compare that epsilon with the recomputed one and with the proven lower bound; if there is no such
    epsilon, they say why.
    """
    try:
        opinion = files.second_opinion
        if opinion is None:
            return None, ("no second opinion: nothing was released",)
        least = conformance.least_epsilon(files, opinion.delta)
        return opinion.epsilon, opinion.remarks(epsilon=files.spent_guarantee.epsilon, lower_bound=least)
    except (DpfedError, AccountingError) as reason:
        return None, (f"no second opinion: {reason}",)


def _reasons(checks: Sequence[Check], *epsilons_and_delta: float | None) -> str:
    """Return the verdict's reasons. epsilons_and_delta: epsilon claimed and recomputed, and delta."""
    failed = names_of_failed_checks(checks)
    open_checks = [one.name for one in checks if one.passed is None and one.decides]
    reason = f"Checks that failed: {failed}. " if failed else ""
    reason += f"Could not tell: {'; '.join(open_checks)}. " if open_checks and not failed else ""
    stated, again, delta = ("unknown" if value is None else upwards(value) for value in epsilons_and_delta)
    return f"{reason}Claimed epsilon {stated}, from the ledger alone {again}, at delta {delta}."


def _canary_check(files: RunFiles, alpha: float) -> tuple[Check, CanaryResult | None]:
    name = "canaries agree with one round's claim"
    try:
        result = canary_test.canary_result(files, alpha=alpha)
    except (DpfedError, AccountingError) as reason:
        return Check(name=name, passed=None, detail=f"could not be made: {reason}", decides=False), None
    found = check(name, partial(canary_test.canaries_agree_with_claim, result))
    return replace(found, decides=False, would_find=result.power.as_text()), result


def _require_claim(files: RunFiles) -> None:
    private = files.config.privacy is not None or files.config.local.record is not None
    if private or (files.path / "ledger.jsonl").exists() or _states_epsilon(files):
        return
    raise ConfigError(
        f"{files.path}: this run is not private and states no epsilon, so there is no claim to audit. Audit a run with "
        "[privacy] or [local.record]."
    )


def _states_epsilon(files: RunFiles) -> bool:
    """Return True if summary.json states an epsilon, or cannot be read because it has values that no run writes."""
    try:
        return files.summary.epsilon is not None
    except InvalidRecord:
        return True
    except Unavailable:
        return False


def _limitations_of_run(files: RunFiles, project: Path | None) -> tuple[str, ...]:
    """Return the limitations of a pass of a run."""
    notes = [
        *value_or((), lambda: files.guarantee.notes),
        "The run wrote these files itself: their hashes find accidents and careless edits, not a forger who writes "
        "all files anew.",
    ]
    if files.config.privacy is not None:
        loads = "".join(f" --load {one.path}" for one in files.own_code)
        notes.append(
            "Not tested here: whether a stage of the method mixes clients' rows, or keeps a state from one client or "
            f"round to the next. `dpfed audit {files.config.method.name}{loads}` and a replay test both; "
            f"{replay_text(files.path, files.tables)}."
        )
    if project is None and value_or(False, lambda: "run" in files.ledger.header.about):
        notes.append("The run was charged to a project, whose ledger was not compared: give it by --project LEDGER.")
    if files.config.run.randomness == "simulated":
        notes.append("Noise and cohorts come from the seed (run.randomness = 'simulated'): not for release.")
    if files.config.local.record is not None:
        notes.append("Bounds and noise of local steps happen inside the clients and leave no trace in these files.")
        return tuple(notes)
    if value_or(False, lambda: any(noise_evidence.charged_noise(one) is None for one in files.releases.values())):
        notes.append("Bernoulli samples leave no trace in these files: `dpfed audit METHOD` tests their distribution.")
    if not files.config.audit.canaries:
        notes.append(
            "The run had no canaries ([audit] canaries = k), so its output was not tested: `dpfed audit METHOD` "
            "tests the code path of a round."
        )
    else:
        notes.append(
            "lower_bound is for one round without its sampling, not for the run: compare it with round_epsilon, not "
            "with claimed_epsilon."
        )
    return tuple(notes)


def _limitations_of_loop(files: LoopFiles) -> tuple[str, ...]:
    """Return the limitations of a pass of a user's loop."""
    notes = [
        *value_or((), lambda: files.guarantee.notes),
        "The loop wrote these files itself: their hashes find accidents and careless edits, not a forger who writes "
        "all files anew.",
        "Other uses of clients' data in the loop leave no trace here: epsilon covers the calls of release() only, and "
        "only if the decision to skip a round did not depend on the drawn clients.",
        "Not tested here: whether the loop or a stage of yours mixes clients' rows, or keeps a state from one client "
        "or round to the next. `dpfed audit FILE.py` tests a function of yours with @audit.claim.",
    ]
    if files.config.run.randomness == "simulated":
        notes.append("Noise and cohorts come from the seed (randomness='simulated'): not for release.")
    if files.own_stages:
        notes.append(
            "The chain of stages is user-defined: these files do not show the norm bound that its rows satisfy."
        )
    return tuple(notes)
