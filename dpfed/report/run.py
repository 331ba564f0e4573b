"""report.html and curves.png of a finished run."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from accounting.rounding import downwards, upwards
from dpfed.errors import RunError
from dpfed.report.figures.run import plot_runs
from dpfed.run.durable_files import put
from dpfed.run.loop import Outcome
from dpfed.run.quantities import SAFELY

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
{% for warning in warnings %}<p class="warn">{{ warning }}.</p>{% endfor %}
<img alt="test accuracy and epsilon over the run" src="data:image/png;base64,{{ plot }}">
<table>{% for name, value in rows %}<tr><td>{{ name }}<td>{{ value }}{% endfor %}</table>
<p>config.toml repeats this run: <code>dpfed run config.toml</code>. ledger.jsonl holds every release; epsilon above was
computed from it alone. metrics.jsonl has one line a round. diagnostics.jsonl (cohorts and their members, clip counts,
times) is covered by no epsilon: do not publish it.</p>
</html>
"""


_APART = ("not_protected", "notes")
"""Keys of summary.json that are no numbers of the table."""

_COMPLETE = "The run is complete and saved; --resume makes the report."


def write_report(outcome: Outcome) -> None:
    """Write curves.png and report.html into the run folder."""
    summary = outcome.summary
    plot = outcome.folder / "curves.png"
    try:
        plot_runs({summary["method"]: outcome.metrics}, plot)
        picture = base64.b64encode(plot.read_bytes()).decode()
    except RunError as error:
        raise RunError(f"{error} {_COMPLETE}") from None
    except OSError as error:
        raise _not_written(plot, error) from None
    page = jinja2.Environment(autoescape=True).from_string(_PAGE)
    text = page.render(
        title=f"{summary['method']} on {summary['dataset']}",
        statement=statement(summary),
        warnings=[
            *(f"Not protected: {note}" for note in summary["not_protected"]),
            *(f"Note: {note}" for note in summary["notes"]),
        ],
        plot=picture,
        rows=[(name.replace("_", " "), _shown(name, value)) for name, value in summary.items() if name not in _APART],
    )
    target = outcome.folder / "report.html"
    try:
        put(target, text.encode())
    except OSError as error:
        raise _not_written(target, error) from None


def _not_written(file: Path, error: OSError) -> RunError:
    return RunError(f"{file}: cannot be written ({error.strerror}). {_COMPLETE}")


def statement(summary: dict[str, Any]) -> str:
    """The privacy of the run in one sentence, with everything that must be named; then what makes it unfit."""
    if summary["epsilon"] is None:
        return "This run is not private: its weights may reveal anything about the clients' data."
    words = _statement(summary)
    if summary.get("interrupted_charges"):
        words += f" Charged besides: {summary['interrupted_charges']} rounds that were interrupted after their charge."
    if summary.get("randomness") == "simulated":
        words += " Simulated: noise and cohorts come from a seed. This is an experiment, not for release."
    return words


def _statement(summary: dict[str, Any]) -> str:
    if summary["unit"] == "record":
        return (
            f"Record-level differential privacy: epsilon at most {upwards(summary['epsilon'])} at delta "
            f"{upwards(summary['delta'])} for {summary['adjacency']} of one record of any one client, whoever sees the "
            f"uploads; {summary['rounds']} rounds, each client charged for its own, Poisson batches, noise multiplier "
            f"{upwards(summary['noise_multiplier'])} in every local step; accountant {summary['accountant']}. No "
            f"account of the worst client's steps can state less than {downwards(summary['lower_bound'])}."
        )
    least = summary["lower_bound"]
    return (
        f"Client-level differential privacy: epsilon at most {upwards(summary['epsilon'])} at delta "
        f"{upwards(summary['delta'])} for {summary['adjacency']} neighbours, {sampling_words(summary)} "
        f"{summary['clients']} clients, {summary['rounds']} rounds, {noise_words(summary)}; accountant "
        f"{summary['accountant']}."
        + ("" if least is None else f" No account of the same run can state less than {downwards(least)}.")
    )


def noise_words(summary: Mapping[str, Any]) -> str:
    """What makes the run private, in words."""
    z, placement = summary["noise_multiplier"], summary["noise_placement"]
    if z is None:
        return (
            "coins under sums of a fixed number of uploads" if placement == "coins" else "noise and coins, each upload"
        )
    law = {"discrete-gaussian": "discrete Gaussian, ", "skellam": "Skellam, "}.get(summary.get("noise") or "", "")
    where = {
        "server": "on the sum, added by the server",
        "clients": "on the sum, in shares of the clients",
        "uploads": "on every upload, before its compression",
        "local steps": "in every local step",
    }
    return f"{law}noise multiplier {upwards(z)} {where[placement]}"


def sampling_words(summary: Mapping[str, Any]) -> str:
    """The sampling that the account rests on, before "... clients"."""
    if summary["noise_placement"] == "uploads":
        return "every upload seen and every round charged to all"
    return f"{summary['sampling']} sampling of {summary['cohort']} out of"


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name in SAFELY:
        return SAFELY[name](value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)
