"""Means of clipped normals by quadrature in many digits."""

import mpmath as mp


def mean(theta: float, c: float, sigma: float, function=lambda x: x) -> mp.mpf:
    """E function(clip(theta + N(0, sigma^2), c, 1-c))."""
    with mp.workdps(30):
        t, low, s = mp.mpf(theta), mp.mpf(c), mp.mpf(sigma)
        high = 1 - low
        ends = sorted(
            {max(low, t - 12 * s), *(x for x in (t - 3 * s, t, t + 3 * s) if low < x < high), min(high, t + 12 * s)}
        )
        inside = mp.quad(lambda x: function(x) * mp.npdf((x - t) / s) / s, ends) if len(ends) > 1 else mp.mpf(0)
        below, above = mp.ncdf((low - t) / s), mp.ncdf((t - high) / s)
        return function(low) * below + inside + function(high) * above


def paper_mean(theta: float, c: float, sigma: float) -> mp.mpf:
    """The FedPM paper's appendix C, last line: its factor e^(-2(c-theta)-1) - 1 in place of the exponential."""
    t, low, s = mp.mpf(theta), mp.mpf(c), mp.mpf(sigma)
    a, b = (low - t) / s, (1 - low - t) / s
    bent = s * mp.npdf(a) * (mp.exp(-2 * (low - t) - 1) - 1)
    return low * mp.ncdf(a) + t * (mp.ncdf(b) - mp.ncdf(a)) - bent + (1 - low) * mp.ncdf(-b)
