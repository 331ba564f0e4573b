"""Plans whose noise is correlated over rounds: banded and buffered Toeplitz factorisations (`factorisation`).

The noise multiplier is that of the fresh noise z of a round, over the clip norm. Two ways to take part:

- in a public order (cyclic), or at least `separation` rounds apart (min-separation): nothing is hidden, so that all
  rounds are one Gaussian mechanism of the factorisation's sensitivity, whatever its coefficients;
- poisson, banded: in `bands` public groups of clients, of which group t mod bands is sampled in round t with
  probability bands times cohort / clients. The columns of a client do not overlap, so that its T / bands rounds are
  Poisson-sampled Gaussians of noise multiplier z / |c| (Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu
  2023, Theorem 4). A client's group must be fixed without regard to data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from accounting import factorisation, require
from accounting.arrays import Floats
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import (
    Composed,
    CorrelatedRounds,
    Gaussian,
    PoissonSampling,
    SingleRelease,
    repeated,
    subsample,
)
from accounting.rounding import upwards

if TYPE_CHECKING:
    from accounting.budget.plan import Plan
    from accounting.factorisation.workload import Workload

NOISES = ("independent", "banded", "blt")
FACTORISATIONS = ("optimised", "square-root")
_OF = {"bands": "banded", "buffers": "blt"}
_FOR_CORRELATED = {"factorisation": "optimised", "server_momentum": 0.0, "server_decay": 1.0}
_MOST_BUFFERS = 20
MOST_ROUNDS = 10_000
"""For which a matrix is searched, or its error worked out."""


def refuse_idle(plan: Plan) -> None:
    """InvalidParameter for fields that this noise does not look at."""
    for name, noise in _OF.items():
        if getattr(plan, name) is not None and plan.noise != noise:
            raise InvalidParameter(
                f"{name}={require.shown(getattr(plan, name))} with noise={plan.noise!r}: is for {noise!r}. Remove it."
            )
    for name, default in _FOR_CORRELATED.items():
        if plan.noise == "independent" and getattr(plan, name) != default:
            raise InvalidParameter(f"{name}={getattr(plan, name)!r} with noise='independent': is for 'banded', 'blt'.")


@dataclass(frozen=True, kw_only=True)
class CorrelatedPlan:
    """The rounds of a plan with correlated noise."""

    plan: Plan

    def check(self) -> None:
        """Refuse what has no account. InvalidParameter, UnsupportedMechanism."""
        plan = self.plan
        name = {noise: name for name, noise in _OF.items()}[plan.noise]
        size = getattr(plan, name)
        if size is None:
            raise InvalidParameter(f"{name} is missing: noise={plan.noise!r} needs it.")
        if require.count(**{name: size}) > _MOST_BUFFERS and name == "buffers":
            raise InvalidParameter(f"buffers={size}: must be at most {_MOST_BUFFERS}; more than 4 gain nothing.")
        if plan.factorisation not in FACTORISATIONS:
            raise InvalidParameter(f"factorisation={plan.factorisation!r}: must be {' or '.join(FACTORISATIONS)}.")
        if plan.factorisation != "optimised" and plan.noise == "blt":
            raise InvalidParameter("factorisation='square-root' with noise='blt': is for 'banded'. Remove it.")
        if plan.mechanism != "gaussian":
            raise UnsupportedMechanism(f"noise={plan.noise!r} with mechanism={plan.mechanism!r}: use 'gaussian'.")
        if plan.sampling not in ("cyclic", "min-separation", *(("poisson",) if plan.noise == "banded" else ())):
            raise UnsupportedMechanism(
                f"noise={plan.noise!r} with sampling={plan.sampling!r}: a client could take part in rounds whose noise "
                "is one. Use 'cyclic', 'min-separation', or banded noise with 'poisson' within as many public groups "
                "as there are bands."
            )
        if plan.sampling == "poisson" and size * plan.cohort > plan.clients:
            raise InvalidParameter(
                f"bands={size} with cohort={plan.cohort} of clients={plan.clients}: each of as many groups must "
                f"hold a cohort. Use at most {plan.clients // plan.cohort} bands."
            )
        if plan.sampling == "cyclic" and self.separation > plan.period:
            raise InvalidParameter(
                f"separation={plan.separation} with sampling='cyclic', cohort={plan.cohort} of clients={plan.clients}: "
                f"each client comes in every {plan.period}th round. Use at most {plan.period}, or a smaller cohort."
            )
        self.workload(1)

    def _require_participations(self, rounds: int) -> None:
        """InvalidParameter for a limit that the sampling does not keep: the account would be of another run."""
        plan = self.plan
        due = -(-rounds // (plan.period if plan.sampling == "cyclic" else self.separation))
        if plan.participations is not None and plan.participations < due:
            raise InvalidParameter(
                f"participations={plan.participations} with sampling={plan.sampling!r}: in {rounds} rounds a client "
                f"can take part {due} times. Use at least {due}, fewer rounds, or a longer separation."
            )

    def workload(self, rounds: int) -> Workload:
        """What the sums become in the model."""
        from accounting.factorisation.workload import Workload

        return Workload(rounds=rounds, momentum=self.plan.server_momentum, decay=self.plan.server_decay)

    def stream(self, rounds: int) -> CorrelatedRounds:
        """The matrix that is best for so many rounds, and who takes part. In sampled groups, of one participation."""
        plan, sampled = self.plan, self.plan.sampling == "poisson"
        if rounds > MOST_ROUNDS:
            raise InvalidParameter(f"rounds={rounds} with noise={plan.noise!r}: must be at most {MOST_ROUNDS}.")
        self._require_participations(rounds)
        separation = rounds if sampled else self.separation
        times = 1 if sampled else plan.participations
        if plan.noise == "blt":
            weights, decays = _buffers(plan.buffers or 1, self.workload(rounds), separation, times)
            return CorrelatedRounds(
                separation=separation, participations=times, weights=weights, decays=decays, stream=plan.stream
            )
        root = plan.factorisation == "square-root"
        c = _banded(plan.bands or 1, None if root else self.workload(rounds), separation, times)
        return CorrelatedRounds(separation=separation, participations=times, coefficients=c, stream=plan.stream)

    def run(self, noise_multiplier: float, rounds: int) -> Composed:
        """The mechanism of all rounds. Direction of error: upper bound."""
        plan, z = self.plan, require.noise_multiplier(noise_multiplier)
        stream = self.stream(require.count(rounds=rounds))
        assert plan.adjacency is not None
        if plan.sampling != "poisson":
            return repeated(self.round(z, stream), rounds, before=plan.before)
        bands = plan.bands or 1
        strength = z / float(np.linalg.norm(factorisation.column(stream, rounds)))
        sampled = PoissonSampling(probability=min(bands * plan.cohort / plan.clients, 1.0))
        release = subsample(Gaussian(noise_multiplier=strength, adjacency=plan.adjacency), sampled)
        return repeated(release, -(-rounds // bands), before=plan.before)

    def round(self, noise_multiplier: float, stream: CorrelatedRounds) -> SingleRelease:
        """One round of the stream: what a ledger line states."""
        assert self.plan.adjacency is not None
        return subsample(Gaussian(noise_multiplier=noise_multiplier, adjacency=self.plan.adjacency), stream)

    @property
    def separation(self) -> int:
        """Rounds from one participation to the next, at least."""
        return self.plan.separation or self.plan.period

    def prefix_error(self, noise_multiplier: float, rounds: int) -> float:
        """Root mean square of the noise in the model, over rounds, in clip norms; of prefix sums where there is neither
        momentum nor decay."""
        return noise_multiplier * self._error_of(factorisation.column(self.stream(rounds), rounds), rounds)

    def _error_of(self, coefficients: Floats, rounds: int) -> float:
        from accounting.factorisation.workload import error

        return error(coefficients, self.workload(rounds))

    def notes(self, noise_multiplier: float, rounds: int) -> tuple[str, ...]:
        """What the correlation is worth, and what must hold."""
        plan, stream = self.plan, self.stream(rounds)
        size = f"{plan.bands} bands" if plan.noise == "banded" else f"{plan.buffers} buffers"
        sums = "sums over rounds are" if plan.server_momentum == 0 and plan.server_decay == 1 else "the model is"
        words = f"noise in {size}: {sums} off by {upwards(self.prefix_error(noise_multiplier, rounds))} C on average"
        if plan.sampling == "poisson":
            return (words, f"a plan only, in {plan.bands} public groups that take turns: `dpfed run` has no such noise")
        times, c = stream.most_participations(rounds), factorisation.column(stream, rounds)
        shown = factorisation.sensitivity(
            c, rounds=rounds, separation=self.separation, participations=plan.participations
        )
        same = noise_multiplier * math.sqrt(times) / shown * self._error_of(np.ones(1), rounds)
        return (f"{words}, by independent noise of this epsilon {upwards(same)} C",)


@lru_cache(maxsize=256)
def _banded(bands: int, workload: Workload | None, separation: int, participations: int | None) -> tuple[float, ...]:
    """The first column, cached: a search takes a second. workload None: the square root's, in closed form."""
    if workload is None:
        return tuple(factorisation.square_root(bands).tolist())
    from accounting.factorisation import optimise

    return tuple(optimise.banded(bands, workload, separation=separation, participations=participations).tolist())


@lru_cache(maxsize=256)
def _buffers(
    count: int, workload: Workload, separation: int, participations: int | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    from accounting.factorisation import optimise

    found = optimise.buffers(count, workload, separation=separation, participations=participations)
    return tuple(found[0].tolist()), tuple(found[1].tolist())
