"""Files audit.html, audit.json and figures of an audit: one card for every kind of audit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from accounting.compose.readings import tradeoff
from accounting.rounding import upwards
from dpfed.audit.evidence.cohort_distribution import size_distribution
from dpfed.audit.evidence.noise_evidence import limits_of_ratio, measured_noise
from dpfed.audit.evidence.run_files import value_or
from dpfed.audit.functions.outcome import FunctionTrials, PairTest
from dpfed.audit.run import RunEvidence
from dpfed.audit.statistics.rejection import upper_limit
from dpfed.audit.verdict import Verdict, failed_checks_first, names_of_failed_checks
from dpfed.errors import RunError
from dpfed.records.round import REPLAY_RECORD
from dpfed.report.figures.audit import CanaryScores, CohortSizes, NoiseRatios, ObservedErrors, plot_audit, plot_trials
from dpfed.report.figures.figure import ChartGroup, inline_svg
from dpfed.report.page import free_paths, render_page
from dpfed.runs.durable_files import put

_FARTHEST = 50.0
_UNNAMED_SCORES = ("direction",)
"""Scores whose names the figure omits."""
_HOLDS = {True: ("yes", "pass"), False: ("no", "fail"), None: ("could not tell", "unknown")}


def write_cards(found: Sequence[Verdict], folder: Path) -> list[Path]:
    """Write a card for each audit into the folder, its figure and its JSON document; return the paths of the pages.

    Files of another audit are kept: the new names are then audit-2.html and so on. A replay of a run folder also
    becomes its audit-replay.json, which reports read. RunError if the files cannot be written."""
    return [_written_card(one, folder) for one in found]


def write_json(found: Verdict, path: Path) -> None:
    """Write the JSON document of a verdict."""
    put(path, json.dumps(found.to_dict(), indent=2, allow_nan=False).encode())


def _written_card(found: Verdict, folder: Path) -> Path:
    subject = _subject(found, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replayed = "reproduce" in found.details
        name = "audit-replay" if replayed else "audit"
        page, plot, record = free_paths(folder, f"{name}.html", f"{name}.png", f"{name}.json", subject=subject)
        record = folder / REPLAY_RECORD if replayed else record
        write_json(found, record)
        put(page, _card(found, _figure(found.evidence, plot), subject).encode())
    except OSError as error:
        raise RunError(f"{folder}: cannot be written ({error.strerror}). Name another folder with --out.") from None
    return Path(page)


def _subject(found: Verdict, folder: Path) -> str:
    """Return the name of what was audited: of a run in this folder relative, else its absolute path."""
    if not isinstance(found.evidence, RunEvidence):
        return f"audit {found.audited}, epsilon {found.claimed_epsilon}"
    files = found.evidence.files
    own = files.path.resolve() == folder.resolve()
    return f"audit {files.ledger_name if own else files.path.resolve() / files.ledger_name}"


def _card(found: Verdict, figure: ChartGroup | None, subject: str) -> str:
    failed = names_of_failed_checks(found.checks)
    return render_page(
        "audit.html",
        title=f"Audit of {found.name}: {found.verdict_in_full}{f', {failed}' if failed else ''}",
        subject=subject,
        found=found,
        failed=failed,
        name=found.name,
        colour=found.verdict if found.verdict in ("pass", "fail") else "unknown",
        claimed=None if found.claimed_epsilon is None else upwards(found.claimed_epsilon),
        delta=None if found.delta is None else upwards(found.delta),
        group=figure,
        checks=[(one, *_HOLDS[one.passed]) for one in failed_checks_first(found.checks)],
        headings=list(found.pairs[0].cells) if found.pairs else [],
    )


def _figure(evidence: object, path: Path) -> ChartGroup | None:
    """Write the figure of an audit whose evidence has one, and return its panels for a page."""
    if isinstance(evidence, FunctionTrials):
        return _trials_figure(evidence, path)
    if isinstance(evidence, RunEvidence):
        panels = _canary_scores(evidence), _noise_ratios(evidence), value_or(None, lambda: _cohort_sizes(evidence))
        return inline_svg(plot_audit(*panels, path), files=path.name)
    return None


def _trials_figure(audit: FunctionTrials, path: Path) -> ChartGroup:
    epsilons = np.linspace(0.0, 1.3 * min(audit.claim.epsilon, _FARTHEST) + 0.1, 300)
    rates = np.linspace(0.0, 1.0, 401)
    allowed = tradeoff(audit.claim.profile, rates)
    claimed = np.asarray(audit.claim.profile(epsilons))
    observed = [_observed_errors(one) for one in audit.tests]
    return inline_svg(plot_trials(epsilons, claimed, rates, allowed, observed, path), files=path.name)


def _observed_errors(one: PairTest) -> ObservedErrors:
    test = one.test
    return ObservedErrors(
        name=one.pair if one.score in _UNNAMED_SCORES else f"{one.pair} ({one.score})",
        rejected=one.rejected,
        false_positive_rate=test.false_positives / test.trials0,
        false_negative_rate=test.false_negatives / test.trials1,
        fpr_upper=float(upper_limit(test.false_positives, test.trials0, alpha=test.alpha / 2)),
        fnr_upper=float(upper_limit(test.false_negatives, test.trials1, alpha=test.alpha / 2)),
    )


def _canary_scores(found: RunEvidence) -> CanaryScores | None:
    if found.canaries is None:
        return None
    scores, present = found.canaries.scores, found.canaries.present
    return CanaryScores(present=scores[present], absent=scores[~present], shift=found.canaries.shift)


def _noise_ratios(found: RunEvidence) -> NoiseRatios | None:
    """Return each round's noise standard deviation over the charged one, with the test's limits for one round."""
    rounds, _ = value_or(([], []), lambda: measured_noise(found.files))
    if not rounds:
        return None
    each = found.alpha / 2 / len(rounds)
    bounds = np.sqrt([limits_of_ratio(one, alpha=each) for one in rounds])
    return NoiseRatios(
        rounds=[one.round for one in rounds],
        ratios=np.sqrt([one.ratio for one in rounds]),
        low=bounds[:, 0],
        high=bounds[:, 1],
    )


def _cohort_sizes(found: RunEvidence) -> CohortSizes:
    law = size_distribution(found.files.sampler)
    return CohortSizes(sizes=[one.cohort for one in found.files.rounds], smallest_size=law.smallest_size, mass=law.mass)
