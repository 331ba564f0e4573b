"""The thirteen patterns of arXiv 2602.17454, reduced to a plain loop.

They are reduced from the paper's artifact (github.com/ObliviousAI/dp-recorder) and from the reports to the seven
libraries that it names; they are not the libraries' code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfed.audit import mechanism

TABLE = [(float(np.random.default_rng(i).normal()), i % 3) for i in range(12)]
"""Records (value, class), with few of each class."""


@dataclass(frozen=True)
class Fault:
    """A fault. train(data, out): the call. found: True if a replay finds it by default pairs; words: of the finding"""

    name: str
    train: Callable[[Any, Any], Any]
    words: str
    found: bool = True

    def __call__(self, data: Any, out: Any) -> Any:
        return self.train(data, out)


def normal(total: np.ndarray) -> np.ndarray:
    return total + np.random.normal(size=np.shape(total))  # noqa: NPY002


def released(value: Any, *, sensitivity: float = 1.0, f: Callable[..., Any] = normal, **options: Any) -> Any:
    return mechanism(f, sensitivity=sensitivity, name="release", **options)(
        np.atleast_1d(np.asarray(value, dtype=float))
    )


def values(data: Any) -> np.ndarray:
    return np.array([value for value, _ in data(TABLE)])


def classes(data: Any) -> np.ndarray:
    return np.array([label for _, label in data(TABLE)])


def bounded(given: np.ndarray) -> np.ndarray:
    return np.clip(given, -1, 1)


def by_bounds(data: Any) -> Any:
    given = values(data)
    return released(np.sum(np.clip(given, given.min(), given.max())))


def weak_information(data: Any) -> Any:
    given, labels = values(data), classes(data)
    weak = abs(np.corrcoef(given, labels)[0, 1]) < 0.2
    return released(np.sum(bounded(given))) if weak else [released(np.sum(bounded(given))), released(len(given))]


def unclipped_copy(data: Any) -> Any:
    given = values(data)
    bounded(given)
    return released(np.sum(given))


def spent_twice(data: Any) -> Any:
    total = np.sum(bounded(values(data)))
    return [released(total, std=1.0), released(total, std=1.0)]


def half_noise(total: np.ndarray) -> np.ndarray:
    return total + np.random.normal(scale=0.5, size=np.shape(total))  # noqa: NPY002


def nan_to_limit(data: Any) -> Any:
    given = values(data)
    return released(np.sum(np.where(np.isnan(given), 1e3, bounded(given))))


def by_count(data: Any) -> Any:
    given = values(data)
    return released(np.sum(bounded(given))) / len(given)


def by_count_of_noise(data: Any) -> Any:
    given = values(data)
    return released(np.sum(bounded(given)), f=lambda t: t + np.random.normal(scale=20 / len(given), size=1))  # noqa: NPY002


def counts(data: Any) -> np.ndarray:
    return np.bincount(classes(data), minlength=3)


def of(train: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda data, out: train(data)


PATTERNS = (
    Fault("divisor from the number of records (Opacus)", of(by_count), "result of the call"),
    Fault("noise scale from the number of records (Synthcity)", of(by_count_of_noise), "its noise differs"),
    Fault(
        "classes inferred from the data (Diffprivlib)",
        of(
            lambda data: [
                released((classes(data) == c).sum(), sensitivity=1.0) for c in np.unique(values(data).round(1))
            ]
        ),
        "is in the",
    ),
    Fault("bounds inferred from the data (dpmm)", of(by_bounds), "its input moves"),
    Fault("branch on a private statistic (Synthcity)", of(weak_information), ""),
    Fault("sum of the unclipped copy (SmartNoise, covariance)", of(unclipped_copy), "its input moves"),
    Fault(
        "sensitivity from the lower bound alone (Diffprivlib, regression)",
        of(lambda data: released(np.sum(np.clip(values(data), 0, 100)), sensitivity=0.0)),
        "its input moves",
    ),
    Fault(
        "score sensitivity 2 where two terms move by 2 each (Private-PGM, selection)",
        of(lambda data: released(2 * np.sum(bounded(values(data))), sensitivity=0.5, adjacency="replace-one")),
        "its input moves",
    ),
    Fault(
        "histogram sensitivity 1 for a replaced record (Private-PGM, measurement)",
        of(lambda data: released(counts(data), adjacency="replace-one")),
        "its input moves",
    ),
    Fault(
        "sensitivity that becomes 0 for some settings (Synthcity, PrivBayes)",
        of(lambda data: released(np.sum(bounded(values(data))), sensitivity=float(5 - 5))),
        "its input moves",
    ),
    Fault("budget spent twice (MOSTLY AI)", of(spent_twice), "", found=False),
    Fault("NaN passes the clip (five libraries)", of(nan_to_limit), "its input moves"),
    Fault(
        "noise primitive with half its scale, std stated",
        of(lambda data: released(np.sum(bounded(values(data))), f=half_noise, std=1.0)),
        "noise is short",
    ),
)
"""Thirteen patterns of the paper. A budget spent twice is a matter of the ledger, not of a replay."""
