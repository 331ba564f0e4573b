"""Faults of other people's code: plants in a plain loop, and the thirteen patterns of arXiv 2602.17454.

The thirteen patterns are reduced from the paper's artifact (github.com/ObliviousAI/dp-recorder) and from the reports to
the seven libraries that it names; they are not the libraries' code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfed.audit import mechanism

CLIENTS = [np.random.default_rng(i).normal(size=(20, 30)) for i in range(16)]
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


def clip(row: np.ndarray) -> np.ndarray:
    return row / max(1.0, float(np.linalg.norm(row)))


def normal(total: np.ndarray) -> np.ndarray:
    return total + np.random.normal(size=np.shape(total))  # noqa: NPY002


class Loop:
    """Eight rounds of clipped moves: sound. A fault overrides one step."""

    std: float | None = None
    rounds = 8

    def rows(self, own: list[np.ndarray], model: np.ndarray) -> list[np.ndarray]:
        return [clip(one.sum(axis=0) - model) for one in own]

    def noise(self, total: np.ndarray) -> np.ndarray:
        return normal(total)

    def step(self, number: int, total: np.ndarray, noisy: np.ndarray) -> np.ndarray:
        return noisy / 16

    def write(self, out: Any, own: list[np.ndarray]) -> None:
        pass

    def __call__(self, data: Any, out: Any) -> np.ndarray:
        own, model = data(CLIENTS), np.zeros(30)
        release = mechanism(self.noise, sensitivity=1.0, std=self.std, name="noise")
        for number in range(self.rounds):
            total = np.sum(self.rows(own, model), axis=0)
            model = model + self.step(number, total, release(total))
        self.write(out, own)
        return model


def large_clients(factor: float) -> type[Loop]:
    class Large(Loop):
        def rows(self, own, model):
            mean = np.mean([len(one) for one in own])
            return [one.sum(axis=0) if len(one) > factor * mean else clip(one.sum(axis=0) - model) for one in own]

    return Large


class NanKept(Loop):
    def rows(self, own, model):
        moves = [one.sum(axis=0) - model for one in own]
        return [np.where(np.isnan(move), 1e6, clip(move)) for move in moves]


class FeedbackByPlace(Loop):
    def __init__(self) -> None:
        self.kept = np.zeros((16, 30))

    def rows(self, own, model):
        rows = []
        for i, one in enumerate(own):
            move = one.sum(axis=0) - model + self.kept[(i + 1) % 16]
            rows.append(clip(np.where(np.abs(move) >= np.sort(np.abs(move))[-5], move, 0)))
            self.kept[i] = 0.5 * (move - rows[-1])
        return rows


class WeightsOverLargest(Loop):
    def rows(self, own, model):
        largest = max(len(one) for one in own)
        return [clip(one.sum(axis=0) - model) * len(one) / largest for one in own]


class SeededInsideClip(Loop):
    def noise(self, total):
        return total + np.random.default_rng(int((np.abs(total) < 1).sum())).normal(size=30)


class CentredRows(Loop):
    def __init__(self) -> None:
        self.mean = np.zeros(30)

    def rows(self, own, model):
        rows = []
        for one in own:
            self.mean = 0.9 * self.mean + 0.1 * one.mean(axis=0)
            rows.append(clip(one.sum(axis=0) - self.mean))
        return rows


class SixthDigit(Loop):
    def write(self, out, own):
        (out / "metrics.csv").write_text(f"accuracy\n{0.5 + 1e-6 * float(np.mean([one.mean() for one in own])):.9f}\n")


class LastTen(Loop):
    def noise(self, total):
        return total + np.random.normal(size=30) * (np.arange(30) < 20)  # noqa: NPY002


class OneCoordinate(Loop):
    def noise(self, total):
        return total + np.random.normal(size=30) * (np.arange(30) != 11)  # noqa: NPY002


class ShortNoise(Loop):
    def noise(self, total):
        return total + np.random.normal(scale=0.99, size=30)  # noqa: NPY002


class ShortNoiseStated(ShortNoise):
    std = 1.0


class Anticorrelated(Loop):
    def __init__(self) -> None:
        self.before = np.zeros(30)

    def noise(self, total):
        self.before = -0.6 * self.before + 0.8 * np.random.normal(size=30)  # noqa: NPY002
        return total + self.before


class AnticorrelatedStated(Anticorrelated):
    std = 1.0


class RoundSeven(Loop):
    def step(self, number, total, noisy):
        return (noisy + (0.1 * total if number == 6 else 0)) / 16


def loop(name: str, kind: type[Loop], words: str, *, found: bool = True) -> Fault:
    return Fault(name, lambda data, out: kind()(data, out), words, found)


STRANGERS = (
    *(loop(f"clients above {f} times the mean not clipped", large_clients(f), "its input moves") for f in (3, 5, 12)),
    loop("NaN rows kept as 1e6", NanKept, "its input moves"),
    loop("error feedback kept by place", FeedbackByPlace, "its input moves"),
    loop("weights over the largest client's size", WeightsOverLargest, "its input moves"),
    loop("noise seeded by the number of entries inside the clip", SeededInsideClip, "its noise differs"),
    loop("rows centred by a running mean", CentredRows, "its input moves"),
    loop("a private mean in the sixth digit of a public metric", SixthDigit, "file metrics.csv"),
    loop("the last ten coordinates without noise", LastTen, "adds no noise to 10"),
    loop("one coordinate without noise", OneCoordinate, "adds no noise to coordinate"),
    loop("noise 1% short", ShortNoise, "", found=False),
    loop("noise 1% short, with std stated", ShortNoiseStated, "noise is short"),
    loop("noise anticorrelated between rounds", Anticorrelated, "", found=False),
    loop("noise anticorrelated between rounds, with std stated", AnticorrelatedStated, "consecutive calls"),
    loop("a fault in round 7 only", RoundSeven, ""),
)
SOUND_LOOP = loop("twin of the plain loop", Loop, "")


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
