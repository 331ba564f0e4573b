"""The charts of a run: what was learnt, over rounds and over bytes, and what it cost in epsilon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accounting.rounding import upwards
from dpfed.report.chart import Chart, Mark, Series
from dpfed.report.units import percent, significant, size

Records = Sequence[Mapping[str, Any]]


def charts_of(metrics: Records) -> list[Chart]:
    """From the lines of metrics.jsonl; charts without a single mark are left out."""
    key, title = _measured(metrics)
    tested = [line for line in metrics if line.get(key) is not None]
    charged = [line for line in metrics if line.get("epsilon") is not None]
    height = _height(key)
    charts = [
        Chart(
            title=f"{title}, over rounds",
            xlabel="round",
            whole_x=True,
            series=[_series(title, tested, lambda line: line["round"], height)],
        ),
        Chart(
            title=f"{title}, over traffic",
            xlabel="sent by all clients, MB",
            series=[_series(title, tested, lambda line: line["uplink_megabytes"], height)],
        ),
        Chart(
            title="Epsilon spent, upper bound",
            xlabel="round",
            whole_x=True,
            from_zero=True,
            series=[_series("epsilon", charged, lambda line: line["round"], lambda line: line["epsilon"], colour=1)],
        ),
    ]
    return [chart for chart in charts if chart.series[0].marks]


def words_of(line: Mapping[str, Any]) -> str:
    """A line of metrics.jsonl, as a person reads it."""
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


def _series(
    name: str,
    lines: Records,
    x: Callable[[Mapping[str, Any]], float],
    y: Callable[[Mapping[str, Any]], float],
    colour: int = 0,
) -> Series:
    marks = [Mark(x=float(x(line)), y=float(y(line)), words=words_of(line)) for line in lines]
    return Series(name=name, marks=marks, colour=colour)


def _measured(metrics: Records) -> tuple[str, str]:
    """The key of the score, and what it is."""
    if any(line.get("test_accuracy") is not None for line in metrics):
        return "test_accuracy", "Test accuracy, %"
    return "test_loss", "Test loss"


def _height(key: str) -> Callable[[Mapping[str, Any]], float]:
    scale = 100.0 if key == "test_accuracy" else 1.0
    return lambda line: scale * float(line[key])
