"""Evidence that a run's sums have bounded rows, the accounted number of uploads, and a public denominator."""

from __future__ import annotations

import math

from accounting.mechanisms.bernoulli import BernoulliAggregate
from dpfed.audit.evidence.noise_evidence import charged_noise, unsampled_mechanism
from dpfed.audit.evidence.promise import canaries_present
from dpfed.audit.evidence.run_files import RunFiles, clip_norm_before
from dpfed.audit.verdict import Finding, rounds_text
from dpfed.records.round import RoundRecord

_ROUNDING = 1e-9


def rows_are_bounded(files: RunFiles) -> Finding:
    """Check that no summed row was longer than the clip norm, on which the charge of every release relies."""
    if files.config.privacy is None:
        return True, "the unit is a record: gradients are clipped inside the clients, which these files do not show."
    norms = {one.round: one.largest_norm for one in files.opened_rounds if one.largest_norm is not None}
    over = [number for number, norm in norms.items() if norm > 1 + _ROUNDING]
    if over:
        return (
            False,
            f"{rounds_text(over)}: a row with a norm of {max(norms.values()):.6g} times the clip norm was summed.",
        )
    added = _rows_beyond_bound(files)
    if added:
        number, times = max(added.items(), key=lambda item: item[1])
        return False, (
            f"{rounds_text(list(added))}: a row with a norm of {times:.6g} times the bound (round {number}) was "
            "added to the sum without a clip."
        )
    unknown = [one.round for one in files.opened_rounds if one.largest_norm is None or one.longest_added is None]
    if unknown:
        return None, f"{rounds_text(unknown)}: diagnostics.jsonl does not state the norms of the summed rows."
    return True, (
        f"the longest row of {len(files.opened_rounds)} rounds has {max(norms.values(), default=0.0):.6f} of the clip "
        "norm; no row exceeds its bound when it is added to the sum."
    )


def _rows_beyond_bound(files: RunFiles) -> dict[int, float]:
    """Return the rounds with a summed row beyond its bound, and the row's norm over the bound."""
    found = {}
    for one in files.results if files.releases else ():
        bound = files.promise.longest_row(clip_norm_before(files, one.round)) if one.longest_added else None
        if bound is not None and one.longest_added is not None and one.longest_added > bound * (1 + _ROUNDING):
            found[one.round] = one.longest_added / bound
    return found


def denominator_is_public(files: RunFiles) -> Finding:
    """Check that sums are divided by the expected cohort, since a divisor from the drawn cohort would
    reveal its size.
    """
    if files.config.privacy is None:
        return True, "the unit is a record: the number of clients that took part is public."
    expected = files.sampler.expected
    wrong = [one for one in files.results if not math.isclose(one.divisor or 0.0, expected, rel_tol=_ROUNDING)]
    if wrong:
        return False, (
            f"{rounds_text([one.round for one in wrong])}: the sum was divided by {wrong[0].divisor}, the expected "
            f"cohort is {expected:g}."
        )
    return True, f"every sum was divided by {expected:g}, the expected cohort."


def uploads_are_as_accounted(files: RunFiles) -> Finding:
    """Check that no cohort exceeds the cap, sums are padded if required, and every charged noise share has arrived."""
    for one in files.opened_rounds:
        problem = _participants_problem(files, one)
        if problem is None and one.has_result:
            problem = _shares_problem(files, one)
        if problem is not None:
            return False, f"round {one.round}: {problem}."
    return True, _shares_text(files)


def _participants_problem(files: RunFiles, one: RoundRecord) -> str | None:
    if one.arrived > one.participants:
        return f"{one.arrived} uploads arrived, but {one.participants} were requested"
    canaries, cap = canaries_present(files.config, one.round), files.config.cohort_cap
    fill = files.promise.fill if files.config.privacy is not None and files.releases else None
    if cap is not None and one.cohort > cap:
        return f"{one.cohort} clients exceed the cap of {cap} that is charged"
    expected = max(one.cohort, fill or 0) + canaries
    if one.participants != expected:
        return f"{one.participants} uploads were requested, but {expected} are accounted"
    return None


def _shares_problem(files: RunFiles, one: RoundRecord) -> str | None:
    release = files.releases.get(one.round)
    charged = charged_noise(release) if release is not None else None
    if release is None or charged is None or one.noise is None:
        return None  # another check finds missing noise
    if release.noise_placement == "server":
        return (
            None if one.noise.draws == 1 else f"{one.noise.draws} draws of the server's noise, which must be drawn once"
        )
    expected = max(one.arrived, charged.least_draws) if release.detail.get("filled") else one.arrived
    if one.noise.draws != expected:
        return f"{one.noise.draws} noise shares arrived with {one.arrived} uploads, but {expected} are required"
    if one.noise.draws < charged.least_draws and release.noise_placement == "clients":
        return f"{one.noise.draws} noise shares arrived, but {charged.least_draws} are charged"
    return None


def _shares_text(files: RunFiles) -> str:
    if files.config.privacy is None or not files.releases:
        return "only the drawn clients sent uploads."
    release = next(iter(files.releases.values()))
    mechanism = unsampled_mechanism(release)
    if isinstance(mechanism, BernoulliAggregate):
        return f"no sum has more than {mechanism.cohort} Bernoulli uploads; smaller sums are padded, as accounted."
    if release.noise_placement == "clients":
        draws = [one.noise.draws for one in files.results if one.noise is not None]
        least = min(draws, default=min((one.arrived for one in files.results), default=0))
        return f"every sum has at least {least} noise shares, and at least the charged number."
    return "only the drawn clients sent uploads; the noise was added once."
