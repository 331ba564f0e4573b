"""Figure of a run: accuracy (or loss) over rounds and over megabytes, and epsilon over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accounting.rounding import upwards
from dpfed.report.figures.figure import figure, plain_log_ticks
from dpfed.report.figures.inline import add_tooltips
from dpfed.report.units import percent_text, significant_text, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dpfed.records.metrics import MetricsLine


def plot_run(
    name: str, lines: Sequence[MetricsLine], path: Path | None = None, *, ax: Sequence[Axes] | None = None
) -> Figure:
    """Return the figure of a run, new or drawn on the panels `ax`, and write it to `path` if given.

    Its two panels show test accuracy over rounds and over uplink megabytes; a private run has a third, epsilon over
    rounds. Without classes, the test loss replaces accuracy.
    """
    charged = [(line, line.epsilon) for line in lines if line.epsilon is not None]
    tested = [(line, line.test_loss) for line in lines if line.test_loss is not None and line.test_accuracy is None]
    label = "test loss"
    if not tested:
        tested = [(line, 100.0 * line.test_accuracy) for line in lines if line.test_accuracy is not None]
        label = "test accuracy, %"
    height, marker = [score for _, score in tested], "o" if len(tested) < 30 else None
    rounds, megabytes = [float(line.round) for line, _ in tested], [line.uplink_megabytes for line, _ in tested]
    with figure(path, columns=3 if charged else 2, ax=ax) as axes:
        for axis, at in ((axes[0], rounds), (axes[1], megabytes)):
            axis.plot(at, height, marker=marker, markersize=3, label=name)
            add_tooltips(axis, at, height, [metrics_line_text(line) for line, _ in tested])
            axis.set_ylabel(label)
        axes[0].set_xlabel("rounds")
        axes[0].xaxis.get_major_locator().set_params(integer=True)
        axes[0].legend(frameon=False, fontsize=9)
        axes[1].set(xlabel="uplink of all clients, MB (log)", xscale="log")
        plain_log_ticks(axes[1])
        if charged:
            rounds, spent = [float(line.round) for line, _ in charged], [epsilon for _, epsilon in charged]
            axes[2].plot(rounds, spent)
            add_tooltips(axes[2], rounds, spent, [metrics_line_text(line) for line, _ in charged])
            axes[2].set(xlabel="rounds", ylabel="epsilon spent (upper bound)")
            axes[2].set_ylim(bottom=0)
    drawn: Figure = axes[0].figure
    return drawn


def metrics_line_text(line: MetricsLine) -> str:
    """Return a short text of a line of metrics.jsonl: round, score, epsilon and uplink."""
    words = [f"round {line.round:,}"]
    if line.test_accuracy is not None:
        words.append(f"accuracy {percent_text(line.test_accuracy)}")
    elif line.test_loss is not None:
        words.append(f"test loss {significant_text(line.test_loss, 4)}")
    if line.epsilon is not None:
        words.append(f"epsilon {upwards(line.epsilon)}")
    if line.uplink_megabytes:
        words.append(size_text(1e6 * line.uplink_megabytes))
    return ", ".join(words)
