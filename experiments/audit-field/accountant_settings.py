"""Settings of an accountant's audit, with proven bounds on their epsilons and the neighbours that prove them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from accounting import AccountingError, guarantee
from accounting.compose import lower_bound
from accounting.mechanisms import Composed, FixedSizeSampling, Gaussian, Mechanism, PoissonSampling, subsample
from accounting.mechanisms.adjacency import Adjacency


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Gaussian noise on a sum of rows of norm at most C, as described to an accountant.

    noise_multiplier:    noise standard deviation over C; int for whole numbers
    sampling:            "all", "poisson" (each client with probability cohort / clients) or "fixed" (a cohort of
                         exactly `cohort` clients)
    rounds:              number of drawn cohorts
    releases_per_cohort: number of noisy sums released of each cohort, with rows of norm at most C in each sum
    """

    sampling: str
    adjacency: str
    clients: int
    cohort: int
    noise_multiplier: float
    rounds: int
    delta: float
    releases_per_cohort: int = 1

    @property
    def sampling_probability(self) -> float:
        return self.cohort / self.clients

    @property
    def mechanism(self) -> Mechanism:
        """Mechanism of `accounting`; several releases of one cohort equal one Gaussian release with less
        noise (tight).
        """
        noise = Gaussian(
            noise_multiplier=float(self.noise_multiplier) / self.releases_per_cohort**0.5,
            adjacency=Adjacency.of(self.adjacency),
        )
        if self.sampling == "all":
            return Composed(parts=((noise, self.rounds),))
        drawn = (
            PoissonSampling(probability=self.sampling_probability)
            if self.sampling == "poisson"
            else FixedSizeSampling(clients=self.clients, cohort=self.cohort)
        )
        return Composed(parts=((subsample(noise, drawn), self.rounds),))

    @property
    def neighbours(self) -> str:
        """Description of the pair of neighbours that attains the lower bound."""
        others = "all others send -C" if self.sampling == "fixed" else "all others send 0"
        own = "sends C, or -C" if self.adjacency == "replace-one" else "sends C, or is absent"
        return f"one client {own}; {others}"

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        drawn = {
            "all": "all take part",
            "poisson": f"Poisson q = {self.sampling_probability:.4g}",
            "fixed": f"{self.cohort} of {self.clients}",
        }[self.sampling]
        several = f", {self.releases_per_cohort} releases a cohort" if self.releases_per_cohort > 1 else ""
        return (
            f"{drawn}, {self.adjacency}, z = {self.noise_multiplier!r}, T = {self.rounds}, "
            f"delta = {self.delta!r}{several}"
        )


