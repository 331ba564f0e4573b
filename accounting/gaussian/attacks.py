"""Neighbouring pairs of one sampled round with the largest known divergence, for lower bounds on every accountant."""

import math
from dataclasses import dataclass

import numpy as np

from accounting.arrays import Floats
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms import Adjacency, SingleRelease, gaussian_of, sampling_of, unsampled

Mixture = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class AttackPair:
    """Output distributions of two neighbours along the attacked direction: mixtures of unit-variance Gaussians.

    `p` and `q` are lists of (weight, mean). The loss log p(x)/q(x) must increase in x, or decrease and then increase.
    """

    p: Mixture
    q: Mixture

    def reversed(self) -> "AttackPair":
        """Return the pair with the neighbours exchanged, mirrored so that the loss increases again."""
        return AttackPair(p=tuple((w, -m) for w, m in self.q), q=tuple((w, -m) for w, m in self.p))

    def loss(self, x: Floats) -> Floats:
        """Return the privacy loss log(p(x) / q(x)) at each x."""
        return log_density(self.p, x) - log_density(self.q, x)

    def loss_moments(self) -> tuple[float, float]:
        """Return mean and variance of the loss under p, by quadrature. They are accurate to a few percent and serve to
        choose a grid.
        """
        means = [m for _, m in (*self.p, *self.q)]
        x = np.unique(np.concatenate([m + np.linspace(-9, 9, 2001) for m in set(means)]))
        weights = np.exp(log_density(self.p, x)) * np.gradient(x)
        weights /= weights.sum()
        loss = self.loss(x)
        mean = float(weights @ loss)
        return mean, float(weights @ (loss - mean) ** 2)


def attack_pairs(mechanism: SingleRelease) -> list[AttackPair]:
    """Return the best known pairs of neighbours of one sampled round, each in both orders.

    Poisson sampling: all other clients send zero; one client sends +C or nothing (replace-one: +C or -C). With a cap
    the pair is equal, but the client takes part with a smaller probability. Fixed size: all other clients send -C; one
    client sends +C or -C (zero-out: +C or 0, and 0 or -C).
    """
    noise, sampling = gaussian_of(mechanism), sampling_of(mechanism)
    if noise is None:
        raise UnsupportedMechanism(f"{type(unsampled(mechanism)).__name__}: no attack pair is known.")
    q, s = sampling.participation_probability(mechanism.adjacency), 1 / noise.noise_multiplier
    absent, present = (1 - q, 0.0), (q, s)
    if sampling.fixed_size:
        base = (1 - q, -s)
        if mechanism.adjacency is Adjacency.REPLACE_ONE:
            pairs = [_pair([base, present], [(1.0, -s)])]
        else:
            pairs = [_pair([base, present], [base, (q, 0.0)]), _pair([base, (q, 0.0)], [(1.0, -s)])]
    elif mechanism.adjacency is Adjacency.REPLACE_ONE:
        pairs = [_pair([absent, present], [absent, (q, -s)])]
    else:
        pairs = [_pair([absent, present], [(1.0, 0.0)])]
    return [*pairs, *(pair.reversed() for pair in pairs)]


def _pair(p: list[tuple[float, float]], q: list[tuple[float, float]]) -> AttackPair:
    return AttackPair(p=tuple(part for part in p if part[0] > 0), q=tuple(part for part in q if part[0] > 0))


def log_density(mixture: Mixture, x: Floats) -> Floats:
    """Return the log density of a mixture at each x, up to a constant that all mixtures share."""
    terms = [math.log(w) - (x - m) ** 2 / 2 for w, m in mixture]
    return np.asarray(np.logaddexp.reduce(terms, axis=0))
