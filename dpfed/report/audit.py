"""report.html and audit.png of an audited upload."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import jinja2
import numpy as np

from accounting.rounding import downwards, upwards
from dpfed.audit.claims import trade_off
from dpfed.audit.clopper_pearson import upper_limit
from dpfed.audit.round_audit import ENOUGH, NOT_TESTED, PairTest, UploadAudit
from dpfed.audit.verdict import FALSE_ALARM
from dpfed.errors import RunError
from dpfed.report.figures.audit import Observed, plot_audit
from dpfed.run.durable_files import put

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #e4e4e4; vertical-align: top; text-align: left; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
img { max-width: 100%; } .lead { font-size: 1.15rem; } .fail { background: #fde8e4; padding: .5rem 1rem; }
.pass { background: #e8f3ea; padding: .5rem 1rem; } .inconclusive { background: #fff4e0; padding: .5rem 1rem; }
</style>
<h1>{{ title }}</h1>
<p class="lead {{ audit.verdict }}"><b>{{ audit.verdict }}.</b> {{ verdict }}</p>
<p>The claim, as the ledger would write it for one round: {{ claim }}. Tested is the whole privacy profile, delta at
every epsilon, not this one point of it.</p>
<img alt="claimed profile and observed error rates" src="data:image/png;base64,{{ plot }}">
<h2>Pairs of neighbours</h2>
<p>In each trial a whole round runs, as in training: cohort, map, bound, noise, compression, bytes, sum, decoding,
ledger, server. One client has learnt one of two updates, all others the same, and an adversary who knows both updates
and sees the new state says which it was. <i>Gap</i>:
how far apart the two releases are without noise, over the claimed sensitivity; at 1 the pair is as bad as the claim
allows. <i>Epsilon at least</i>: at delta = {{ delta }}, for any mechanism; in brackets if it is a Gaussian one. All
statements of a column hold together with {{ confidence }} confidence.</p>
<table><tr><th>pair<th>score<th>gap<th>trials<th>errors<th>epsilon at least<th>claim
{% for row in rows %}<tr><td>{{ row.pair }}<td>{{ row.score }}<td class="n">{{ "%.4g"|format(row.gap) }}
<td class="n">{{ "{:,}".format(row.trials) }}<td>{{ row.errors }}<td class="n">{{ row.bound }}
<td>{{ "refuted" if row.rejected else "stands" }}{% endfor %}</table>
<h2>Checks</h2>
<p>Each finds faults that trials would hardly see, and fails on a correct round with probability at most
{{ false_alarm }}.</p>
<table>{% for check in audit.checks %}<tr><td>{{ check.name }}<td>{{ "passed" if check.passed else "FAILED" }}
<td>{{ check.detail }}{% endfor %}</table>
<h2>What this does not show</h2>
<ul>
<li>A pass is no proof. It says that these pairs, scores and trials found nothing; the proof is in the accountant's
theorem and its conditions, which these checks sample.</li>
<li>Faults smaller than the trials resolve stay unseen, and so do faults that need another update, another state of the
model, other settings than the audited ones, or several rounds (but for shared noise, which is checked).</li>
<li>Also not tested: {{ audit_not_tested }}.</li>
<li>The network is small (d = {{ audit.dimension }}) and {{ clients }}; the code path is under test, not the size.</li>
<li>Not covered: the composition over rounds and sampling (recomputed from a run's ledger by
<code>dpfed audit run</code>), who sees what besides the release, the quality of the operating system's randomness, and
floating-point attacks on continuous noise.</li>
</ul>
<p>Repeat: seed {{ audit.seed }}. {{ "%.0f"|format(audit.seconds) }} seconds.</p>
</html>
"""


