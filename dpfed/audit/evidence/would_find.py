"""Smallest fault that each check of a run's files would have found, as text; None for a check that cannot fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import ndtri
from scipy.stats import chi2

from accounting.errors import AccountingError
from accounting.mechanisms import PoissonSampling, Schedule
from accounting.rounding import downwards
from dpfed.audit.evidence.conformance import least_epsilon
from dpfed.audit.evidence.noise_evidence import MeasuredNoise, measured_noise
from dpfed.audit.evidence.noise_shape import clamp_that_is_found, correlation_that_is_found
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.errors import DpfedError
from dpfed.participation.custom import FALSE_ALARM, ROUNDS

_LIKELY = float(ndtri(0.95))

WouldFind = str | Callable[[RunFiles, float], str | None]


def would_find(name: str, files: RunFiles, alpha: float) -> str | None:
    """Return the smallest fault that the check of this name would have found; None if it cannot fail on these files.

    alpha: error probability of each statistical check. A fault in the text is found with probability 95%.
    """
    found = _WOULD_FIND[name]
    if isinstance(found, str):
        return found
    try:
        return found(files, alpha)
    except (DpfedError, AccountingError, ArithmeticError, ValueError):
        return None


def _noise(files: RunFiles) -> list[MeasuredNoise]:
    return measured_noise(files)[0]


def _short_noise(files: RunFiles, alpha: float) -> str | None:
    found = _noise(files)
    entries = sum(one.noise.entries for one in found)
    if not entries:
        return None
    part = math.sqrt(float(chi2.ppf(alpha / 4, entries) / chi2.ppf(0.95, entries)))
    fewest = min(one.noise.entries for one in found)
    alone = math.sqrt(float(chi2.ppf(alpha / 4 / len(found), fewest) / chi2.ppf(0.95, fewest)))
    return f"noise {1 - part:.2%} short in all rounds, or {1 - alone:.2%} short in one"


def _repeated_noise(files: RunFiles, alpha: float) -> str | None:
    return "noise of one round that is that of another" if len(_noise(files)) > 1 else None


def _shaped_noise(files: RunFiles, alpha: float) -> str | None:
    found = _noise(files)
    if not found:
        return None
    clamp = clamp_that_is_found(sum(one.noise.entries for one in found), alpha / 4)
    correlation = max(correlation_that_is_found(one.noise.entries, alpha / 2 / len(found)) for one in found)
    tiled = f", or coordinates with correlation {correlation:.2f}" if correlation < 1 else ""
    return f"noise cut off at {clamp:.2f} standard deviations{tiled}"


def _cohort_sizes(files: RunFiles, alpha: float) -> str | None:
    law, rounds = files.sampler.law, len(files.rounds)
    if not isinstance(law, PoissonSampling):
        return "one cohort of another size" if not isinstance(law, Schedule) else "a size that the schedule excludes"
    mean = files.sampler.expected
    spread = math.sqrt(mean * (1 - law.probability) / rounds)
    visible = (_LIKELY + float(-ndtri(alpha / 6))) * spread / mean
    fixed = 1.0 / rounds**0.5 < 0.25
    return f"cohorts {visible:.0%} too large or small on average" + (", or of a constant size" if fixed else "")


def _members(files: RunFiles, alpha: float) -> str | None:
    law, rounds = files.sampler.law, len(files.rounds)
    if law.probability >= 1:
        return "a cohort without one of the clients"
    if isinstance(law, Schedule):
        return "a client in a round that its schedule excludes"
    clients = files.config.federation.clients
    mean = rounds * law.probability
    often = mean + (float(-ndtri(alpha / 6 / clients)) + _LIKELY) * math.sqrt(mean * (1 - law.probability))
    seldom = f", or a client drawn {math.ceil(often)} times in place of {mean:.1f}" if often <= rounds else ""
    return f"a cohort that is drawn twice{seldom}"


def _custom_draws(files: RunFiles, alpha: float) -> str | None:
    who = files.sampler
    spread = math.sqrt((1 - who.law.probability) / (ROUNDS * who.expected))
    share = (_LIKELY + float(-ndtri(FALSE_ALARM / 50 / who.clients))) * spread
    return f"a sampler whose cohorts are {share:.1%} too large or small on average"


def _counts(files: RunFiles, alpha: float) -> str | None:
    rounds = len(files.results)
    part = math.sqrt(float(chi2.ppf(alpha / 6, rounds) / chi2.ppf(0.95, rounds)))
    return f"a count without noise, or with noise {1 - part:.0%} short"


def _skips(files: RunFiles, alpha: float) -> str | None:
    skipped, rounds = len(files.rounds) - len(files.results), len(files.rounds)
    if not skipped or 2 / math.comb(rounds, skipped) >= alpha:
        return None
    return f"a loop that skips the {skipped} smallest (or largest) of {rounds} cohorts"


def _of_sums(text: str) -> WouldFind:
    return lambda files, alpha: text if files.config.privacy is not None else None


def _seeds(files: RunFiles, alpha: float) -> str | None:
    if files.sampler.law.probability >= 1:
        return None
    return "a cohort that is (secure) or is not (simulated) the one of run.seed"


def _least_epsilon(files: RunFiles, alpha: float) -> str | None:
    least = least_epsilon(files, files.delta)
    return None if least is None else f"a stated epsilon below {downwards(least)}"


def _divisor(files: RunFiles, alpha: float) -> str | None:
    divisors = np.array([one.divisor or 0.0 for one in files.results])
    return "a sum divided by another number" if len(divisors) and files.config.privacy is not None else None


_WOULD_FIND: Mapping[str, WouldFind] = {
    "ledger is intact": "a line that was changed, removed or moved",
    "epsilon follows from the ledger": "a stated epsilon 1e-6 below that of the ledger",
    "epsilon is possible": _least_epsilon,
    "epsilon keeps to the plan": "an epsilon above the planned one",
    "summary names what ran": "another unit, adjacency, sampler, noise or clip norm in the summary",
    "all files have the same rounds": "a round that is missing in one file, or an end that the budget did not cause",
    "every round is charged": "a round without its line in the ledger",
    "every round is charged once": "a round without its line in the ledger, or with two",
    "ledger follows the configuration": "a line with another mechanism, clip norm, noise or sampler",
    "ledger follows the plan": "a line with another mechanism, clip norm, noise or sampler",
    "all files are of one run": "a file of another run",
    "model is the run's": "a model with one other weight",
    "other summary values follow": "a recomputed value that differs by 1e-6; a score by 1e-3",
    "metrics agree with other files": "a last line, an uplink or a best accuracy that differs by 1e-6",
    "project was charged alike": "a release that the project was not charged for",
    "withdrawn charges": "a withdrawn charge that the project has",
    "certificate is computed again": "a certificate that this code does not compute",
    "rows are bounded": _of_sums("a row 1e-9 beyond the clip norm"),
    "sums are of what went in": _of_sums("a row or vector of 1e-5 of the sum's largest norm beside the sum"),
    "model moves by what was released": "a step that differs by 1e-5 of the model's norm",
    "uploads are as accounted": "an upload more or less, or a missing share of noise",
    "noise is as large as charged": _short_noise,
    "noise is fresh in every round": _repeated_noise,
    "noise is shaped as charged": _shaped_noise,
    "cohort sizes follow the sampler": _cohort_sizes,
    "members follow the sampler": _members,
    "custom sampler draws as it states": _custom_draws,
    "cohorts follow the seed only if simulated": _seeds,
    "denominator is public": _divisor,
    "counts are noised": _counts,
    "skipping does not depend on the cohort": _skips,
    "loaded code is the run's code": "a file of custom code with one other byte",
    "coordinates are chosen by public data": "a public sample that a client holds, other samples in a round, "
    "or a first choice that is nearer to that of other samples",
    "canaries follow the seed": "a canary with another direction or coin flip",
}
