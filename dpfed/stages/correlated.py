"""Noise that is taken back over rounds, so that it cancels in the model: a banded factorisation of prefix sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from accounting import factorisation
from accounting.factorisation.toeplitz import inverse
from accounting.gaussian.half_lines import Floats


@dataclass(frozen=True, kw_only=True)
class Correlated:
    """w_t = sum over j of d_j z_(t-j): d the first column of C^-1, C the square root of prefix sums cut to `bands`.

    z_t is the fresh noise of round t. Earlier rounds' are drawn again from their streams: nothing of them is kept, in
    memory or on disk, and a run resumes at any round; so it is for randomness that can be repeated. Time: t draws.
    """

    bands: int
    rounds: int

    @cached_property
    def norm(self) -> float:
        """|c|: the sensitivity of one participation, in clip norms."""
        return float(np.linalg.norm(factorisation.square_root(self.bands)))

    @cached_property
    def returned(self) -> Floats:
        """d, [rounds]."""
        return inverse(factorisation.square_root(self.bands), rounds=self.rounds)

    def noise(self, fresh: Tensor, number: int, drawn_in: Callable[[int], Tensor]) -> Tensor:
        """w of round `number`, from its fresh noise and that of the rounds before, drawn again."""
        noise = fresh.clone()
        for lag in range(1, number + 1):
            noise.add_(drawn_in(number - lag), alpha=float(self.returned[lag]))
        return noise
