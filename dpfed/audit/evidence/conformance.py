"""Checks that a run's ledger agrees with its other files, and that its summary agrees with the ledger."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from accounting.budget.certificates import Certificate
from accounting.compose import lower_bound, pld
from accounting.errors import AccountingError, EditedLedger, LedgerError
from accounting.ledger import Aborted, Entry, Release
from accounting.mechanisms import with_whole_noise
from accounting.rounding import downwards, upwards
from dpfed.audit.evidence.cohort_distribution import charge_covers
from dpfed.audit.evidence.record_steps import delta_of_records, steps_follow_configuration
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.evidence.summary_evidence import (
    are_equal_values,
    protection_problem,
    values_from_ledger,
)
from dpfed.audit.verdict import Finding, rounds_text
from dpfed.errors import DpfedError
from dpfed.methods import choices
from dpfed.methods.choices import tolerated_fraction
from dpfed.records.reading import InvalidRecord, Unavailable
from dpfed.records.summary import PROJECT
from dpfed.runs.summary import certificate_claim

_SAME = 1e-6
"""Relative difference allowed between two computations of an epsilon, by different versions of numpy and scipy."""
_MOST_SAMPLES = 100_000_000
"""Largest number of samples of a certificate that an audit draws again."""
_STREAMED = 1e-3
"""Relative difference allowed for epsilons of metrics.jsonl, which are computed by another order of convolutions."""


def ledger_is_intact(files: RunFiles) -> Finding:
    """Check that every line of the ledger has the hash of its content and of the line before."""
    try:
        ledger = files.ledger
    except EditedLedger as error:
        return False, str(error)
    except LedgerError as error:
        raise Unavailable(str(error)) from None
    return True, (
        f"{len(ledger.entries)} lines after the header, each with the hash of its content and of the line before."
    )


def epsilon_follows_ledger(files: RunFiles) -> Finding:
    """Check that the summary's epsilon, and the last epsilon in metrics.jsonl, are those of the ledger's releases."""
    stated, found, spent = files.epsilon, files.guarantee, files.spent_guarantee.epsilon
    files.compared_keys.add("epsilon")
    detail = (
        f"the ledger gives {upwards(found.epsilon, digits=6)} at delta {upwards(found.delta)}, summary.json states "
        f"{upwards(stated, digits=6)}."
    )
    if not math.isclose(stated, found.epsilon, rel_tol=_SAME):
        low = "more than the ledger gives: lines may be missing"
        if stated < found.epsilon:
            early = "less than the epsilon of the plan or budget, which a run that ended early must state"
            low = "less than was spent" if stated < spent * (1 - _SAME) else early
        return False, f"{detail} That is {low}."
    last = files.published_rounds[-1].epsilon if files.published_rounds else None
    if last is None or not (
        any(math.isclose(last, one, rel_tol=_STREAMED) for one in (spent, stated))
        or _is_valid_smaller_epsilon(files, last)
    ):
        return False, (
            f"{detail} The last line of metrics.jsonl states {last}, the ledger's releases give {upwards(spent)}."
        )
    return True, detail


def _is_valid_smaller_epsilon(files: RunFiles, epsilon: float) -> bool:
    """Return True if the epsilon is below the configured accountant's, and is valid by the best accountant.

    A run uses the closed form for plain Gaussians with any configured accountant.
    """
    if epsilon >= files.spent_guarantee.epsilon:
        return False
    best = files.trusted_ledger.if_fixed_in_advance(files.delta, with_lower_bound=False)
    return math.isclose(epsilon, best.epsilon, rel_tol=_STREAMED)


def summary_states_the_claim(files: RunFiles) -> Finding:
    """Check that the values that summary.json must state with an epsilon agree with the ledger and the
    configuration.
    """
    config, federation, header = files.config, files.config.federation, files.trusted_ledger.header
    try:
        stated = files.summary.to_dict()
    except InvalidRecord as error:
        return False, str(error)
    delta = _promised_delta(files)
    expected: dict[str, object] = {
        "unit": header.unit,
        "adjacency": files.guarantee.adjacency if files.trusted_ledger.releases else files.summary.adjacency,
        "sampling": federation.sampling,
        "clients": federation.clients,
        "cohort": int(files.sampler.expected),
        "randomness": header.randomness,
        "rounds": len(files.published_rounds),
        "aborted_rounds": sum(not one.has_result for one in files.published_rounds),
        "delta": delta if delta is not None else header.about.get("delta"),
        "method": config.method.name,
        "dataset": config.data.name,
        "model": config.model.name,
        "aggregation": config.aggregation.kind,
        "seed": config.run.seed,
        "for_release": config.run.for_release,
        **({} if "run" in header.about else dict.fromkeys(PROJECT)),
        **values_from_ledger(files),
    }
    wrong = [
        f"{key} is {stated.get(key)!r}, not {value!r}"
        for key, value in expected.items()
        if not are_equal_values(stated.get(key), value)
    ]
    unprotected = protection_problem(files)
    files.compared_keys |= {*expected, "not_protected"}
    if wrong or unprotected is not None:
        return False, "summary.json: " + "; ".join([*wrong, *([unprotected] if unprotected else [])]) + "."
    return True, (
        "method, unit, adjacency, sampling, clients, cohort, rounds, delta, noise, clip norm, epsilon against the "
        "server and against hostile clients, for_release and the limitations of the guarantee in summary.json agree "
        "with config.toml and the ledger."
    )


def every_round_is_charged(files: RunFiles) -> Finding:
    """Check that every round is in the ledger once: as a release, or as a round without result and publication."""
    repeatable = files.trusted_ledger.header.randomness == "simulated"
    may_end = choices.may_abort_round(files.config, tolerated_fraction(files.config))
    left_out = not repeatable and files.sampler.law.is_schedule  # an interrupted round is not repeated
    problems = defaultdict[str, list[int]](list)
    for one in files.published_rounds:
        entries = files.entries.get(one.round, ())
        problem = _charging_problem(entries, not one.has_result, repeatable, left_out)
        if not one.has_result and not may_end and not left_out:
            problem = "ended without a result, which this configuration does not allow"
        if problem:
            problems[problem].append(one.round)
    for problem, number in _contradicted_aborts(files):
        problems[problem].append(number)
    if problems:
        return False, "; ".join(f"{rounds_text(rounds)}: {problem}" for problem, rounds in problems.items()) + "."
    beyond = len(files.entries.keys() - {one.round for one in files.published_rounds})
    aborted = sum(not one.has_result for one in files.published_rounds)
    return True, (
        f"{len(files.published_rounds)} rounds, each with its line in the ledger; {aborted} of them ended without a "
        "result and did not change the model." + (f" {beyond} more were charged and not published." if beyond else "")
    )


def _charging_problem(entries: tuple[Entry, ...], aborted: bool, repeatable: bool, left_out: bool) -> str | None:
    if not entries:
        return "ended without a result, and has no line in the ledger" if aborted else "was released without a charge"
    if (repeatable or left_out) and len(entries) > 1:
        return "is in the ledger more than once, although it was not repeated with new noise"
    if aborted and not left_out and isinstance(entries[-1], Release) and entries[-1].noise_placement != "uploads":
        return "is charged as a release, but published as a round without result"
    if not aborted and isinstance(entries[-1], Aborted):
        return "was published, although the ledger says that it ended without a result"
    return None


def _contradicted_aborts(files: RunFiles) -> Iterator[tuple[str, int]]:
    """Yield problem and round for rounds without result in metrics.jsonl for which other values show a result."""
    for before, one in zip(files.published_rounds, files.published_rounds[1:], strict=False):
        changed = None not in (before.test_accuracy, one.test_accuracy) and before.test_accuracy != one.test_accuracy
        if not one.has_result and (changed or before.clip_norm != one.clip_norm):
            yield "ended without a result, yet accuracy or clip norm changed", one.round
    for shown, facts in zip(files.published_rounds, files.rounds, strict=True):
        if shown.has_result != facts.has_result:
            yield "metrics.jsonl and diagnostics.jsonl disagree on whether it has a result", facts.round
        elif not facts.has_result and (facts.arrived or facts.noise is not None or facts.divisor is not None):
            yield "ended without a result, yet there is a sum", facts.round


def ledger_follows_configuration(files: RunFiles) -> Finding:
    """Check that each line is the one that the configuration gives for the number of uploads that arrived."""
    header, config = files.trusted_ledger.header, files.config
    unit = "record" if config.local.record is not None else "client"
    if (header.unit, header.clients, header.randomness) != (unit, config.federation.clients, config.run.randomness):
        return False, (
            f"the ledger's header states {header.clients} clients, unit {header.unit!r}, randomness "
            f"{header.randomness!r}; config.toml states {config.federation.clients}, {unit!r}, "
            f"{config.run.randomness!r}."
        )
    if unit == "client" and config.privacy is None:
        return False, "config.toml has no [privacy], so the run cannot have been private."
    if problem := plan_problem(files, "config.toml"):
        return False, problem
    if unit == "record":
        return steps_follow_configuration(files)
    wrong = {
        number: words
        for number in files.releases
        if (words := _difference_from_configuration(files, number)) is not None
    }
    if wrong:
        first = min(wrong)
        return False, f"{rounds_text(sorted(wrong))}: {wrong[first]} (round {first})."
    return True, (
        "mechanism, sampler, adjacency, clip norm, noise and denominator of every line are those that config.toml "
        f"gives, recomputed{earlier_calibration_text(files)}."
    )


def plan_problem(files: RunFiles, source: str, *, kinds: bool = True) -> str | None:
    """Return text on a difference between the plan in the ledger's header and the plan that `source` gives.

    Rounds, budget and, if `kinds` is true, mechanisms are compared. Returns None if there is no difference, and for
    ledgers without a plan (version 0.2).
    """
    plan, table = files.trusted_ledger.header.plan, files.private_table
    if plan is None or table is None:
        return None
    rounds, prolongable = files.config.federation.rounds, None not in (table.epsilon, table.noise_multiplier)
    if plan.rounds is None or plan.rounds > rounds or (plan.rounds < rounds and not prolongable):
        return f"the ledger's header plans {plan.rounds} rounds, {source} has {rounds}."
    if plan.spare != files.config.run.spare_rounds:
        return f"the ledger's header has {plan.spare} spare rounds, {source} {files.config.run.spare_rounds}."
    if not are_equal_values(plan.epsilon, table.epsilon):
        return f"the ledger's header has a budget of {plan.epsilon}, {source} of {table.epsilon}."
    if plan.delta is not None and not are_equal_values(plan.delta, files.delta):
        return f"the ledger's header has its budget at delta {plan.delta}, the run states {files.delta}."
    if kinds and files.releases and files.config.privacy is not None:
        try:
            target, expected = files.promise.privacy_target, files.promise.run(plan.rounds + plan.spare).to_dict()
        except Unavailable:
            raise
        except (DpfedError, AccountingError) as error:
            return f"{source} does not give the planned releases ({error})."
        if not charge_covers(target.mechanism, files.sampler.law, seen=target.private.in_every_upload):
            return f"the releases are not charged for the cohorts that {source} gives, by {files.sampler.law}."
        planned = [one.to_dict() for one in plan.largest_charges]
        if planned and not are_equal_values([expected], planned):
            return f"the ledger's header plans releases that differ from those of {source}."
    return None


def earlier_calibration_text(files: RunFiles) -> str:
    """Return text on a noise multiplier or clip norm that this version would calibrate differently; empty if equal.

    An earlier version may have calibrated more noise, or a smaller clip norm; another processor differs by rounding.
    """
    run, now = files.promise.privacy_target, files.promised_today.privacy_target
    found, enough = run.noise_multiplier, now.noise_multiplier
    words = " that the run was calibrated to"
    if found and enough and not are_equal_values(found, enough):
        return f", with the noise multiplier{words}: {upwards(found)}; this version requires {upwards(enough)} only"
    if not are_equal_values(run.clip_norm, now.clip_norm):
        return (
            f", with the clip norm{words}: {downwards(run.clip_norm)}; this version allows {downwards(now.clip_norm)}"
        )
    return ""


def _difference_from_configuration(files: RunFiles, number: int) -> str | None:
    """Return text on a difference between a round's line and the one that the configuration gives; None if equal."""
    release, facts = files.releases[number], files.rounds[number - 1] if number <= len(files.rounds) else None
    if facts is None:
        return None  # charged and never published
    try:
        clip_norm = files.clip_norm_before(number)
        expected = files.promise.release(clip_norm=clip_norm, number=number - 1, uploads=facts.arrived).to_dict()
    except Unavailable:
        raise
    except (DpfedError, AccountingError) as error:
        return f"config.toml does not give this line ({error})"
    return first_difference(expected, replace(release, nonce=None).to_dict(), "config.toml")


