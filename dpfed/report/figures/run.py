"""Curves of one or more runs: accuracy (or loss) over rounds and over megabytes, epsilon over rounds."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpfed.report.figures.figure import figure, plain_log_ticks
from dpfed.report.figures.looks import looks_of

Records = Sequence[Mapping[str, Any]]


def plot_runs(runs: Mapping[str, Records], path: Path) -> None:
    """Test accuracy over rounds, over uplink megabytes, and (where private) epsilon over rounds; one line a run. Where
    no run has classes, the test loss in its place."""
    looks = looks_of(list(runs))
    private = any(record["epsilon"] is not None for records in runs.values() for record in records)
    key, scale, label = _measured(runs.values())
    with figure(path, columns=3 if private else 2) as axes:
        for name, records in runs.items():
            tested = [record for record in records if record.get(key) is not None]
            height = [scale * record[key] for record in tested]
            look = {"color": looks[name].colour, "linestyle": looks[name].style, "label": name}
            marker = "o" if len(tested) < 30 else None
            axes[0].plot([r["round"] for r in tested], height, marker=marker, markersize=3, **look)
            axes[1].plot([r["uplink_megabytes"] for r in tested], height, marker=marker, markersize=3, **look)
            if private:
                charged = [record for record in records if record["epsilon"] is not None]
                axes[2].plot([r["round"] for r in charged], [r["epsilon"] for r in charged], **look)
        axes[0].set_xlabel("rounds")
        axes[0].xaxis.get_major_locator().set_params(integer=True)
        axes[1].set_xlabel("uplink of all clients, MB (log)")
        axes[1].set_xscale("log")
        plain_log_ticks(axes[1])
        for axis in axes[:2]:
            axis.set_ylabel(label)
        if private:
            axes[2].set(xlabel="rounds", ylabel="epsilon spent (upper bound)")
            axes[2].set_ylim(bottom=0)
        axes[0].legend(frameon=False, fontsize=9)


def _measured(runs: Iterable[Records]) -> tuple[str, float, str]:
    """Key of metrics.jsonl, what it is multiplied by, and its name."""
    if any(record.get("test_loss") is not None and record["test_accuracy"] is None for run in runs for record in run):
        return "test_loss", 1.0, "test loss"
    return "test_accuracy", 100.0, "test accuracy, %"
