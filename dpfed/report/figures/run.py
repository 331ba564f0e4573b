"""Curves of a run: accuracy (or loss) over rounds and over megabytes, epsilon over rounds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accounting.rounding import upwards
from dpfed.report.figures.figure import figure, plain_log_ticks
from dpfed.report.figures.inline import ChartGroup, inline, tooltips
from dpfed.report.units import percent, significant, size

Records = Sequence[Mapping[str, Any]]


def plot_run(name: str, records: Records, path: Path | None) -> ChartGroup:
    """Draw test accuracy over rounds and over uplink megabytes, and epsilon over rounds where private.

    Without classes, the test loss in place of accuracy. Returns the panels for a page.
    """
    charged = [record for record in records if record.get("epsilon") is not None]
    losses = any(record.get("test_loss") is not None and record.get("test_accuracy") is None for record in records)
    key, scale, label = ("test_loss", 1.0, "test loss") if losses else ("test_accuracy", 100.0, "test accuracy, %")
    tested = [record for record in records if record.get(key) is not None]
    height, marker = [scale * record[key] for record in tested], "o" if len(tested) < 30 else None
    with figure(path, columns=3 if charged else 2) as axes:
        for axis, of_x in ((axes[0], "round"), (axes[1], "uplink_megabytes")):
            at = [record[of_x] for record in tested]
            axis.plot(at, height, marker=marker, markersize=3, label=name)
            tooltips(axis, at, height, [line_words(record) for record in tested])
            axis.set_ylabel(label)
        axes[0].set_xlabel("rounds")
        axes[0].xaxis.get_major_locator().set_params(integer=True)
        axes[0].legend(frameon=False, fontsize=9)
        axes[1].set(xlabel="uplink of all clients, MB (log)", xscale="log")
        plain_log_ticks(axes[1])
        if charged:
            at, spent = [record["round"] for record in charged], [record["epsilon"] for record in charged]
            axes[2].plot(at, spent)
            tooltips(axes[2], at, spent, [line_words(record) for record in charged])
            axes[2].set(xlabel="rounds", ylabel="epsilon spent (upper bound)")
            axes[2].set_ylim(bottom=0)
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