def first_difference(expected: Mapping[str, object], found: Mapping[str, object], source: str) -> str | None:
    """Return text on the first key whose value in a ledger line (`found`) differs from the value that `source` gives.

    Returns None if the lines agree.
    """
    different = [
        key for key in expected.keys() | found.keys() if not are_equal_values(expected.get(key), found.get(key))
    ]
    if not different:
        return None
    key = min(different)
    return f"the ledger has {key} = {found.get(key)}, {source} gives {expected.get(key)}"


def _promised_delta(files: RunFiles) -> float | None:
    """Return the configured delta; for records, if none is configured (version 0.2), the delta from their number."""
    table = files.private_table
    if table is not None and table.delta is not None:
        return table.delta
    return delta_of_records(files)


def epsilon_reaches_lower_bound(files: RunFiles) -> Finding:
    """Check that the stated epsilon is at least a proven lower bound (`accounting.compose.lower_bound`).

    Delta is computed from the configuration and the number of clients. The lower bound is computed independently of the
    accountant; for some mechanisms none is known.
    """
    delta = _promised_delta(files) if files.private_table else None
    least = None if delta is None else least_epsilon(files, delta)
    if least is None or delta is None:
        return True, "no lower bound is known for this mechanism, so epsilon was not compared with one."
    stated = files.epsilon
    detail = (
        f"epsilon of these releases is at least {downwards(least)} at delta {upwards(delta)}; {upwards(stated)} is "
        "stated."
    )
    return stated >= least * (1 - _SAME), detail


