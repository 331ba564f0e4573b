"""Convex curves through points."""

import numpy as np

from accounting.gaussian.half_lines import Floats


def convex_below(gammas: Floats, curve: Floats) -> Floats:
    """The largest convex curve that is nowhere above these points: those above the chord of their neighbours go."""
    kept = np.arange(len(curve))
    while True:
        slopes = np.diff(curve[kept]) / np.diff(gammas[kept])
        above = np.flatnonzero(np.diff(slopes) < 0) + 1
        if not above.size:
            return np.asarray(np.interp(gammas, gammas[kept], curve[kept]))
        kept = np.delete(kept, above)
