"""Renyi divergences of the Poisson-sampled Gaussian in many digits: P = (1-q) N(0) + q N(s), Q = N(0)."""

import mpmath as mp


def removal(order: float, q: float, noise_multiplier: float, digits: int = 40) -> mp.mpf:
    """D_order(P || Q): the binomial sum where the order is whole, else quadrature."""
    with mp.workdps(digits):
        s, prob = 1 / mp.mpf(noise_multiplier), mp.mpf(q)
        if order == int(order):
            a = int(order)
            moment = mp.fsum(
                mp.binomial(a, k) * (1 - prob) ** (a - k) * prob**k * mp.exp((k * k - k) * s * s / 2)
                for k in range(a + 1)
            )
        else:
            moment = _quadrature(lambda ratio: ratio ** mp.mpf(order), prob, s, peak=order * s)
        return mp.log(moment) / (mp.mpf(order) - 1)


def addition(order: float, q: float, noise_multiplier: float, digits: int = 40) -> mp.mpf:
    """D_order(Q || P), by quadrature."""
    with mp.workdps(digits):
        s, prob = 1 / mp.mpf(noise_multiplier), mp.mpf(q)
        moment = _quadrature(lambda ratio: ratio ** (1 - mp.mpf(order)), prob, s, peak=mp.mpf(0))
        return mp.log(moment) / (mp.mpf(order) - 1)


def _quadrature(power, prob, s, *, peak):
    """E over x ~ N(0, 1) of power(p(x)/q(x)); pieces around the bulk, the shift and the integrand's peak."""
    centres = sorted({mp.mpf(0), s, s / 2 - mp.log(prob) / s, mp.mpf(peak)})
    low, high = min(centres[0], mp.mpf(0)) - 20, max(centres[-1] if centres[-1] < 200 else peak, peak) + 20
    points = sorted({low, high, *(c + d for c in centres for d in (-6, -2, 0, 2, 6) if low < c + d < high)})

    def integrand(x):
        return power(1 - prob + prob * mp.exp(s * x - s * s / 2)) * mp.npdf(x)

    return mp.quad(integrand, points)