def least_epsilon(files: RunFiles, delta: float) -> float | None:
    """Return a lower bound on the epsilon at `delta` of the ledger's releases; None if none is known."""
    ledger = files.trusted_ledger
    has_none = ledger.header.unit == "record" or not ledger.released_rounds.is_exact
    mechanism = None if has_none else ledger.mechanism()
    if mechanism is None or not pld.supports(with_whole_noise(mechanism)):
        return None
    return lower_bound.epsilon(mechanism, delta=delta)


def certificate_is_reproduced(files: RunFiles) -> Finding:
    """Check the certificate of summary.json: sample again from the ledger's releases, without using a cache."""
    files.compared_keys.add("certificate")
    stated, claim = files.summary.certificate, certificate_claim(files.config, files.trusted_ledger, files.guarantee)
    if claim is None:
        return stated is None, (
            "this run can have no certificate: it ended early, was prolonged, or is charged to a project."
        )
    if stated is None:
        return None, "the summary has no certificate: sampling gave no epsilon below the one that holds with certainty."
    try:
        found = Certificate.from_dict(dict(stated))
        known = found.samples <= _MOST_SAMPLES and claim.is_of(found)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError):
        return False, "summary.json: its certificate is not valid."
    words = f"epsilon {upwards(found.epsilon)} by {found.samples:,} samples, wrong with probability {found.failure:.0e}"
    if not known:
        return False, f"{words}: does not belong to this ledger's releases, delta, and the seed that is their hash."
    again = claim.recomputes(found)
    return again, f"{words}: sampling again {'confirms' if again else 'refutes'} it."
