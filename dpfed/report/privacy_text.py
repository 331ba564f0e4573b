"""Texts about a run's privacy, and quantities as text.

Quantities as text, rounded to nearest. Guarantees are printed by `accounting.rounding` instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from accounting.budget import Plan
from accounting.budget.certificates import Certificate
from accounting.compose.readings import Readings
from accounting.ledger.planned import FIXED
from accounting.rounding import downwards, upwards

if TYPE_CHECKING:
    from dpfed.records.summary import Summary

_BYTES = ("bytes", "kB", "MB", "GB", "TB", "PB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def percent_text(value: float | None) -> str:
    """Return a percentage: 0.8885 -> "88.85%"; a dash for None."""
    return "–" if value is None else f"{value:.2%}"


def size_text(count: float) -> str:
    """Return bytes, in powers of 1000, with three significant digits: 3884 -> "3.88 kB"."""
    value, power = float(count), 0
    while abs(value) >= 999.5 and power < len(_BYTES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:,.0f} {_BYTES[power]}" if not power else f"{significant_text(value)} {_BYTES[power]}"


def duration_text(seconds: float) -> str:
    """Return a duration: 9.23 -> "9.2 s"; 75 -> "1 min 15 s"; 3700 -> "1 h 2 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def significant_text(value: float, digits: int = 3) -> str:
    """Return the value with `digits` significant digits, without a power of ten below a million: 12.8929 -> "12.9"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits}g}"
    first = int(f"{value:.{digits - 1}e}".partition("e")[2])
    decimals = max(0, digits - 1 - first)
    return f"{value:,.{decimals}f}"


_FACTORS = 8
"""Largest number of factors of a noise schedule that are all printed."""


def privacy_statement(summary: Summary) -> str:
    """Return a sentence with the privacy of the run and all its conditions, followed by limitations."""
    if summary.no_statement:
        return f"No statement: nothing is claimed of this run's privacy. {summary.no_statement}"
    if summary.epsilon is None:
        return "This run is not private: the model may reveal anything about the clients' data."
    if has_no_release(summary):
        return (
            f"Nothing was released: none of {summary.rounds} rounds had a result. The model is the initial one, "
            "which depends on no client's data; epsilon is 0."
        )
    words = _epsilon_statement(summary) + certificate_text(summary)
    if summary.interrupted_charges:
        words += (
            f" Epsilon also includes {summary.interrupted_charges} rounds that were interrupted after their charge."
        )
    words += "".join(f" Condition: {note}." for note in summary.notes if "depend on results" in note or FIXED in note)
    if summary.randomness == "simulated":
        words += " Simulated: noise and cohorts come from a seed. This is an experiment, not for release."
    return words


def certificate_text(summary: Summary) -> str:
    """Return the text of the run's certificate by simulation; empty without a certificate."""
    if not summary.certificate:
        return ""
    try:
        found = Certificate.from_dict(dict(summary.certificate))
    except (TypeError, KeyError, ValueError):
        return " The certificate in summary.json is invalid."
    return (
        f" Certificate by {found.samples:,} samples: epsilon at most {upwards(found.epsilon)} at the same delta, wrong "
        f"with probability {found.failure:.0e}, which is part of delta; seed {found.seed[:16]}."
    )


def project_text(summary: Summary) -> str:
    """Return epsilon and delta of all runs of the project as text, with its condition; empty without a project."""
    if summary.project_epsilon is None:
        return ""
    at = f"{upwards(summary.project_epsilon)} at delta {upwards(summary.project_delta)}"
    return f"Epsilon at most {at} for all runs of {summary.project_ledger}. {summary.project_condition or ''}".rstrip()


def has_no_release(summary: Summary) -> bool:
    """Return True for a private run in which no round released a result."""
    return summary.epsilon is not None and summary.noise_placement is None


def _epsilon_statement(summary: Summary) -> str:
    epsilon = f"epsilon at most {upwards(summary.epsilon)} at delta {upwards(summary.delta)} for {summary.adjacency}"
    if summary.unit == "record":
        charged = "the worst client's steps"
        words = (
            f"Record-level differential privacy: {epsilon} of one record of any one client, against observers of the "
            f"uploads; {summary.rounds} rounds, each client charged for its own, Poisson batches, noise multiplier "
            f"{upwards(summary.noise_multiplier)} in every local step"
        )
    else:
        charged = "the same run"
        words = (
            f"Client-level differential privacy: {epsilon} neighbours, {sampling_text(summary)} {summary.clients} "
            f"clients, {summary.rounds} rounds, {noise_text(summary)}"
        )
    words += f"; accountant {summary.accountant}."
    if summary.lower_bound is not None:
        words += f" No account of {charged} can state less than {downwards(summary.lower_bound)}."
    return words


