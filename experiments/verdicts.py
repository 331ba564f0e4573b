"""Verdicts on the papers' claims, by rule, from the stored results of single seeds.

A claim says that one row is above another. Its evidence is the difference of the two rows in runs of one seed, in the
direction of the claim. In a cell (a data set and a setting) the verdict is

    holds       mean > t * standard error of the mean
    reversed    mean < -t * standard error of the mean
    not shown   otherwise, and always with a single seed

where t is the 95% quantile of Student's distribution with n - 1 degrees of freedom. For normal differences with mean 0,
"holds" and "reversed" are each wrong in 5% of cells.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scipy.stats import t as student

HERE = Path(__file__).parent
Line = Mapping[str, str]
Cells = Mapping[str, Sequence[float]]
"""Differences of the seeds, by cell."""

LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Claim of a paper, and the function that reads its differences from files of results.

    where: table or figure of the paper
    """

    paper: str
    where: str
    text: str
    differences: Callable[[], Cells]


def read(name: str) -> list[dict[str, str]]:
    """Return the lines of a CSV file under experiments/."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def standard_error(differences: Sequence[float]) -> float:
    """Return the standard error of the mean; infinite for a single difference."""
    count = len(differences)
    return statistics.stdev(differences) / math.sqrt(count) if count > 1 else math.inf


def verdict(differences: Sequence[float], level: float = LEVEL) -> str:
    """Return "holds", "reversed" or "not shown" for the differences of one cell, by the rule of this module."""
    if len(differences) < 2:
        return "not shown"
    mean, margin = statistics.fmean(differences), float(student.ppf(1 - level, len(differences) - 1))
    margin *= standard_error(differences)
    return "holds" if mean > margin else "reversed" if mean < -margin else "not shown"


def overall(cells: Cells) -> str:
    """Return the verdict of all cells: one word if it is the same in each, else the number of cells of each word."""
    words = Counter(verdict(differences) for differences in cells.values())
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{word} in {count}" for word, count in words.most_common()) + f" of {words.total()}"


def paired(lines: Sequence[Line], higher: str, lower: str, quantity: str) -> list[float]:
    """Return the differences between the rows `higher` and `lower` of one seed and device."""
    found = {(line["row"], line["seed"], line.get("device", "")): float(line[quantity]) for line in lines}
    pairs = sorted((seed, device) for row, seed, device in found if row == higher)
    return [found[higher, *key] - found[lower, *key] for key in pairs if (lower, *key) in found]


def fed_smp(higher: str, *lower: str) -> Callable[[], Cells]:
    """Return the reader of Table I's best accuracies of rows as published; a row is "top-k 0.005" or "DP-FedAvg"."""

    def cells() -> Cells:
        lines = []
        for line in read("fed-smp/results.csv"):
            method, _, block = line["row"].partition(", ")
            if block == "as published":
                lines.append(line | {"row": f"{method.removeprefix('Fed-SMP ')} {line['x']}".strip()})
        return {f"above {one}": paired(lines, higher, one, "best_test_accuracy") for one in lower}

    return cells


def small_images(higher: str, *others: str) -> Callable[[], Cells]:
    """Return the reader of FedPM's Table 1 settings: `higher` less the best of the other methods, seed by seed."""

    def cells() -> Cells:
        found: dict[str, dict[str, dict[str, float]]] = {}
        for line in read("fedpm/table-1-small-images.csv"):
            cell = found.setdefault(f"{line['images']}, {line['setting']}", {})
            cell.setdefault(line["seed"], {})[line["method"]] = 100 * float(line["test_accuracy"])
        return {
            cell: [of[higher] - max(of[one] for one in others) for of in seeds.values()]
            for cell, seeds in found.items()
        }

    return cells


def fedmrn(where: str, difference: str) -> Callable[[], Cells]:
    """Return the reader of stored differences of FedMRN's runs of one seed."""

    def cells() -> Cells:
        found: dict[str, list[float]] = {}
        for line in read("fedmrn/12-rounds/differences.csv"):
            if (line["where"], line["difference"]) == (where, difference):
                found.setdefault(line["cell"], []).append(float(line["points"]))
        return found

    return cells


def fedscalar(higher: str, lower: str, quantity: str, *, factor: float, margin: float = 0.0) -> Callable[[], Cells]:
    """Return the reader of `factor` times the difference after 600 rounds, the paper's number, plus `margin`."""

    def cells() -> Cells:
        lines = [line for line in read("fedscalar/curves.csv") if line["round"] == "600"]
        return {"round 600": [factor * one + margin for one in paired(lines, higher, lower, quantity)]}

    return cells


