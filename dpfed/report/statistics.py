"""Means over seeds, beside the published numbers."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpfed.report.collection import SEED, Collection
from dpfed.report.finished_run import FinishedRun
from dpfed.runs.durable_files import put
from dpfed.runs.quantities import QUANTITIES, SAFELY, Quantity
from dpfed.runs.sweep_folder import PublishedNumber


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """Runs of a row at one point of its axes: they differ in the seed."""

    row: str
    at: Mapping[str, str]
    runs: tuple[FinishedRun, ...]

    @property
    def name(self) -> str:
        """Name of the row and its values on the axes."""
        words = ", ".join(f"{short(name)} {value}" for name, value in self.at.items())
        return f"{self.row}, {words}" if words else self.row


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A quantity of a group in its printed unit: the mean over seeds, or the statistic `quantity.over_seeds`.

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
    def digits(self) -> int:
        """Return the decimals to print: the quantity's, or enough to show two digits of a small mean."""
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


def groups_of(collection: Collection) -> list[Group]:
    """Return the groups, in the order of their first runs."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[FinishedRun]] = {}
    for run in collection.runs:
        at = tuple((name, value) for name, value in run.at.items() if name != SEED)
        found.setdefault((run.row, at), []).append(run)
    return [Group(row=row, at=dict(at), runs=tuple(runs)) for (row, at), runs in found.items()]


def mean_of(group: Group, key: str, collection: Collection) -> Mean:
    """Return the mean of a summary's key over the runs of a group that have such a number."""
    quantity = QUANTITIES[key]
    values = [quantity.scale * value for run in group.runs if (value := run.summary.number(key)) is not None]
    return Mean(
        quantity=quantity,
        n=len(values),
        mean=_OVER_SEEDS[quantity.over_seeds](values) if values else None,
        std=statistics.stdev(values) if len(values) > 1 and quantity.over_seeds == "mean" else None,
        published=_published(group, key, collection),
    )


def write_table(collection: Collection, target: Path) -> None:
    """Write table.csv: one line for each group and quantity."""
    groups = groups_of(collection)
    axes = list(dict.fromkeys(name for group in groups for name in group.at))
    stream = io.StringIO(newline="")
    lines = csv.writer(stream)
    lines.writerow(["row", *axes, *_COLUMNS])
    for group in groups:
        for key in collection.quantities:
            one = mean_of(group, key, collection)
            there, quantity = one.published, one.quantity
            numbers = [one.mean, one.std, there.value if there else None, one.difference]
            lines.writerow(
                [group.row, *(group.at.get(name, "") for name in axes)]
                + [key, quantity.unit, quantity.over_seeds, one.n]
                + ["" if number is None else _number_text(key, number) for number in numbers]
                + [there.where if there else ""]
            )
    put(target, stream.getvalue().encode())


def _number_text(key: str, number: float) -> str:
    """Return a number as text. Guarantees have all their digits: rounded to nearest they would guarantee nothing."""
    return repr(number) if key in SAFELY else f"{number:.8g}"


def short(axis: str) -> str:
    """Return the last part of an axis's name."""
    return axis.rpartition(".")[2].replace("_", " ")


def _published(group: Group, key: str, collection: Collection) -> PublishedNumber | None:
    """Return the number that the paper prints for this row at this x, or else once for the whole row."""
    at = group.at.get(collection.x or "")
    found = {one.x: one for one in collection.published if (one.row, one.quantity) == (group.row, key)}
    return found.get(at, found.get(None))
