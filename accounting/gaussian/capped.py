"""One round of Poisson sampling with a cap: of more than K drawn clients a secret, uniformly random K take part.

With R the number drawn among the other clients, zeta = Pr[R >= K] and p = E[q K / (R + 1) | R >= K], the hockey-stick
divergence of a round is at most (1 - zeta) h + zeta h' in each order of the neighbours (docs/theory.md, Theorem 9): h
is the profile of plain Poisson sampling; h', with the probability p to take part, is that of fixed-size sampling
(zero-out, replace-one), or of Poisson sampling with a shift of 2 clips (add-remove). Both are convex in gamma, so the
sum is the profile of a pair, and rounds compose. Not covered: memory of a client, and its knowledge that it was drawn
and left out.
"""

import numpy as np

from accounting.arrays import Floats
from accounting.gaussian import fixed_size, poisson
from accounting.mechanisms.adjacency import Adjacency
from accounting.mechanisms.samplings import CappedByPairs, CappedPoissonSampling

Orders = tuple[Floats, Floats]
"""Profiles of both orders of the neighbours, at losses >= 0."""


def profiles(
    losses: Floats, *, sampling: CappedPoissonSampling, adjacency: Adjacency, noise_multiplier: float
) -> Orders:
    """Return the one-round profiles of both orders.

    Domain: losses >= 0. Direction of error: upper bound; both parts are attained, their mean is not. Add-remove: the
    larger of n and n + 1, and of n - 1 and n clients.
    """
    each = [
        _mean(full, losses, sampling=sampling, adjacency=adjacency, noise_multiplier=noise_multiplier)
        for full in sampling.full_rounds(adjacency)
    ]
    forth, back = zip(*each, strict=True)
    return np.maximum.reduce(forth), np.maximum.reduce(back)


def _mean(
    full: tuple[float, float],
    losses: Floats,
    *,
    sampling: CappedPoissonSampling,
    adjacency: Adjacency,
    noise_multiplier: float,
) -> Orders:
    """Return the mean of the profiles of rounds that are not full, and of full rounds (their probability zeta, p)."""
    zeta, p = full
    plain = {"sampling_probability": sampling.probability, "noise_multiplier": noise_multiplier}
    restoring = {"sampling_probability": p, "noise_multiplier": noise_multiplier}
    displacing, zeroing = dict(restoring), fixed_size.zeroing_profile
    if isinstance(sampling, CappedByPairs):  # p H_g(2 clips), by advanced joint convexity; no three vectors are known
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
