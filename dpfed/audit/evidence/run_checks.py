"""Lists of the checks of a run folder and of a training loop, with the smallest fault that each would have found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from scipy.special import ndtri

from accounting.errors import AccountingError
from accounting.rounding import downwards
from dpfed.audit.evidence import conformance, loop, noise_evidence, rounds_evidence, step_evidence
from dpfed.audit.evidence.canary_test import canaries_follow_seed
from dpfed.audit.evidence.cohort_distribution import (
    cohorts_follow_seed_if_simulated,
    custom_sampler_draws_as_stated,
    sizes_follow_sampler,
)
from dpfed.audit.evidence.cohort_members import improbable_repetitions, members_follow_sampler
from dpfed.audit.evidence.conformance import least_epsilon
from dpfed.audit.evidence.loop import LoopFiles, skipping_ignores_the_cohort
from dpfed.audit.evidence.mask_evidence import coordinates_follow_public_data
from dpfed.audit.evidence.noise_evidence import shortfall_found
from dpfed.audit.evidence.rounds_evidence import files_agree_on_rounds, project_ledger_agrees
from dpfed.audit.evidence.run_files import RunFiles, value_or
from dpfed.audit.evidence.summary_evidence import metrics_agree, summary_values_follow
from dpfed.audit.verdict import Check, Finding, check
from dpfed.config.samples_tables import CustomFederation
from dpfed.errors import DpfedError
from dpfed.methods.catalogue import method_specification
from dpfed.participation.custom import FALSE_ALARM, ROUNDS
from dpfed.runs.summary import requests_certificate

_LIKELY = float(ndtri(0.95))

WouldFind = str | Callable[[RunFiles, float], str | None]


def _fault_text(fault: WouldFind, files: RunFiles, alpha: float) -> str | None:
    """Return the smallest fault that a check would have found; None if the check cannot fail on these files.

    alpha: error probability of each statistical check. A fault in the text is found with probability 95%.
    """
    if isinstance(fault, str):
        return fault
    try:
        return fault(files, alpha)
    except (DpfedError, AccountingError, ArithmeticError, ValueError):
        return None


def _short_noise(files: RunFiles, alpha: float) -> str | None:
    found, silent = noise_evidence.measured_noise(files)
    entries = sum(one.noise.entries for one in found)
    if not entries:
        return "a sum without noise" if silent else None
    alone = shortfall_found(min(one.noise.entries for one in found), alpha / 4 / len(found))
    return f"noise {shortfall_found(entries, alpha / 4):.2%} short in all rounds, or {alone:.2%} short in one"


def _repeated_noise(files: RunFiles, alpha: float) -> str | None:
    return "noise of one round that is that of another" if len(noise_evidence.measured_noise(files)[0]) > 1 else None


def _shaped_noise(files: RunFiles, alpha: float) -> str | None:
    found, _ = noise_evidence.measured_noise(files)
    if not found:
        return None
    clamp = noise_evidence.clamp_that_is_found(sum(one.noise.entries for one in found), alpha / 4)
    correlation = max(
        noise_evidence.correlation_that_is_found(one.noise.entries, alpha / 2 / len(found)) for one in found
    )
    tiled = f", or coordinates with correlation {correlation:.2f}" if correlation < 1 else ""
    return f"noise cut off at {clamp:.2f} standard deviations{tiled}"


def _cohort_sizes(files: RunFiles, alpha: float) -> str | None:
    law, rounds = files.sampler.law, len(files.rounds)
    if not law.independent:
        return "a size that the schedule excludes" if law.is_schedule else "one cohort of another size"
    mean = files.sampler.expected
    spread = math.sqrt(mean * (1 - law.probability) / rounds)
    visible = (_LIKELY + float(-ndtri(alpha / 6))) * spread / mean
    fixed = 1.0 / rounds**0.5 < 0.25
    return f"cohorts {visible:.0%} too large or small on average" + (", or of a constant size" if fixed else "")


def _members(files: RunFiles, alpha: float) -> str | None:
    law, rounds = files.sampler.law, len(files.rounds)
    if files.all_take_part:
        return "a cohort without one of the clients"
    if law.is_schedule:
        return "a client in a round that its schedule excludes"
    clients = files.config.federation.clients
    mean = rounds * law.probability
    often = mean + (float(-ndtri(alpha / 6 / clients)) + _LIKELY) * math.sqrt(mean * (1 - law.probability))
    seldom = f", or a client drawn {math.ceil(often)} times in place of {mean:.1f}" if often <= rounds else ""
    again = improbable_repetitions([one.cohort for one in files.rounds], clients, alpha / 3)
    repeated = "a cohort that is drawn twice" if again == 1 else f"{again} rounds with a cohort of an earlier one"
    return f"{repeated}{seldom}" if again <= rounds else seldom.removeprefix(", or ") or None


def _custom_draws(files: RunFiles, alpha: float) -> str | None:
    who = files.sampler
    spread = math.sqrt((1 - who.law.probability) / (ROUNDS * who.expected))
    share = (_LIKELY + float(-ndtri(FALSE_ALARM / 50 / who.clients))) * spread
    return f"a sampler whose cohorts are {share:.1%} too large or small on average"


def _counts(files: RunFiles, alpha: float) -> str | None:
    return f"a count without noise, or with noise {shortfall_found(len(files.results), alpha / 6):.0%} short"


def _skips(files: RunFiles, alpha: float) -> str | None:
    skipped, rounds = len(files.rounds) - len(files.results), len(files.rounds)
    if not skipped or loop.smallest_rank_sum_p_value(skipped, rounds) >= alpha:
        return None
    return f"a loop that skips the {skipped} smallest (or largest) of {rounds} cohorts"


def _of_sums(text: str) -> WouldFind:
    return lambda files, alpha: text if files.config.privacy is not None else None


def _seeds(files: RunFiles, alpha: float) -> str | None:
    if files.all_take_part:
        return None
    return "a cohort that is (secure) or is not (simulated) the one of run.seed"


def _least_epsilon(files: RunFiles, alpha: float) -> str | None:
    least = least_epsilon(files, files.delta)
    return None if least is None else f"a stated epsilon below {downwards(least)}"


def _divisor(files: RunFiles, alpha: float) -> str | None:
    return "a sum divided by another number" if files.results and files.config.privacy is not None else None


STATISTICAL = 8
"""Number of statistical checks, which share the error probability equally, even if some are not made.

