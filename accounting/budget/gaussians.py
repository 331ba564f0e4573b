"""Plans with Gaussian noise: added by the server, or in shares by the clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from accounting import require
from accounting.errors import InvalidParameter
from accounting.mechanisms import Gaussian, SingleRelease, subsample
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.schedules import SCHEDULES

if TYPE_CHECKING:
    from accounting.budget.plan import Plan

_DEFAULT_ADJACENCY = {
    "poisson": Adjacency.ADD_REMOVE,
    "fixed": Adjacency.REPLACE_ONE,
    "all": Adjacency.ADD_REMOVE,
    **dict.fromkeys(SCHEDULES, Adjacency.ADD_REMOVE),
}


@dataclass(frozen=True, kw_only=True)
class GaussianRounds:
    """Rounds whose sum has N(0, (z C)^2) on every coordinate, z the noise multiplier.

    mechanism "gaussian": the server adds the noise. "distributed-gaussian": each of r uploads has N(0, (z C)^2 / r);
    `dropout` is the fraction of these shares that may be missing, and the account is that of the worst case,
    z sqrt(1 - dropout). Then the adjacency defaults to zero-out where all clients take part: a client more would be a
    share more.
    """

    plan: Plan
    takes: ClassVar[frozenset[str]] = frozenset({"dropout", "noise_schedule"})
    has_noise_multiplier: ClassVar[bool] = True
    advice: ClassVar[str] = "Raise the noise multiplier or the target."

    def resolved(self) -> Mapping[str, Any]:
        """The adjacency."""
        plan, in_shares = self.plan, self.plan.mechanism == "distributed-gaussian"
        default = Adjacency.ZERO_OUT if in_shares and plan.sampling == "all" else _DEFAULT_ADJACENCY[plan.sampling]
        adjacency = Adjacency.of(plan.adjacency or default)
        if not 0 <= require.real("a fraction in [0, 1)", dropout=plan.dropout) < 1:
            raise InvalidParameter(f"dropout={plan.dropout}: must be a fraction in [0, 1).")
        if plan.dropout and not in_shares:
            raise InvalidParameter(
                f"dropout={plan.dropout} with mechanism='gaussian': centrally added noise does not drop out. "
                "Use mechanism 'distributed-gaussian' where the clients add noise shares."
            )
        if in_shares and plan.sampling not in ("fixed", "all"):
            raise InvalidParameter(
                f"mechanism='distributed-gaussian' with sampling={plan.sampling!r}: the noise of the sum would "
                "depend on the secret cohort size. Use sampling 'fixed' or 'all', or let the server add the noise."
            )
        if in_shares and adjacency is Adjacency.ADD_REMOVE:
            raise InvalidParameter(
                "mechanism='distributed-gaussian' with adjacency='add-remove': a client more or less is a share of "
                "noise more or less, which no account covers. Use 'zero-out' or 'replace-one'."
            )
        return {"adjacency": adjacency}

    @property
    def noise_kept(self) -> float:
        """What is left of the noise variance with the fraction `dropout` of the shares missing."""
        return 1 - self.plan.dropout

    def round(self, noise_multiplier: float | None) -> SingleRelease:
        """The mechanism of one round."""
        assert self.plan.adjacency is not None
        z = require.positive(noise_multiplier=noise_multiplier) * math.sqrt(self.noise_kept)
        return subsample(Gaussian(noise_multiplier=z, adjacency=self.plan.adjacency), self.plan.sampler)

    def details(self, noise_multiplier: float | None) -> Mapping[str, Any]:
        """Nothing besides."""
        return {}

    def notes(self, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """What is missing of the shares."""
        dropout = self.plan.dropout
        return (f"at most {dropout:.0%} of the noise shares missing",) if dropout else ()
