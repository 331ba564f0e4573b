"""Bounds of the Fed-SMP paper, with every side condition checked.

Hu, Guo, Gong: "Federated Learning with Sparsified Model Perturbation". Both bounds are for its Algorithm 2, which draws
a fixed number r of n clients without replacement and adds N(0, sigma^2 C^2) to the sum. A sum under that sampling moves
by 2C between neighbours (one member replaced by another), but the paper uses C. The sensitivity is an argument, so both
can be computed; only 2 gives a guarantee.
"""

import math
from dataclasses import dataclass

import numpy as np

from accounting import require
from accounting.arrays import Floats
from accounting.compose import rdp
from accounting.compose.rdp import Conversion
from accounting.gaussian.subsampling import fixed_size
from accounting.mechanisms import FixedSizeSampling
from accounting.rounding import downwards, upwards

_LEMMA_ORDERS: Floats = np.concatenate([np.arange(2.0, 129.0), [160.0, 192.0, 256.0, 384.0, 512.0]])


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Epsilon by the paper's formulas. `violated`: conditions that do not hold; if there are any, epsilon is not a
    guarantee.
    """

    epsilon: float
    order: float
    violated: tuple[str, ...]


def theorem_1(
    noise_multiplier: float,
    rounds: int,
    sampling: FixedSizeSampling,
    *,
    delta: float,
    sensitivity_in_clips: float,
) -> Reading:
    """Return the epsilon of Theorem 1: sigma^2 = 7 q^2 T (epsilon + 2 log(1/delta)) / epsilon^2, solved for epsilon.

    sigma = noise_multiplier / sensitivity_in_clips, q = r/n. Conditions (its Lemma 3 and Theorem 1, with the stray C^2
    removed): sigma^2 >= 0.7; epsilon < 2 log(1/delta); alpha <= (2/3) sigma^2 log(1 / (q alpha (1 + sigma^2))) + 1 at
    alpha = 1 + 2 log(1/delta) / epsilon.
    Direction of error: upper bound only if `violated` is empty and the sensitivity is correct.
    """
    sigma_squared = (require.positive(noise_multiplier=noise_multiplier) / sensitivity_in_clips) ** 2
    log_term = math.log(1 / require.open_probability(delta=delta))
    q = sampling.probability
    a = 7 * q * q * require.count(rounds=rounds)
    epsilon = (a + math.sqrt(a * a + 8 * sigma_squared * a * log_term)) / (2 * sigma_squared)
    order = 1 + 2 * log_term / epsilon
    allowed = 2 / 3 * sigma_squared * math.log(1 / (q * order * (1 + sigma_squared))) + 1
    violated = []
    if sigma_squared < 0.7:
        violated.append(f"sigma^2 = {downwards(sigma_squared)}, needed at least 0.7")
    if epsilon >= 2 * log_term:
        violated.append(f"epsilon = {upwards(epsilon)}, needed below 2 log(1/delta) = {2 * log_term:.4g}")
    if order > allowed:
        violated.append(f"alpha = {order:.2f}, allowed at most {allowed:.2f}")
    return Reading(epsilon=epsilon, order=order, violated=tuple(violated))


def lemma_3(
    noise_multiplier: float,
    rounds: int,
    sampling: FixedSizeSampling,
    *,
    delta: float,
    sensitivity_in_clips: float,
    conversion: Conversion = "improved",
) -> Reading:
    """Return the epsilon of Lemma 3 (Wang, Balle, Kasiviswanathan 2019), composed over rounds, at the best integer
    order.

    Direction of error: upper bound if `sensitivity_in_clips` is correct (2 under fixed-size sampling).
    """
    mu = sensitivity_in_clips / require.positive(noise_multiplier=noise_multiplier)
    one_round = fixed_size(_LEMMA_ORDERS, lambda a: a * mu * mu / 2, sampling_probability=sampling.probability)
    total = require.count(rounds=rounds) * one_round
    best = rdp.epsilon_from_curve(_LEMMA_ORDERS, total, delta=delta, conversion=conversion)
    return Reading(epsilon=best.epsilon, order=best.order, violated=())
