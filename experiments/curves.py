"""Figure with curves of several runs: test accuracy over rounds and over megabytes, epsilon over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dpfed.report.figures.figure import distinct_looks, figure, plain_log_ticks

Point = Mapping[str, float | None]


def plot_curves(runs: Mapping[str, Sequence[Point]], path: Path) -> None:
    """Draw one line per run; a point has round, test_accuracy, epsilon and uplink_megabytes, each possibly None."""
    looks = distinct_looks(list(runs))
    private = any(point.get("epsilon") is not None for points in runs.values() for point in points)
    with figure(path, columns=3 if private else 2) as axes:
        for name, points in runs.items():
            look = {"color": looks[name].colour, "linestyle": looks[name].style, "label": name}
            tested = [point for point in points if point.get("test_accuracy") is not None]
            for axis, of_x in ((axes[0], "round"), (axes[1], "uplink_megabytes")):
                axis.plot(
                    [point[of_x] for point in tested], [100 * (point["test_accuracy"] or 0) for point in tested], **look
                )
                axis.set_ylabel("test accuracy, %")
            charged = [point for point in points if point.get("epsilon") is not None]
            if charged:
                axes[2].plot([point["round"] for point in charged], [point["epsilon"] for point in charged], **look)
        axes[0].set_xlabel("rounds")
        axes[0].xaxis.get_major_locator().set_params(integer=True)
        axes[0].legend(frameon=False, fontsize=9)
        axes[1].set(xlabel="uplink of all clients, MB (log)", xscale="log")
        plain_log_ticks(axes[1])
        if private:
            axes[2].set(xlabel="rounds", ylabel="epsilon spent (upper bound)")
            axes[2].set_ylim(bottom=0)