def write_audit(audit: UploadAudit, folder: Path) -> None:
    """Write audit.json, audit.png and report.html into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        put(folder / "audit.json", json.dumps(audit.to_dict(), indent=2, allow_nan=False).encode())
        _plot(audit, folder / "audit.png")
        put(folder / "report.html", _page(audit, folder / "audit.png").encode())
    except OSError as error:
        raise RunError(f"{folder}: the report cannot be written ({error.strerror}).") from None


def verdict_words(audit: UploadAudit) -> str:
    """The verdict in a sentence or two."""
    refuted = [one for one in audit.tests if one.test.rejected]
    broken = [check.name for check in audit.checks if not check.passed]
    words = []
    if refuted:
        test = refuted[0].test
        words.append(
            f"The claimed profile is refuted by “{refuted[0].pair}”: at epsilon {downwards(test.epsilon)} the trials "
            f"need delta of at least {downwards(test.seen)}, claimed is {upwards(test.claimed)}."
        )
    if broken:
        words.append(f"Checks that failed: {', '.join(broken)}.")
    if words:
        return " ".join(words)
    found = (
        f"Epsilon {upwards(audit.claim.epsilon)} at delta {upwards(audit.claim.delta)} is claimed; {audit.trials:,} "
        f"trials and {len(audit.checks)} checks found nothing against it, with a pair that reaches "
        f"{audit.score_gap:.3g} of the claimed sensitivity. The trials would have found {audit.power.in_words()}."
    )
    if audit.verdict == "pass":
        return found
    if audit.score_gap < ENOUGH:
        return (
            f"No pair comes nearer to the claimed sensitivity than {audit.score_gap:.3g} of it (at least {ENOUGH:g} is "
            "needed): a claim that just fails would not have been seen."
        )
    return f"{found} That is too little for a pass: noise short by a fifth must be found. More trials may do."


def _page(audit: UploadAudit, plot: Path) -> str:
    claim = audit.claim
    page = jinja2.Environment(autoescape=True).from_string(_PAGE)
    return page.render(
        title=f"Audit of one upload: {audit.method}",
        audit=audit,
        audit_not_tested="; ".join(NOT_TESTED),
        verdict=verdict_words(audit),
        claim=f"{claim.to_dict()['kind']}, {claim.mechanism.adjacency} neighbours, {_seen(claim.seen)}, "
        f"epsilon at most {upwards(claim.epsilon)} at delta {upwards(claim.delta)}",
        plot=base64.b64encode(plot.read_bytes()).decode(),
        rows=[_row(one) for one in audit.tests],
        delta=upwards(claim.delta),
        confidence=f"{audit.confidence:.0%}",
        false_alarm=f"{FALSE_ALARM:g}",
        clients="one upload is looked at" if claim.seen == "uploads" else "the sum is of few clients",
    )


def _seen(what: str) -> str:
    return "every upload seen" if what == "uploads" else "only the sum seen"


def _row(one: PairTest) -> dict[str, object]:
    test = one.test
    return {
        "pair": one.pair,
        "score": one.score,
        "gap": one.gap,
        "trials": one.trials,
        "errors": f"{test.false_positives:,} of {test.trials0:,}, {test.false_negatives:,} of {test.trials1:,}",
        "bound": f"{downwards(one.lower_bound)} ({downwards(one.lower_bound_gdp)})",
        "rejected": test.rejected,
    }


def _plot(audit: UploadAudit, path: Path) -> None:
    epsilons = np.linspace(0.0, 1.3 * audit.claim.epsilon + 0.1, 300)
    rates = np.linspace(0.0, 1.0, 401)
    shares = len(audit.tests)
    pairs = [_observed(one, (1 - audit.confidence) / shares) for one in audit.tests]
    plot_audit(epsilons, audit.claim.profile(epsilons), rates, trade_off(audit.claim.profile, rates), pairs, path)


def _observed(one: PairTest, alpha: float) -> Observed:
    test = one.test
    limits = [
        float(upper_limit(count, trials, alpha=alpha / 2))
        for count, trials in ((test.false_positives, test.trials0), (test.false_negatives, test.trials1))
    ]
    return Observed(
        name=one.pair if one.score == "filter" else f"{one.pair} ({one.score})",
        rejected=test.rejected,
        false_positive_rate=test.false_positives / test.trials0,
        false_negative_rate=test.false_negatives / test.trials1,
        fpr_upper=limits[0],
        fnr_upper=limits[1],
    )
