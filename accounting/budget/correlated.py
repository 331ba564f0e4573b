"""Plans whose noise is correlated over rounds: banded Toeplitz factorisations of prefix sums (`factorisation`).

The noise multiplier is that of the fresh noise z of a round, over the clip norm. Two ways to take part:

- in a public order (cyclic), or at least `separation` rounds apart (min-separation): nothing is hidden, so that all
  rounds are one Gaussian mechanism of the factorisation's sensitivity, whatever the number of bands;
- poisson: in `bands` public groups of clients, of which group t mod bands is sampled in round t with probability
  bands times cohort / clients. The columns of a client do not overlap, so that its T / bands rounds are
  Poisson-sampled Gaussians of noise multiplier z / |c| (Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu
  2023, Theorem 4). A client's group must be fixed without regard to data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from accounting import factorisation, require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.gaussian.half_lines import Floats
from accounting.mechanisms import Composed, Cyclic, Gaussian, PoissonSampling, SingleRelease, repeated, subsample
from accounting.rounding import upwards

if TYPE_CHECKING:
    from accounting.budget.plan import Plan

NOISES = ("independent", "banded")


@dataclass(frozen=True, kw_only=True)
class Banded:
    """The rounds of a plan with banded noise."""

    plan: Plan

    def check(self) -> None:
        """Refuse what has no account. InvalidParameter, UnsupportedMechanism."""
        plan = self.plan
        if plan.bands is None:
            raise InvalidParameter("bands is missing: noise='banded' needs it; 1 is independent noise.")
        require.count(bands=plan.bands)
        if plan.mechanism != "gaussian":
            raise UnsupportedMechanism(f"noise='banded' with mechanism={plan.mechanism!r}: use mechanism 'gaussian'.")
        if plan.sampling not in ("cyclic", "min-separation", "poisson"):
            raise UnsupportedMechanism(
                f"noise='banded' with sampling={plan.sampling!r}: a client could take part in rounds whose noise is "
                "one. Use 'cyclic', 'min-separation', or 'poisson' within as many public groups as there are bands."
            )
        if plan.sampling == "poisson" and plan.bands * plan.cohort > plan.clients:
            raise InvalidParameter(
                f"bands={plan.bands} with cohort={plan.cohort} of clients={plan.clients}: each of as many groups must "
                f"hold a cohort. Use at most {plan.clients // plan.cohort} bands."
            )

    @property
    def coefficients(self) -> Floats:
        """c, the square root's first `bands`."""
        return factorisation.square_root(self.plan.bands or 1)

    def run(self, noise_multiplier: float, rounds: int) -> Composed:
        """The mechanism of all rounds, as if it were rounds of independent noise. Direction of error: upper bound."""
        plan, z = self.plan, require.noise_multiplier(noise_multiplier)
        require.count(rounds=rounds)
        assert plan.adjacency is not None
        if plan.sampling == "poisson":
            bands = plan.bands or 1
            strength = z / float(np.linalg.norm(self.coefficients[:rounds]))
            sampled = PoissonSampling(probability=min(bands * plan.cohort / plan.clients, 1.0))
            release = subsample(Gaussian(noise_multiplier=strength, adjacency=plan.adjacency), sampled)
            return repeated(release, -(-rounds // bands), before=plan.before)
        if self._apart:
            return repeated(self.round(z), rounds, before=plan.before)
        times = -(-rounds // self.separation)
        return repeated(self._public(z * math.sqrt(times) / self._sensitivity(rounds)), rounds, before=plan.before)

    def round(self, noise_multiplier: float) -> SingleRelease:
        """One round in a public order whose participations do not overlap: what a ledger line states."""
        return self._public(noise_multiplier / float(np.linalg.norm(self.coefficients)))

    @property
    def _apart(self) -> bool:
        """Whether the columns of a client's participations do not overlap, whatever their number."""
        return len(self.coefficients) <= self.separation and self.plan.participations is None

    def _public(self, strength: float) -> SingleRelease:
        assert self.plan.adjacency is not None
        noise = Gaussian(noise_multiplier=strength, adjacency=self.plan.adjacency)
        return subsample(noise, Cyclic(period=self.separation))

    @property
    def separation(self) -> int:
        """Rounds from one participation to the next, at least."""
        return self.plan.separation or self.plan.period

    def _sensitivity(self, rounds: int) -> float:
        plan = self.plan
        return factorisation.sensitivity(
            self.coefficients, rounds=rounds, separation=self.separation, participations=plan.participations
        )

    def prefix_error(self, noise_multiplier: float, rounds: int) -> float:
        """Root mean square of the noise in the sum of the first rounds, over rounds, in clip norms."""
        return noise_multiplier * factorisation.prefix_error(self.coefficients, rounds=rounds)

    def notes(self, noise_multiplier: float, rounds: int) -> tuple[str, ...]:
        """What the correlation is worth, and what must hold."""
        error = upwards(self.prefix_error(noise_multiplier, rounds))
        words = f"noise in {self.plan.bands} bands: sums over rounds are off by {error} C on average"
        if self.plan.sampling != "poisson":
            times = min(-(-rounds // self.separation), self.plan.participations or rounds)
            same = noise_multiplier * math.sqrt(times) / self._sensitivity(rounds) * math.sqrt((rounds + 1) / 2)
            words += f", by independent noise of this epsilon {upwards(same)} C"
        if self.plan.sampling == "cyclic" and self._apart:
            return (words,)
        groups = f", in {self.plan.bands} public groups that take turns" if self.plan.sampling == "poisson" else ""
        return (words, f"a plan only{groups}: `dpfed run` has no such noise")
