"""Curves of one or more runs: accuracy (or loss) over rounds and over megabytes, epsilon over rounds."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accounting.rounding import upwards
from dpfed.report.figures.figure import figure, plain_log_ticks
from dpfed.report.figures.inline import ChartGroup, inline, tooltips
from dpfed.report.figures.looks import looks_of
from dpfed.report.units import percent, significant, size

Records = Sequence[Mapping[str, Any]]


def plot_runs(runs: Mapping[str, Records], path: Path | None) -> ChartGroup:
    """Draw test accuracy over rounds and over uplink megabytes, and epsilon over rounds where private; one line a run.

    Where no run has classes, the test loss in place of accuracy. Returns the panels for a page.
    """
    looks = looks_of(list(runs))
    private = any(record.get("epsilon") is not None for records in runs.values() for record in records)
    key, scale, label = _measured(runs.values())
    with figure(path, columns=3 if private else 2) as axes:
        for name, records in runs.items():
            tested = [record for record in records if record.get(key) is not None]
            charged = [record for record in records if record.get("epsilon") is not None]
            height = [scale * record[key] for record in tested]
            look = {"color": looks[name].colour, "linestyle": looks[name].style, "label": name}
            marker = "o" if len(tested) < 30 else None
            for axis, of_x in ((axes[0], "round"), (axes[1], "uplink_megabytes")):
                at = [record[of_x] for record in tested]
                axis.plot(at, height, marker=marker, markersize=3, **look)
                tooltips(axis, at, height, [line_words(record) for record in tested])
            if private:
                at, spent = [r["round"] for r in charged], [r["epsilon"] for r in charged]
                axes[2].plot(at, spent, **look)
                tooltips(axes[2], at, spent, [line_words(record) for record in charged])
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
        return inline(axes[0].figure, files="" if path is None else path.name)


def line_words(line: Mapping[str, Any]) -> str:
    """Return a line of metrics.jsonl as a person reads it."""
    words = [f"round {line['round']:,}"]
    if line.get("test_accuracy") is not None:
        words.append(f"accuracy {percent(line['test_accuracy'])}")
    elif line.get("test_loss") is not None:
        words.append(f"test loss {significant(line['test_loss'], 4)}")
    if line.get("epsilon") is not None:
        words.append(f"epsilon {upwards(line['epsilon'])}")
    if line.get("uplink_megabytes") is not None:
        words.append(size(1e6 * line["uplink_megabytes"]))
    return ", ".join(words)


def _measured(runs: Iterable[Records]) -> tuple[str, float, str]:
    """Key of metrics.jsonl, what it is multiplied by, and its name."""
    losses = any(
        record.get("test_loss") is not None and record.get("test_accuracy") is None for run in runs for record in run
    )
    return ("test_loss", 1.0, "test loss") if losses else ("test_accuracy", 100.0, "test accuracy, %")
