"""The one interval behind every audit by counting: exact, one-sided, for a binomial probability."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import require
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]


def upper_limit(successes: ArrayLike, trials: ArrayLike, *, alpha: float) -> Floats:
    """The upper confidence limit of a probability after `successes` in `trials` independent trials.

    Beta.ppf(1 - alpha; k + 1, n - k), and 1 for k = n   (Clopper, Pearson 1934)

    Claim: for every p the limit is below p with probability at most alpha. Elementwise; counts need not be whole (an
    expected count gives the limit that a typical one would). Direction of error: conservative, never below nominal.
    """
    from scipy.special import betaincinv

    level = require.open_probability(alpha=alpha)
    k, n = np.broadcast_arrays(np.asarray(successes, dtype=float), np.asarray(trials, dtype=float))
    if not np.all((n > 0) & (k >= 0) & (k <= n)):
        raise ConfigError(
            f"successes={successes!r}, trials={trials!r}: must be 0 <= successes <= trials, trials above 0."
        )
    inside = k < n
    return np.asarray(np.where(inside, betaincinv(k + 1, np.where(inside, n - k, 1.0), 1 - level), 1.0))