They test variance, freshness and shape of noise, cohort sizes, members of cohorts, noise of counts, skipped rounds,
and canaries.
"""

Files = TypeVar("Files", bound=RunFiles)
Table = Mapping[str, tuple[Callable[[Files], Finding], WouldFind]]
"""Finding of each check, by its name, and the smallest fault that it would have found."""


def checks_of_run(files: RunFiles, alpha: float, project: Path | None) -> list[Check]:
    """Return the checks that apply to a run's folder, except the check of canaries' scores.

    alpha: error probability of each statistical check. project: ledger that the run was charged to.
    """
    rows = dict(_OF_CLAIMS)
    if project is not None:
        rows["project was charged alike"] = (
            partial(project_ledger_agrees, path=project),
            "a release that the project was not charged for",
        )
    elif _number_of_withdrawn_charges(files):
        rows["withdrawn charges"] = _withdrawn_charges_finding, "a withdrawn charge that the project has"
    if requests_certificate(files.config) or value_or(False, lambda: files.summary.certificate is not None):
        fault = "a certificate that this code does not compute"
        rows["certificate is computed again"] = conformance.certificate_is_reproduced, fault
    rows |= _OF_SUMS
    rows["model moves by what was released"] = (
        step_evidence.model_moves_by_releases,
        "a step that differs by 1e-5 of the model's norm",
    )
    rows |= {**_release_checks(alpha), **_OF_UPLOADS}
    if files.config.privacy is not None and files.config.privacy.adaptive is not None:
        rows["counts are noised"] = partial(noise_evidence.counts_are_noised, alpha=alpha), _counts
    if isinstance(files.config.federation, CustomFederation):
        rows["custom sampler draws as it states"] = custom_sampler_draws_as_stated, _custom_draws
    own = "loaded code is the run's code"
    if files.own_code:
        rows[own] = rounds_evidence.own_code_matches_run, "a file of custom code with one other byte"
    if method_specification(files.config.method.name).needs_public_data:
        rows["coordinates are chosen by public data"] = (
            coordinates_follow_public_data,
            "a public sample that a client holds, other samples in a round, or a first choice that is nearer to that "
            "of other samples",
        )
    if files.has_canaries:
        rows["canaries follow the seed"] = canaries_follow_seed, "a canary with another direction or coin flip"
    found = _make_checks(rows, files, alpha)
    open_code = files.own_code and not rounds_evidence.own_code_is_loaded(files)
    return [replace(one, decides=False) if open_code and one.name == own else one for one in found]


def checks_of_loop(files: LoopFiles, alpha: float) -> list[Check]:
    """Return the checks that apply to a `dpfed.ClientLevel` loop.

    Sums and uploads are checked only if the ledger's lines could be compared with the plan.
    """
    *checks, follows = _make_checks(_OF_LOOPS, files, alpha)
    checks += [replace(follows, decides=False) if files.own_stages else follows]
    checks += _make_checks(_release_checks(alpha), files, alpha)
    if value_or((), lambda: files.skipped):
        skips = {"skipping does not depend on the cohort": (partial(skipping_ignores_the_cohort, alpha=alpha), _skips)}
        checks += [replace(one, decides=False) for one in _make_checks(skips, files, alpha)]
    return checks + (_make_checks({**_OF_SUMS, **_OF_UPLOADS}, files, alpha) if follows.passed is not None else [])


def _make_checks(table: Table[Files], files: Files, alpha: float) -> list[Check]:
    return [
        replace(check(name, partial(finding, files)), would_find=_fault_text(fault, files, alpha))
        for name, (finding, fault) in table.items()
    ]


def _number_of_withdrawn_charges(files: RunFiles) -> int:
    """Return the number of charges that the run's ledger withdraws, because its project was never charged for them."""
    return value_or(0, lambda: (len(files.ledger.entries) - len(files.ledger.entries_in_force)) // 2)


def _withdrawn_charges_finding(files: RunFiles) -> Finding:
    return None, (
        f"ledger.jsonl withdraws {_number_of_withdrawn_charges(files)} charges, since the project was never charged "
        "for them. Give the project's ledger by --project to check that."
    )


_OF_CLAIMS: Table[RunFiles] = {
    "ledger is intact": (conformance.ledger_is_intact, "a line that was changed, removed or moved"),
    "epsilon follows from the ledger": (
        conformance.epsilon_follows_ledger,
        "a stated epsilon 1e-6 below that of the ledger",
    ),
    "epsilon is possible": (conformance.epsilon_reaches_lower_bound, _least_epsilon),
    "summary names what ran": (
        conformance.summary_states_the_claim,
        "another unit, adjacency, sampler, noise or clip norm in the summary",
    ),
    "all files have the same rounds": (
        files_agree_on_rounds,
        "a round that is missing in one file, or an end that the budget did not cause",
    ),
    "every round is charged": (conformance.every_round_is_charged, "a round without its line in the ledger"),
    "ledger follows the configuration": (
        conformance.ledger_follows_configuration,
        "a line with another mechanism, clip norm, noise or sampler",
    ),
    "all files are of one run": (rounds_evidence.files_belong_to_one_run, "a file of another run"),
    "model is the run's": (rounds_evidence.model_belongs_to_run, "a model with one other weight"),
    "other summary values follow": (summary_values_follow, "a recomputed value that differs by 1e-6; a score by 1e-3"),
    "metrics agree with other files": (metrics_agree, "a last line, an uplink or a best accuracy that differs by 1e-6"),
}
_OF_LOOPS: Table[LoopFiles] = {
    "ledger is intact": (conformance.ledger_is_intact, "a line that was changed, removed or moved"),
    "epsilon keeps to the plan": (loop.epsilon_is_within_plan, "an epsilon above the planned one"),
    "epsilon is possible": (conformance.epsilon_reaches_lower_bound, _least_epsilon),
    "every round is charged once": (
        loop.rounds_are_charged_once,
        "a round without its line in the ledger, or with two",
    ),
    "ledger follows the plan": (
        loop.ledger_follows_the_plan,
        "a line with another mechanism, clip norm, noise or sampler",
    ),
}
_OF_SUMS: Table[RunFiles] = {
    "rows are bounded": (step_evidence.rows_are_bounded, _of_sums("a row 1e-9 beyond the clip norm")),
    "sums are of what went in": (
        step_evidence.sums_match_rows,
        _of_sums("a row or vector of 1e-5 of the sum's largest norm beside the sum"),
    ),
}
_OF_UPLOADS: Table[RunFiles] = {
    "uploads are as accounted": (
        step_evidence.uploads_are_as_accounted,
        "an upload more or less, or a missing share of noise",
    ),
}


def _release_checks(alpha: float) -> Table[RunFiles]:
    return {
        "noise is as large as charged": (partial(noise_evidence.noise_is_as_charged, alpha=alpha), _short_noise),
        "noise is fresh in every round": (partial(noise_evidence.noise_is_fresh, alpha=alpha), _repeated_noise),
        "noise is shaped as charged": (partial(noise_evidence.noise_is_shaped_as_charged, alpha=alpha), _shaped_noise),
        "cohort sizes follow the sampler": (partial(sizes_follow_sampler, alpha=alpha), _cohort_sizes),
        "members follow the sampler": (partial(members_follow_sampler, alpha=alpha), _members),
        "cohorts follow the seed only if simulated": (cohorts_follow_seed_if_simulated, _seeds),
        "denominator is public": (step_evidence.denominator_is_public, _divisor),
    }