def _all_settings() -> list[Setting]:
    found = []

    def add(
        sampling: str, adjacency: str, n: int, r: int, z: float, rounds: int, delta: float, several: int = 1
    ) -> None:
        found.append(
            Setting(
                sampling=sampling,
                adjacency=adjacency,
                clients=n,
                cohort=r,
                noise_multiplier=z,
                rounds=rounds,
                delta=delta,
                releases_per_cohort=several,
            )
        )

    for adjacency in ("add-remove", "replace-one"):
        for z, rounds, delta in (
            (1.0, 1, 1e-5), (1, 1, 1e-5), (0.3, 1, 1e-5), (0.02, 1, 1e-5), (30.0, 1, 1e-5), (1.0, 1, 1e-10),
            (2, 1, 1e-5), (5.0, 100, 1e-6), (100.0, 10**6, 1e-6), (1.0, 1, 0.1),
        ):  # fmt: skip
            add("all", adjacency, 1000, 1000, z, rounds, delta)
        for n, r, z, rounds, delta in (
            (6000, 100, 1.4, 180, 6.98286e-5), (6000, 100, 1.0, 180, 1e-5), (6000, 100, 1, 180, 1e-5),
            (1000, 10, 1.0, 1, 1e-5), (1000, 10, 1.0, 1000, 1e-5), (1000, 10, 2, 10_000, 1e-5),
            (10**6, 1, 1.0, 1000, 1e-6), (10**6, 1, 0.5, 10**6, 1e-7), (1000, 999, 1.0, 10, 1e-5),
            (1000, 500, 3.0, 100, 1e-5), (1000, 100, 0.4, 1, 1e-5), (1000, 100, 0.3, 100, 1e-5),
            (1000, 100, 20.0, 1000, 1e-5), (60_000, 256, 1.1, 14_062, 1e-5), (1000, 100, 1.0, 100, 1e-9),
            (1000, 100, 1.0, 100, 1e-2), (100, 25, 0.7, 5, 1e-3), (1000, 10, 50.0, 10**6, 1e-6),
        ):  # fmt: skip
            add("poisson", adjacency, n, r, z, rounds, delta)
    for n, r, z, rounds, delta in (
        (6000, 100, 1.4, 180, 6.98286e-5), (6000, 100, 1.0, 180, 6.98286e-5), (6000, 100, 2.0, 180, 6.98286e-5),
        (6000, 100, 2.5, 180, 6.98286e-5), (1000, 10, 1.0, 1, 1e-5), (1000, 50, 2.0, 100, 5e-4),
        (300, 30, 4.0, 60, 2e-3), (1000, 10, 2, 10, 1e-5), (1000, 500, 3.0, 10, 1e-5), (100, 1, 1.0, 1, 1e-3),
        (100_000, 100, 1.0, 1000, 1e-6), (1000, 10, 0.5, 1, 1e-5), (1000, 10, 10.0, 1000, 1e-5),
        (1000, 999, 1.0, 1, 1e-5), (50, 10, 1.5, 1, 1e-2), (6000, 100, 20.0, 1000, 1e-5),
    ):  # fmt: skip
        add("fixed", "replace-one", n, r, z, rounds, delta)
    for n, r, z, several, rounds, delta in (
        (1000, 10, 1, 100, 1, 1e-5), (1000, 10, 1.0, 100, 1, 1e-5), (1000, 10, 2, 4, 100, 1e-5),
        (1000, 10, 2.0, 4, 100, 1e-5), (1000, 100, 5, 10, 50, 1e-5), (1000, 100, 5.0, 10, 50, 1e-5),
        (6000, 100, 3, 2, 180, 1e-5), (6000, 100, 3.0, 2, 180, 1e-5), (1000, 1, 1, 1000, 1, 1e-6),
        (1000, 1, 1.0, 1000, 1, 1e-6),
    ):  # fmt: skip
        add("poisson", "add-remove", n, r, z, rounds, delta, several)
    for k in range(20):  # settings that are common in training, evenly spread
        q, z, rounds = (0.001, 0.004, 0.02, 0.1)[k % 4], 0.6 + 0.25 * (k % 7), (10, 100, 1000, 5000)[(k // 4) % 4]
        add("poisson", "add-remove", 10_000, int(10_000 * q), round(z, 2), rounds, 1e-5)
    for n, r, z in ((1000, 100, 0.02), (1000, 10, 0.03), (1000, 100, 0.025)):  # e^epsilon is beyond floats
        add("poisson", "add-remove", n, r, z, 1, 1e-5)
    return found


@dataclass(frozen=True, kw_only=True)
class ProvenBounds:
    """Proven bounds on a setting's epsilon: the true epsilon is at least `at_least` and at most `at_most`."""

    at_least: float
    at_most: float


def compute_bounds(setting: Setting) -> ProvenBounds:
    """Compute both bounds by `accounting`. Direction of error: `at_least` is rounded down, `at_most` is rounded up."""
    above = guarantee(setting.mechanism, delta=setting.delta, with_lower_bound=False)
    try:
        below = lower_bound.epsilon(setting.mechanism, delta=setting.delta)
    except AccountingError:
        below = 0.0
    return ProvenBounds(at_least=min(below, above.epsilon), at_most=above.epsilon)


@cache
def stored_bounds() -> dict[str, ProvenBounds]:
    """Return the stored bounds of every setting; the key is the setting as text."""
    return {words: ProvenBounds(**bounds) for words, bounds in json.loads(_FILE.read_text()).items()}


def store_bounds() -> None:
    """Compute and store the bounds missing from proven.json; delete the file to recompute all (minutes)."""
    found = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    known: dict[object, ProvenBounds] = {}
    for setting in SETTINGS:
        same = (str(setting.mechanism), setting.delta)
        if str(setting) in found:
            known[same] = ProvenBounds(**found[str(setting)])
            continue
        bounds = known[same] = known.get(same) or compute_bounds(setting)
        found[str(setting)] = {"at_least": bounds.at_least, "at_most": bounds.at_most}
        print(setting, bounds, flush=True)
        _FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    store_bounds()

SETTINGS = tuple(_all_settings())
"""About a hundred settings: q near 0 and near 1, 1 to 10^6 rounds, little and much noise, several releases."""

_FILE = Path(__file__).parent / "proven.json"
