"""The audit of a finished run: do its files bear out what it claims?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from accounting import require
from accounting.errors import AccountingError
from dpfed.audit import canary_test, conformance, noise_evidence, step_evidence, sum_evidence
from dpfed.audit.binding_evidence import files_are_of_one_run
from dpfed.audit.canary_test import CanaryResult
from dpfed.audit.count_evidence import counts_are_noised
from dpfed.audit.loop import checks_of_loop, notes_of_loop
from dpfed.audit.loop_files import LoopFiles, ledger_of
from dpfed.audit.mask_evidence import chosen_by_public_data
from dpfed.audit.model_evidence import model_is_the_runs
from dpfed.audit.own_code_evidence import loaded_here, own_code_is_what_ran, require_own_code
from dpfed.audit.release_checks import checks_of_releases
from dpfed.audit.rounds_evidence import project_agrees, rounds_agree
from dpfed.audit.run_files import RunFiles
from dpfed.audit.summary_figures import figures_follow, not_checked
from dpfed.audit.verdict import Check, Verdict, check, in_full, verdict
from dpfed.config.own_code import load_own_code
from dpfed.errors import ConfigError, DpfedError
from dpfed.methods.catalogue import method

STATISTICAL = 7
"""Checks that may fail by chance: variance, freshness and shape of noise, cohort sizes, members of cohorts, noise of
counts, canaries. Each has this part of alpha, whether it can be made or not."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunAudit:
    """Outcome of `audit_run`. `claimed_epsilon`: of summary.json; `recomputed_epsilon`: from the ledger alone.
    `not_checked`: keys of summary.json that no check has compared with anything."""

    files: RunFiles
    confidence: float
    claimed_epsilon: float | None
    recomputed_epsilon: float | None
    delta: float | None
    checks: tuple[Check, ...]
    canaries: CanaryResult | None
    notes: tuple[str, ...]
    not_checked: tuple[str, ...] = ()

    @property
    def alpha_each(self) -> float:
        """Error probability of each statistical check."""
        return (1 - self.confidence) / STATISTICAL

    @property
    def verdict(self) -> Verdict:
        return verdict(self.checks)

    @property
    def verdict_in_full(self) -> str:
        """The verdict with its scope."""
        return in_full(self.verdict, "on these files")

    @cached_property
    def second_opinion(self) -> tuple[float | None, tuple[str, ...]]:
        """What dp-accounting states for the same ledger, no part of the verdict; and what that is beside ours and
        beside what is proven, or why there is none. Loads dp-accounting."""
        try:
            opinion = self.files.second_opinion
            if opinion is None:
                return None, ("no second opinion: nothing was released",)
            least = conformance.least_epsilon(self.files, opinion.delta)
            return opinion.epsilon, opinion.remarks(epsilon=self.files.spent.epsilon, lower_bound=least)
        except (DpfedError, AccountingError) as reason:
            return None, (f"no second opinion: {reason}",)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `dpfed audit run`."""
        found, (opinion, remarks) = self.canaries, self.second_opinion
        return {
            "claimed_epsilon": self.claimed_epsilon,
            "recomputed_epsilon": self.recomputed_epsilon,
            "second_opinion": opinion,
            "delta": self.delta,
            "lower_bound": found.lower_bound if found else None,
            "confidence": self.confidence,
            "method": "conformance" if found is None else "conformance; canaries, of one round without sampling",
            "trials": len(found.scores) if found else 0,
            "score_gap": found.score_gap if found else None,
            "checks": [one.to_dict() for one in self.checks],
            "verdict": self.verdict,
            "verdict_in_full": self.verdict_in_full,
            "canaries": found.to_dict() if found else None,
            "notes": [*self.notes, *remarks],
            "not_checked": list(self.not_checked),
        }


def audit_run(path: Path, *, confidence: float = 0.95, project: Path | None = None) -> RunAudit:
    """Audit the folder that a run left, or the ledger of a `dpfed.ClientLevel` (or its folder), with the checks that
    apply to it (`dpfed.audit.loop`). project: the ledger that the run drew from, to be compared release by release.

    Claim: a run whose files are what a correct run writes is called "fail" with probability at most 1 - confidence,
    over the run's own randomness. The converse does not hold: "pass" says that nothing in the files speaks against the
    claim, and files can be forged (the ledger's hashes have no key). ConfigError where there is no run, or one that
    claims nothing.
    """
    alpha = (1 - require.open_probability(confidence=confidence)) / STATISTICAL
    load_own_code()
    loop = ledger_of(path)
    if loop is not None and project is not None:
        raise ConfigError(f"--project {project}: a dpfed.ClientLevel draws from no project. Leave it out.")
    if loop is not None:
        return _audit_loop(LoopFiles(loop), confidence, alpha)
    files = RunFiles(path if path.is_dir() or not path.exists() else path.parent)
    require_own_code(files)
    _require_claim(files)
    checks = [*_of_claims(files), *_of_project(files, project), *_of_rounds(files, alpha)]
    canaries: list[CanaryResult] = []
    if files.config.audit.canaries or (path / "canaries.jsonl").exists():
        checks.append(check("canaries are the seed's", lambda: canary_test.coins_are_the_seeds(files)))
        checks.append(check("canaries bear out one round", lambda: _canaries(files, alpha, canaries), smoke=True))
    return RunAudit(
        files=files,
        confidence=confidence,
        claimed_epsilon=_number(files, "epsilon"),
        recomputed_epsilon=_recomputed(files),
        delta=_number(files, "delta"),
        checks=tuple(checks),
        canaries=canaries[0] if canaries else None,
        notes=_notes(files, project),
        not_checked=not_checked(files),
    )


def _audit_loop(files: LoopFiles, confidence: float, alpha: float) -> RunAudit:
    recomputed = _recomputed(files)
    planned = files.config.privacy.epsilon if files.config.privacy is not None else None
    return RunAudit(
        files=files,
        confidence=confidence,
        claimed_epsilon=recomputed if planned is None else planned,
        recomputed_epsilon=recomputed,
        delta=_number(files, "delta"),
        checks=tuple(checks_of_loop(files, alpha)),
        canaries=None,
        notes=(*_caveats(files), *notes_of_loop(files)),
    )


def _of_claims(files: RunFiles) -> list[Check]:
    """What is stated against what was charged: nothing of it is random."""
    return [
        check("ledger is intact", lambda: conformance.ledger_intact(files)),
        check("epsilon follows from the ledger", lambda: conformance.epsilon_follows(files)),
        check("epsilon is possible", lambda: conformance.epsilon_is_possible(files)),
        check("summary names what ran", lambda: conformance.summary_names_the_claim(files)),
        check("all files have the same rounds", lambda: rounds_agree(files)),
        check("every round is charged", lambda: conformance.rounds_charged(files)),
        check("ledger follows the configuration", lambda: conformance.ledger_follows_configuration(files)),
        check("all files are of one run", lambda: files_are_of_one_run(files)),
        check("model is the run's", lambda: model_is_the_runs(files)),
        check("other figures follow", lambda: figures_follow(files)),
    ]


def _of_project(files: RunFiles, project: Path | None) -> list[Check]:
    """The run's charges against its project's."""
    if project is not None:
        return [check("project was charged alike", lambda: project_agrees(files, project))]
    return [check("charges taken back", lambda: _taken_back(files))] if _marks(files) else []


def _marks(files: RunFiles) -> int:
    """Number of charges that the run's ledger says its project never had."""
    try:
        return (len(files.ledger.entries) - len(files.ledger.standing)) // 2
    except (DpfedError, AccountingError):
        return 0


def _of_a_project(files: RunFiles) -> bool:
    try:
        return "run" in files.ledger.header.about
    except (DpfedError, AccountingError):
        return False


def _taken_back(files: RunFiles) -> tuple[bool | None, str]:
    return None, (
        f"ledger.jsonl marks {_marks(files)} charges as taken back, since the project was never charged for them. Give "
        "the project's ledger by --project to see that."
    )


def _of_rounds(files: RunFiles, alpha: float) -> list[Check]:
    """What was charged against what was done; `alpha`: of each check that may fail by chance."""
    checks = [
        check("rows are bounded", lambda: sum_evidence.rows_are_bounded(files)),
        check("sums are of what went in", lambda: step_evidence.sums_are_of_what_went_in(files)),
        check("model moves by what was released", lambda: step_evidence.model_moves_by_releases(files)),
        *checks_of_releases(files, alpha),
        check("uploads are as accounted", lambda: sum_evidence.uploads_are_as_accounted(files)),
    ]
    if files.config.privacy is not None and files.config.privacy.adaptive is not None:
        checks.append(check("counts are noised", lambda: counts_are_noised(files, alpha=alpha)))
    if files.own_code:
        rests = not loaded_here(files)  # on the other checks, which say what of it they could not make
        checks.append(check("own code is what ran", lambda: own_code_is_what_ran(files), smoke=rests))
    if method(files.config.method.name).needs_public_data:
        checks.append(check("coordinates are chosen by public data", lambda: chosen_by_public_data(files)))
    return checks


def _canaries(files: RunFiles, alpha: float, kept: list[CanaryResult]) -> tuple[bool | None, str]:
    kept.append(canary_test.canary_result(files, alpha=alpha))
    return canary_test.claim_of_a_round_holds(kept[0])


def _require_claim(files: RunFiles) -> None:
    private = files.config.privacy is not None or files.config.local.record is not None
    if private or (files.path / "ledger.jsonl").exists() or _number(files, "epsilon") is not None:
        return
    raise ConfigError(
        f"{files.path}: this run is not private and states no epsilon, so there is no claim to audit. Audit a run with "
        "[privacy] or [local.record]."
    )


def _number(files: RunFiles, key: str) -> float | None:
    try:
        return files.stated(key)
    except DpfedError:
        return None


def _recomputed(files: RunFiles) -> float | None:
    try:
        return files.guarantee.epsilon
    except (DpfedError, AccountingError):
        return None


def _notes(files: RunFiles, project: Path | None) -> tuple[str, ...]:
    """What a pass does not show."""
    notes = [
        *_caveats(files),
        "The files are the run's own account: hashes find accidents and careless edits, not a forger who writes "
        "everything anew.",
    ]
    if files.config.privacy is not None:
        loads = "".join(f" --load {one.path}" for one in files.own_code)
        notes.append(
            "Not looked at: whether a stage of the method mixes clients' rows, or keeps a state from one client or "
            f"round to the next. `dpfed audit upload {files.config.method.name}{loads}` tests that."
        )
    if project is None and _of_a_project(files):
        notes.append("The run draws from a project, whose ledger was not compared: --project LEDGER does that.")
    if files.config.run.randomness == "simulated":
        notes.append("Noise and cohorts come from the seed (run.randomness = 'simulated'): not for release.")
    if files.config.local.record is not None:
        notes.append("Bounds and noise of local steps happen inside the clients and leave no trace in these files.")
        return tuple(notes)
    if _of_coins(files):
        notes.append("Coins leave no trace in these files: that they are fair is for `dpfed audit upload` to test.")
    if not files.config.audit.canaries:
        notes.append(
            "The run had no canaries ([audit] canaries = k), so nothing was tried on its output: `dpfed audit upload` "
            "tests the code path of a round."
        )
    else:
        notes.append(
            "lower_bound is of one round without its sampling, not of the run: compare it with round_epsilon, not with "
            "claimed_epsilon."
        )
    return tuple(notes)


def _caveats(files: RunFiles) -> tuple[str, ...]:
    """Where the recomputed guarantee says next to nothing."""
    try:
        return files.guarantee.notes
    except (DpfedError, AccountingError):
        return ()


def _of_coins(files: RunFiles) -> bool:
    try:
        return any(noise_evidence.charged_noise(release) is None for release in files.released.values())
    except DpfedError:
        return False
