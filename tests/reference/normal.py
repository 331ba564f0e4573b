"""The Gaussian mechanism in many digits (mpmath): Balle, Wang 2018, Theorem 8."""

import mpmath as mp


def profile(epsilon: float, mu: float, digits: int = 60) -> mp.mpf:
    """delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
    with mp.workdps(digits):
        eps, shift = mp.mpf(epsilon), mp.mpf(mu)
        return upper_tail(eps / shift - shift / 2) - mp.exp(eps) * upper_tail(eps / shift + shift / 2)


def upper_tail(x: mp.mpf) -> mp.mpf:
    """Pr[N(0, 1) > x], without cancelling."""
    return mp.erfc(x / mp.sqrt(2)) / 2


def epsilon(delta: float, mu: float, digits: int = 60) -> mp.mpf:
    """The epsilon >= 0 at which `profile` is delta; 0 if it is below already there."""
    with mp.workdps(digits):
        if profile(0, mu, digits) <= mp.mpf(delta):
            return mp.mpf(0)
        low, high = mp.mpf(0), mp.mpf(mu) ** 2 / 2 + mp.mpf(mu) * mp.sqrt(2 * mp.log(1 / mp.mpf(delta))) + 1e-30
        for _ in range(120):
            middle = (low + high) / 2
            if profile(middle, mu, digits) > mp.mpf(delta):
                low = middle
            else:
                high = middle
        return high