def noise_text(summary: Summary) -> str:
    """Return the mechanism of the run as text."""
    z, placement = summary.noise_multiplier, summary.noise_placement
    if placement is None:
        return "no release at all"
    if z is None:
        released = "sums of a fixed number of uploads" if placement == "coins" else "every upload"
        return f"Bernoulli samples in {released}"
    law = {"discrete-gaussian": "discrete Gaussian, ", "skellam": "Skellam, "}.get(summary.noise or "", "")
    where = {
        "server": "on the sum, added by the server",
        "clients": "on the sum, in shares of the clients",
        "uploads": "on every upload, before its compression",
        "local steps": "in every local step",
    }
    return f"{law}noise multiplier {upwards(z)}{_schedule_text(summary)} {where.get(placement, placement)}"


def _schedule_text(summary: Summary) -> str:
    """Return the noise schedule as text, with the planned rounds if the run ended early."""
    factors = summary.noise_schedule
    if not factors:
        return ""
    planned = summary.noise_schedule_rounds
    rounds = "the rounds" if planned in (None, summary.rounds) else f"{planned} planned rounds"
    return f" times {factors_text(factors)} in equal parts of {rounds},"


def readings_text(readings: Readings) -> tuple[str, str]:
    """Return two texts: bounds on every membership test, and mu of Gaussian DP with the smallest delta it describes."""
    rates = ", ".join(
        f"{upwards(most)} at {100 * rate:g}% false positives" for rate, most in readings.true_positive_rates.items()
    )
    test = f"best membership test: true positive rate at most {rates}; advantage at most {upwards(readings.advantage)}"
    least = upwards(readings.delta_min)
    if math.isinf(readings.mu):
        return test, f"Gaussian DP: no mu describes the profile down to delta {least}"
    return test, f"Gaussian DP: mu {upwards(readings.mu)} down to delta {least} (a summary, not a guarantee)"


def factors_text(factors: Sequence[float]) -> str:
    """Return the factors of a noise multiplier as text; of many, only the first, last, smallest and their number."""
    if len(factors) <= _FACTORS:
        return ", ".join(f"{one:.6g}" for one in factors)
    return f"{factors[0]:.6g} to {factors[-1]:.6g} ({len(factors)} factors, the least {min(factors):.6g})"


def sampling_text(summary: Summary) -> str:
    """Return the sampling of the account as text that precedes "N clients"."""
    if summary.noise_placement == "uploads":
        if summary.sampling == "cyclic":
            return "every upload seen and charged by the public order of"
        return "every upload seen and every round charged to all"
    return f"{sampler_name(summary.sampling)} sampling of {summary.cohort} out of"


def sampler_name(name: object) -> str:
    """Return the name of a sampler; Poisson, named after a person, has a capital letter."""
    return "Poisson" if name == "poisson" else str(name)


def sampler_text(plan: Plan) -> str:
    """Return a text on how the cohorts of a plan are drawn."""
    return plan.capped_sampling.description(plan.clients)


_NEIGHBOURS = {
    "add-remove": "one {unit} is added or removed",
    "replace-one": "one {unit} is replaced by another",
    "zero-out": "one {unit}'s contribution is replaced by zero",
    "any": "one {unit} is changed in any way",
}


def unit_text(summary: Summary) -> str:
    """Return the unit that the guarantee protects, as text."""
    changed = _NEIGHBOURS.get(str(summary.adjacency), f"{{unit}}: {summary.adjacency}")
    changed = changed.format(unit=summary.unit)
    if summary.unit == "record":
        return f"One record of any one client. Neighbouring data sets: {changed}."
    return f"One client, all of its data together, out of {summary.clients:,}. Neighbouring data sets: {changed}."


def adversary_text(summary: Summary) -> str:
    """Return the observers against whom the stated epsilon holds, and the trusted parties (table: SECURITY.md)."""
    if summary.unit == "record":
        return "Anyone who sees uploads or models, including the server."
    if summary.noise_placement == "uploads":
        charged = (
            "A client is charged for the rounds that the public order gives it."
            if summary.sampling == "cyclic"
            else "Every round is charged to every client."
        )
        return f"Anyone who sees uploads or models, including the server. {charged}"
    words = "Anyone who sees the models of all rounds"
    if summary.sampling != "all":
        words += " but does not know who took part in which round"
    return f"{words}. {_server_text(summary)}"


def _server_text(summary: Summary) -> str:
    if summary.aggregation == "plain":
        return "The server is trusted: it sees every upload."
    if summary.noise_placement == "coins":
        return "The server sees sums of Bernoulli samples and who took part: no epsilon is stated against it."
    if summary.noise_placement == "server":
        return "The server is trusted with sums before their noise; single uploads are masked."
    if summary.server_epsilon is None:
        return "The server sees noisy sums and who took part."
    return (
        f"Against the server itself, which sees noisy sums and who took part: epsilon at most "
        f"{upwards(summary.server_epsilon)}."
    )


def delta_text(summary: Summary) -> str:
    """Return delta as text, compared with 1 over the number of clients."""
    delta, clients = summary.delta or 0.0, summary.clients
    words = f"at delta {upwards(delta)}"
    if summary.unit == "client" and clients:
        words += f", {'below' if delta < 1 / clients else 'not below'} 1/{clients:,}"
    if summary.delta_charged_for_failures:
        words += f"; {upwards(summary.delta_charged_for_failures)} of it for rounds with too many clients drawn"
    return words
