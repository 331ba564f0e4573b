"""Lists of the checks of a run's folder and of a training loop's ledger, in one table for each kind of evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from accounting.errors import AccountingError
from dpfed.audit.evidence import conformance, loop, noise_evidence, origin_evidence, step_evidence, sum_evidence
from dpfed.audit.evidence.canary_test import canaries_follow_seed
from dpfed.audit.evidence.cohort_distribution import (
    cohorts_follow_seed_if_simulated,
    custom_sampler_draws_as_stated,
    sizes_follow_sampler,
)
from dpfed.audit.evidence.cohort_members import members_follow_sampler
from dpfed.audit.evidence.loop import LoopFiles
from dpfed.audit.evidence.mask_evidence import coordinates_follow_public_data
from dpfed.audit.evidence.noise_shape import noise_is_shaped_as_charged
from dpfed.audit.evidence.rounds_evidence import files_agree_on_rounds, project_ledger_agrees
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.evidence.summary_evidence import metrics_agree, summary_values_follow
from dpfed.audit.evidence.would_find import would_find
from dpfed.audit.verdict import Check, Finding, check
from dpfed.config.samples_tables import CustomFederation
from dpfed.errors import DpfedError
from dpfed.methods.catalogue import method_specification
from dpfed.runs.certificate import requests_certificate

STATISTICAL = 8
"""Number of statistical checks, which share the error probability equally, even if some are not made.

They test variance, freshness and shape of noise, cohort sizes, members of cohorts, noise of counts, skipped rounds,
and canaries.
"""

Files = TypeVar("Files", bound=RunFiles)
Table = Mapping[str, Callable[[Files], Finding]]


def checks_of_run(files: RunFiles, alpha: float, project: Path | None) -> list[Check]:
    """Return the checks that apply to a run's folder, except the check of canaries' scores.

    alpha: error probability of each statistical check. project: ledger that the run was charged to.
    """
    checks = checks_of_claims(files)
    if project is not None:
        checks += [check("project was charged alike", partial(project_ledger_agrees, files, project))]
    elif _number_of_withdrawn_charges(files):
        checks += [check("withdrawn charges", partial(_withdrawn_charges_finding, files))]
    if requests_certificate(files.config) or _has_certificate(files):
        checks += [check("certificate is computed again", partial(conformance.certificate_is_reproduced, files))]
    checks += _make_checks(
        _OF_SUMS | {"model moves by what was released": step_evidence.model_moves_by_releases}, files
    )
    checks += _make_checks(_release_checks(alpha), files)
    checks += _make_checks(_OF_UPLOADS, files)
    if files.config.privacy is not None and files.config.privacy.adaptive is not None:
        checks += [check("counts are noised", partial(noise_evidence.counts_are_noised, files, alpha=alpha))]
    if isinstance(files.config.federation, CustomFederation):
        checks += [check("custom sampler draws as it states", partial(custom_sampler_draws_as_stated, files))]
    if files.own_code:
        own = check("loaded code is the run's code", partial(origin_evidence.own_code_matches_run, files))
        checks += [own if origin_evidence.own_code_is_loaded(files) else replace(own, decides=False)]
    if method_specification(files.config.method.name).needs_public_data:
        checks += [check("coordinates are chosen by public data", partial(coordinates_follow_public_data, files))]
    if files.has_canaries:
        checks += [check("canaries follow the seed", partial(canaries_follow_seed, files))]
    return [replace(one, would_find=would_find(one.name, files, alpha)) for one in checks]


def checks_of_claims(files: RunFiles) -> list[Check]:
    """Return the checks that compare a run's statements with its charges; they are deterministic."""
    return _make_checks(_OF_CLAIMS, files)


def checks_of_loop(files: LoopFiles, alpha: float) -> list[Check]:
    """Return the checks that apply to a `dpfed.ClientLevel` loop.

    Sums and uploads are checked only if the ledger's lines could be compared with the plan.
    """
    *checks, follows = _make_checks(_OF_LOOPS, files)
    checks += [replace(follows, decides=False) if files.own_stages else follows]
    checks += _make_checks(_release_checks(alpha), files)
    if files.has_skipped:
        skips = partial(loop.skipping_ignores_the_cohort, files, alpha=alpha)
        checks.append(replace(check("skipping does not depend on the cohort", skips), decides=False))
    checks += _make_checks(_OF_SUMS | _OF_UPLOADS, files) if follows.passed is not None else []
    return [replace(one, would_find=would_find(one.name, files, alpha)) for one in checks]


def _make_checks(table: Table[Files], files: Files) -> list[Check]:
    return [check(name, partial(finding, files)) for name, finding in table.items()]


def _has_certificate(files: RunFiles) -> bool:
    """Return True if summary.json has a certificate."""
    try:
        return files.summary.certificate is not None
    except DpfedError:
        return False


def _number_of_withdrawn_charges(files: RunFiles) -> int:
    """Return the number of charges that the run's ledger withdraws, because its project was never charged for them."""
    try:
        return (len(files.ledger.entries) - len(files.ledger.entries_in_force)) // 2
    except (DpfedError, AccountingError):
        return 0


def _withdrawn_charges_finding(files: RunFiles) -> Finding:
    return None, (
        f"ledger.jsonl withdraws {_number_of_withdrawn_charges(files)} charges, since the project was never charged "
        "for them. Give the project's ledger by --project to check that."
    )


_OF_CLAIMS: Table[RunFiles] = {
    "ledger is intact": conformance.ledger_is_intact,
    "epsilon follows from the ledger": conformance.epsilon_follows_ledger,
    "epsilon is possible": conformance.epsilon_reaches_lower_bound,
    "summary names what ran": conformance.summary_states_the_claim,
    "all files have the same rounds": files_agree_on_rounds,
    "every round is charged": conformance.every_round_is_charged,
    "ledger follows the configuration": conformance.ledger_follows_configuration,
    "all files are of one run": origin_evidence.files_belong_to_one_run,
    "model is the run's": origin_evidence.model_belongs_to_run,
    "other summary values follow": summary_values_follow,
    "metrics agree with other files": metrics_agree,
}
_OF_LOOPS: Table[LoopFiles] = {
    "ledger is intact": conformance.ledger_is_intact,
    "epsilon keeps to the plan": loop.epsilon_is_within_plan,
    "epsilon is possible": conformance.epsilon_reaches_lower_bound,
    "every round is charged once": loop.rounds_are_charged_once,
    "ledger follows the plan": loop.ledger_follows_the_plan,
}
_OF_SUMS: dict[str, Callable[[RunFiles], Finding]] = {
    "rows are bounded": sum_evidence.rows_are_bounded,
    "sums are of what went in": step_evidence.sums_match_rows,
}
_OF_UPLOADS: dict[str, Callable[[RunFiles], Finding]] = {
    "uploads are as accounted": sum_evidence.uploads_are_as_accounted
}


def _release_checks(alpha: float) -> Table[RunFiles]:
    return {
        "noise is as large as charged": partial(noise_evidence.noise_is_as_charged, alpha=alpha),
        "noise is fresh in every round": partial(noise_evidence.noise_is_fresh, alpha=alpha),
        "noise is shaped as charged": partial(noise_is_shaped_as_charged, alpha=alpha),
        "cohort sizes follow the sampler": partial(sizes_follow_sampler, alpha=alpha),
        "members follow the sampler": partial(members_follow_sampler, alpha=alpha),
        "cohorts follow the seed only if simulated": cohorts_follow_seed_if_simulated,
        "denominator is public": sum_evidence.denominator_is_public,
    }
