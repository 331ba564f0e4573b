"""Means over seeds, compared with published numbers."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfed.report.collection import SEED, RunCollection
from dpfed.report.conditions import conditions_text
from dpfed.report.finished_run import FinishedRun
from dpfed.runs.durable_files import put
from dpfed.runs.quantities import QUANTITIES, SAFELY, Quantity
from dpfed.runs.sweep_folder import PublishedNumber


@dataclass(frozen=True, kw_only=True, eq=False)
class RunGroup:
    """Runs of a row at one point of its axes, which differ only in their seed."""

    row: str
    at: Mapping[str, str]
    runs: tuple[FinishedRun, ...]

    @property
    def name(self) -> str:
        """Name of the row, followed by its values on the axes."""
        words = ", ".join(f"{short_axis_name(name)} {value}" for name, value in self.at.items())
        return f"{self.row}, {words}" if words else self.row

    @property
    def conditions(self) -> tuple[str, ...]:
        """Distinct conditions of the group's epsilons (`dpfed.report.conditions`)."""
        return tuple(dict.fromkeys(conditions_text(run.summary) for run in self.runs))


@dataclass(frozen=True, kw_only=True)
class GroupMean:
    """Mean over seeds of a quantity of a group, or its statistic `quantity.over_seeds`, in the printed unit.

    `std` is the sample deviation over seeds, None for one seed and for statistics other than a mean; `difference` is
    measured minus published.
    """

    quantity: Quantity
    n: int
    mean: float | None
    std: float | None
    published: PublishedNumber | None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.published is None else self.mean - self.published.value

    @property
    def shown_std(self) -> float | None:
        """Deviation to print: None for fewer than three seeds, whose deviation says little."""
        return self.std if self.n > 2 else None

    @property
    def digits(self) -> int:
        """Return the number of decimals to print: the quantity's, or more to show two digits of a small mean."""
        usual = self.quantity.digits
        if self.quantity.unit == "%" or usual == 0 or not self.mean or not math.isfinite(self.mean):
            return usual
        return max(usual, 1 - math.floor(math.log10(abs(self.mean))))


_COLUMNS = (
    "quantity", "unit", "over_seeds", "n", "mean", "std", "published", "difference", "published_where"
)  # fmt: skip
_OVER_SEEDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "largest": max,
    "smallest": min,
}


def groups_of(collection: RunCollection) -> list[RunGroup]:
    """Return the groups, in the order of their first runs."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[FinishedRun]] = {}
    for run in collection.runs:
        at = tuple((name, value) for name, value in run.at.items() if name != SEED)
        found.setdefault((run.row, at), []).append(run)
    return [RunGroup(row=row, at=dict(at), runs=tuple(runs)) for (row, at), runs in found.items()]


def group_mean(group: RunGroup, key: str, collection: RunCollection) -> GroupMean:
    """Return the mean of a key of the summary over those runs of the group that have this number."""
    quantity = QUANTITIES[key]
    values = [quantity.scale * value for run in group.runs if (value := run.summary.number(key)) is not None]
    return GroupMean(
        quantity=quantity,
        n=len(values),
        mean=_OVER_SEEDS[quantity.over_seeds](values) if values else None,
        std=statistics.stdev(values) if len(values) > 1 and quantity.over_seeds == "mean" else None,
        published=_published_number(group, key, collection),
    )


def write_table(collection: RunCollection, target: Path) -> None:
    """Write table.csv: one line for each group and quantity."""
    groups = groups_of(collection)
    axes = list(dict.fromkeys(name for group in groups for name in group.at))
    stream = io.StringIO(newline="")
    lines = csv.writer(stream)
    lines.writerow(["row", *axes, *_COLUMNS, "epsilon_holds_for"])
    for group in groups:
        for key in collection.quantities:
            one = group_mean(group, key, collection)
            there, quantity = one.published, one.quantity
            numbers = [one.mean, one.std, there.value if there else None, one.difference]
            lines.writerow(
                [group.row, *(group.at.get(name, "") for name in axes)]
                + [key, quantity.unit, quantity.over_seeds, one.n]
                + ["" if number is None else _number_text(key, number) for number in numbers]
                + [there.where if there else "", "; ".join(group.conditions)]
            )
    put(target, stream.getvalue().encode())


def _number_text(key: str, number: float) -> str:
    """Return a number as text; guarantees keep all digits, because rounding to nearest would invalidate them."""
    return repr(number) if key in SAFELY else f"{number:.8g}"


def short_axis_name(axis: str) -> str:
    """Return the last part of an axis's name."""
    return axis.rpartition(".")[2].replace("_", " ")


def _published_number(group: RunGroup, key: str, collection: RunCollection) -> PublishedNumber | None:
    """Return the published number for this row at its value of x, or else the one for the whole row."""
    at = group.at.get(collection.x or "")
    found = {one.x: one for one in collection.published if (one.row, one.quantity) == (group.row, key)}
    return found.get(at, found.get(None))
