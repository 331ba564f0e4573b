"""Profiles of one round of Poisson sampling with a cap: if more than K clients are drawn, a secret random K take part.

Let R be the number of other clients that are drawn. With zeta = Pr[R >= K] and p = E[q K / (R + 1) | R >= K], the
hockey-stick divergence of a round is at most (1 - zeta) h + zeta h' in each order of the neighbours (docs/theory.md,
Theorem 9): h is the profile of plain Poisson sampling; h', with the probability p to take part, is that of fixed-size
sampling (zero-out, replace-one), or of Poisson sampling with a shift of 2 clips (add-remove). Both are convex in gamma,
so the sum is the profile of a dominating pair, and rounds compose. The bound does not cover clients whose messages
depend on earlier rounds, or that learn that they were drawn and left out.
"""

import numpy as np

from accounting.arrays import Floats
from accounting.gaussian import fixed_size, poisson
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings import CappedPoissonSampling, PairwiseCappedSampling

Orders = tuple[Floats, Floats]
"""Profiles in both orders of the neighbours, at losses >= 0."""


def profiles(
    losses: Floats, *, sampling: CappedPoissonSampling, adjacency: Adjacency, noise_multiplier: float
) -> Orders:
    """Return upper bounds on the profiles of one round, in both orders of the neighbours.

    Domain: losses >= 0.
    Direction of error: upper bound. Each of the two parts is attained by a pair, their mean is not. Under add-remove
    the result is the maximum over n - 1 and n other clients.
    """
    profile_pairs = [
        _mean_profiles(full, losses, sampling=sampling, adjacency=adjacency, noise_multiplier=noise_multiplier)
        for full in sampling.full_rounds(adjacency)
    ]
    forth, back = zip(*profile_pairs, strict=True)
    return np.maximum.reduce(forth), np.maximum.reduce(back)


def _mean_profiles(
    full: tuple[float, float],
    losses: Floats,
    *,
    sampling: CappedPoissonSampling,
    adjacency: Adjacency,
    noise_multiplier: float,
) -> Orders:
    """Return the mean of the profiles of rounds that are not full, and of full rounds, weighted by zeta. full: (zeta,
    p).
    """
    zeta, p = full
    plain = {"sampling_probability": sampling.probability, "noise_multiplier": noise_multiplier}
    restoring = {"sampling_probability": p, "noise_multiplier": noise_multiplier}
    displacing, zeroing = dict(restoring), fixed_size.zeroing_profile
    if isinstance(
        sampling, PairwiseCappedSampling
    ):  # only pairs are dominated: advanced joint convexity, p H_g(2 clips)
        displacing["noise_multiplier"], zeroing = sampling.full_noise_multiplier, fixed_size.replacement_profile
    if adjacency is Adjacency.REPLACE_ONE:
        free = poisson.replacement_profile(losses, **plain)
        both = (1 - zeta) * free + zeta * fixed_size.replacement_profile(losses, **displacing)
        return both, both
    if adjacency is Adjacency.ADD_REMOVE:
        displacing["noise_multiplier"] /= 2
        forth = poisson.removal_profile(losses, **displacing)
        back = poisson.addition_profile(losses, **displacing)
    else:
        forth = zeroing(losses, **displacing)
        back = fixed_size.restoring_profile(losses, **restoring)
    return (
        (1 - zeta) * poisson.removal_profile(losses, **plain) + zeta * forth,
        (1 - zeta) * poisson.addition_profile(losses, **plain) + zeta * back,
    )