_OTHERS = ("QSGD", "DRIVE", "EDEN", "FedMask")
CLAIMS = (
    Claim(
        paper="Fed-SMP",
        where="Table I",
        text="top-k .005 is above DP-FedAvg (8.0 points) and rand-k .4 (0.9)",
        differences=fed_smp("top-k 0.005", "DP-FedAvg", "rand-k 0.4"),
    ),
    Claim(
        paper="Fed-SMP",
        where="Table I",
        text="rand-k .4 is above DP-FedAvg (7.2 points)",
        differences=fed_smp("rand-k 0.4", "DP-FedAvg"),
    ),
    Claim(
        paper="Fed-SMP",
        where="Table I, Figure 3",
        text="rand-k is best at .4, not at smaller ratios",
        differences=fed_smp("rand-k 0.4", "rand-k 0.05"),
    ),
    Claim(
        paper="FedPM",
        where="Table 1",
        text="FedPM is above the best of QSGD, DRIVE, EDEN and FedMask",
        differences=small_images("FedPM", *_OTHERS),
    ),
    Claim(
        paper="FedPM",
        where="Table 1",
        text="FedPM is above FedMask",
        differences=small_images("FedPM", "FedMask"),
    ),
    *(
        Claim(
            paper="FedMRN",
            where="Table 1",
            text=f"{higher} is above {lower}",
            differences=fedmrn("Table 1", f"{higher} - {lower}"),
        )
        for higher, lower in (
            ("FedMRNS", "FedMRN"),
            ("FedMRN", "EDEN"),
            ("FedMRN", "DRIVE"),
            ("EDEN", "SignSGD"),
            ("SignSGD", "FedPM"),
        )
    ),
    *(
        Claim(paper="FedMRN", where="Figure 4", text=text, differences=fedmrn("Figure 4", f"FedMRN - {lower}"))
        for text, lower in (
            ("stochastic masking (SM) raises accuracy", "without SM"),
            ("progressive masking (PM) raises accuracy", "without PM"),
            ("both together (PSM) raise accuracy", "without PSM"),
            ("masks during training are better than masks of the finished update", "FedAvg with SM"),
        )
    ),
    Claim(
        paper="FedScalar",
        where="Figure 3",
        text="after 600 rounds FedScalar is less than 2 points below FedAvg (difference + 2)",
        differences=fedscalar("FedScalar, Rademacher", "FedAvg", "test_accuracy", factor=100, margin=2),
    ),
    Claim(
        paper="FedScalar",
        where="Figure 2",
        text="Rademacher directions have a lower training loss than Gaussian ones (loss times 100)",
        differences=fedscalar("FedScalar, Rademacher", "FedScalar, Gaussian", "train_loss", factor=-100),
    ),
)


def points(differences: Sequence[float]) -> str:
    """Return the mean difference in points, with its standard error if there are several seeds."""
    mean = f"{statistics.fmean(differences):+.1f}"
    return mean if len(differences) < 2 else f"{mean} ± {standard_error(differences):.1f}"


def evidence(cells: Cells) -> str:
    """Return the difference of every cell; of more than three, the smallest and the largest."""
    means = sorted(cells, key=lambda cell: statistics.fmean(cells[cell]))
    if len(cells) <= 3:
        return "; ".join(points(differences) for differences in cells.values())
    return f"{points(cells[means[0]])} to {points(cells[means[-1]])}"


def seeds(cells: Cells) -> str:
    """Return the number of seeds of the cells."""
    return ", ".join(sorted({str(len(differences)) for differences in cells.values()}))


def rows(claims: Sequence[Claim] = CLAIMS) -> list[list[str]]:
    """Return a table row for every claim: paper and place, claim, evidence, cells, seeds, verdict."""
    found = []
    for claim in claims:
        cells = {cell: differences for cell, differences in claim.differences().items() if differences}
        if not cells:
            found.append([f"{claim.paper}, {claim.where}", claim.text, "no result yet", "", "", "not shown"])
            continue
        shown = [evidence(cells), str(len(cells)), seeds(cells), overall(cells)]
        found.append([f"{claim.paper}, {claim.where}", claim.text, *shown])
    return found


if __name__ == "__main__":
    for row in rows():
        print(" | ".join(row))
