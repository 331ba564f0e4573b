"""report.html and curves.png of a finished run."""

from __future__ import annotations

import base64
from typing import Any

import jinja2

from dpfed.errors import RunError
from dpfed.federation import Outcome
from dpfed.plots.run import plot_runs

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; }
td { padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
img { max-width: 100%; } .lead { font-size: 1.15rem; } .warn { background: #fff4e0; padding: .5rem 1rem; }
</style>
<h1>{{ title }}</h1>
<p class="lead">{{ statement }}</p>
{% for note in notes %}<p class="warn">Not protected: {{ note }}.</p>{% endfor %}
<img alt="test accuracy and epsilon over the run" src="data:image/png;base64,{{ plot }}">
<table>{% for name, value in rows %}<tr><td>{{ name }}<td>{{ value }}{% endfor %}</table>
<p>config.toml repeats this run: <code>dpfed run config.toml</code>. ledger.jsonl holds every release; epsilon above was
computed from it alone. metrics.jsonl has one line a round. diagnostics.jsonl (cohort sizes, clip counts, times) is
covered by no epsilon: do not publish it.</p>
</html>
"""


def write_report(outcome: Outcome) -> None:
    """Write curves.png and report.html into the run folder."""
    summary = outcome.summary
    plot = outcome.folder / "curves.png"
    plot_runs({summary["method"]: outcome.metrics}, plot)
    page = jinja2.Environment(autoescape=True).from_string(_PAGE)
    text = page.render(
        title=f"{summary['method']} on {summary['dataset']}",
        statement=statement(summary),
        notes=summary["not_protected"],
        plot=base64.b64encode(plot.read_bytes()).decode(),
        rows=[(name.replace("_", " "), _shown(value)) for name, value in summary.items() if name != "not_protected"],
    )
    try:
        (outcome.folder / "report.html").write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{outcome.folder / 'report.html'}: cannot be written ({error.strerror}).") from None


def statement(summary: dict[str, Any]) -> str:
    """The privacy of the run in one sentence, with everything that must be named."""
    if summary["epsilon"] is None:
        return "This run is not private: its weights may reveal anything about the clients' data."
    if summary["unit"] == "record":
        return (
            f"Record-level differential privacy: epsilon at most {summary['epsilon']:.4f} at delta "
            f"{summary['delta']:.4g} for {summary['adjacency']} of one record of any one client, whoever sees the "
            f"uploads; {summary['rounds']} rounds, each client charged for its own, batches by coins, noise multiplier "
            f"{summary['noise_multiplier']:.4g} in every local step; accountant {summary['accountant']}. No account of "
            f"the worst client's steps can state less than {summary['lower_bound']:.4f}."
        )
    return (
        f"Client-level differential privacy: epsilon at most {summary['epsilon']:.4f} at delta {summary['delta']:.4g} "
        f"for {summary['adjacency']} neighbours, {summary['sampling']} sampling of {summary['cohort']} out of "
        f"{summary['clients']} clients, {summary['rounds']} rounds, noise multiplier "
        f"{summary['noise_multiplier']:.4g} added by the {summary['noise_placement']}; accountant "
        f"{summary['accountant']}. No account of the same run can state less than {summary['lower_bound']:.4f}."
    )


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
