"""The one interval behind every audit by counting: exact, one-sided, for a binomial probability."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting import require
from dpfed.errors import ConfigError

Floats = NDArray[np.float64]

_SLIGHTLY_MORE = 1 + 1e-13
"""Also keeps SciPy 1.17 from k + 1 = 1000 exactly, where its inverse is wrong: alpha is 8% more for 10^8 trials."""


def upper_limit(successes: ArrayLike, trials: ArrayLike, *, alpha: float) -> Floats:
    """The upper confidence limit of a probability after `successes` in `trials` independent trials.

    Beta.ppf(1 - alpha; k + 1, n - k), and 1 for k = n   (Clopper, Pearson 1934)

    Claim: for every p the limit is below p with probability at most alpha. Elementwise; counts need not be whole (an
    expected count gives the limit that a typical one would). Direction of error: conservative; k counts as slightly
    more, which outweighs rounding.
    """
    from scipy.special import betainccinv

    level = require.open_probability(alpha=alpha)
    k, n = np.broadcast_arrays(np.asarray(successes, dtype=float), np.asarray(trials, dtype=float))
    if not np.all((n > 0) & (k >= 0) & (k <= n)):
        raise ConfigError(
            f"successes={successes!r}, trials={trials!r}: must be 0 <= successes <= trials, trials above 0."
        )
    inside = k < n
    more = (k + 1) * _SLIGHTLY_MORE
    return np.asarray(np.where(inside, betainccinv(more, np.where(inside, n - k, 1.0), level), 1.0))
