"""report.html, audit.png and audit.json of an audited function."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import jinja2
import numpy as np

from accounting.rounding import downwards, upwards
from dpfed.audit.claims import trade_off
from dpfed.audit.clopper_pearson import upper_limit
from dpfed.audit.functions.audit import FunctionAudit, FunctionTest
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
img { max-width: 100%; } .lead { font-size: 1.15rem; padding: .5rem 1rem; }
.fail { background: #fde8e4; } .pass { background: #e8f3ea; } .inconclusive { background: #fff4e0; }
</style>
<h1>{{ title }}</h1>
<p class="lead {{ audit.verdict }}"><b>{{ audit.verdict }}.</b> {{ audit.in_words() }}</p>
<h2>What was tried</h2>
<p>The function was called {{ "{:,}".format(audit.trials) }} times. In each call a fair coin chose one of two inputs
that differ in one client only, and a guess was made from the output which of the two it was. Whoever can guess too
well learns more about one client than is claimed ({{ audit.claim.words }}).</p>
<table><tr><th>the client<th>looked at<th>of the claim<th>calls<th>epsilon at least<th>if Gaussian<th>claim
{% for row in rows %}<tr><td>{{ row.pair }}<td>{{ row.score }}<td class="n">{{ "%.2g"|format(row.gap) }}
<td class="n">{{ "{:,}".format(row.trials) }}<td class="n">{{ row.bound }}<td class="n">{{ row.gaussian }}
<td>{{ "refuted" if row.rejected else "stands" }}{% endfor %}</table>
<img alt="claimed profile and observed error rates" src="data:image/png;base64,{{ plot }}">
{% for check in audit.checks %}<p><b>{{ check.name }}</b>: {{ check.detail }}</p>{% endfor %}
<h2>What would have been found</h2>
<p>{{ found }} A sound function fails this audit with probability at most {{ alarm }}.</p>
<h2>What this does not show</h2>
<ul><li>A pass is no proof: it says that these inputs, scores and calls found nothing.</li>
<li>Faults that need other inputs, other settings, or several calls together stay unseen; so do the last bits of
floating-point noise, and whatever the function does besides what it returns.</li>
<li>One call is under test: not the composition over rounds, not the accountant.</li></ul>
<h2>Words</h2>
<table>
<tr><td>epsilon, delta<td>with probability 1 - delta, no output is more than e<sup>epsilon</sup> times as likely
with the client than without it
<tr><td>epsilon at least<td>what the guesses prove, for any function; all rows together with {{ confidence }}
confidence
<tr><td>if Gaussian<td>the same if the function adds Gaussian noise: then the guesses say more
<tr><td>of the claim<td>how far apart the two inputs' outputs are, over what the claim allows (an estimate); near 1,
the pair is as bad as it may be
<tr><td>direction, entries, size<td>where the outputs lie; which of their entries are zero; how long they are
</table>
<p>Repeat: seed {{ audit.seed }}. {{ "%.0f"|format(audit.seconds) }} seconds.</p>
</html>
"""


def write_function_audit(audit: FunctionAudit, folder: Path) -> None:
    """Write audit.json, audit.png and report.html into the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        put(folder / "audit.json", json.dumps(audit.to_dict(), indent=2, allow_nan=False).encode())
        _plot(audit, folder / "audit.png")
        put(folder / "report.html", _page(audit, folder / "audit.png").encode())
    except OSError as error:
        raise RunError(f"{folder}: the report cannot be written ({error.strerror}).") from None


def _page(audit: FunctionAudit, plot: Path) -> str:
    finds = audit.to_dict()["power"]["epsilon"]
    found = (
        "So few calls find nothing with probability 90%."
        if finds is None
        else f"A Gaussian mechanism of epsilon {upwards(finds)} or more would have failed with probability 90%, "
        "whatever these calls showed."
    )
    return (
        jinja2.Environment(autoescape=True)
        .from_string(_PAGE)
        .render(
            title=f"Audit of {audit.name}",
            audit=audit,
            plot=base64.b64encode(plot.read_bytes()).decode(),
            rows=[_row(one) for one in audit.tests],
            found=found,
            alarm=f"{1 - audit.confidence:.0%}",
            confidence=f"{audit.confidence:.0%}",
        )
    )


def _row(one: FunctionTest) -> dict[str, object]:
    return {
        "pair": one.pair,
        "score": one.score,
        "gap": one.gap,
        "trials": one.trials,
        "bound": downwards(one.lower_bound),
        "gaussian": downwards(one.lower_bound_gdp),
        "rejected": one.test.rejected,
    }


def _plot(audit: FunctionAudit, path: Path) -> None:
    epsilons = np.linspace(0.0, 1.3 * min(audit.claim.epsilon, 50.0) + 0.1, 300)
    rates = np.linspace(0.0, 1.0, 401)
    claimed = np.asarray(audit.claim.profile(epsilons))
    pairs = [_observed(one) for one in audit.tests]
    plot_audit(epsilons, claimed, rates, trade_off(audit.claim.profile, rates), pairs, path)


def _observed(one: FunctionTest) -> Observed:
    test = one.test
    limits = [
        float(upper_limit(count, trials, alpha=test.alpha / 2))
        for count, trials in ((test.false_positives, test.trials0), (test.false_negatives, test.trials1))
    ]
    return Observed(
        name=one.pair if one.score == "direction" else f"{one.pair} ({one.score})",
        rejected=test.rejected,
        false_positive_rate=test.false_positives / test.trials0,
        false_negative_rate=test.false_negatives / test.trials1,
        fpr_upper=limits[0],
        fnr_upper=limits[1],
    )
