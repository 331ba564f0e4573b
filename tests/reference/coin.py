"""The Renyi divergence of two coins in many digits."""

import math

import mpmath as mp


def renyi(order: float, p: float, q: float, digits: int = 80) -> mp.mpf:
    with mp.workdps(digits):
        heads = (mp.mpf(p), mp.mpf(q))
        sides = [side for side in (heads, (1 - heads[0], 1 - heads[1])) if side[0] > 0]
        if any(under == 0 for _, under in sides):
            return mp.inf
        if order == 1:
            return mp.fsum(x * mp.log(x / y) for x, y in sides)
        if math.isinf(order):
            return max(mp.log(x / y) for x, y in sides)
        a = mp.mpf(order)
        return mp.log(mp.fsum(x**a * y ** (1 - a) for x, y in sides)) / (a - 1)
