"""Size of a marked mechanism's noise: a test of many calls, and coordinates that stay without noise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe

import numpy as np
from numpy.typing import NDArray

from dpfed import replayed
from dpfed.audit.replays.findings import Array, Floats, as_array
from dpfed.forks import Fork

_VALUES, _CALLS = 1 << 19, 1 << 16
"""Number of noise values that a test draws, and the largest number of calls for them."""
_FEWEST_VALUES, _PART = 1 << 12, 0.5
"""Number of values after which slow calls end at this part of the time limit."""
_SECONDS = 600.0
"""Time limit of a test."""
_ERRORS = 6.0
"""Standard errors beyond which a test fails: a probability of 1e-9 on correct noise."""
_ALPHA = 1e-9
"""Largest probability that a mechanism with noise in all coordinates is said to have none in one."""


@dataclass(frozen=True, kw_only=True)
class NoiseSize:
    """Test that the noise of repeated calls is as large as stated, and drawn afresh in each call.

    f: the call, as a function without arguments whose result is the noisy output. given: its input. std: stated
    standard deviation of the noise in each coordinate
    """

    f: Callable[[], object]
    given: object
    std: float

    def tested(self) -> str:
        """Return what is wrong with the noise; "" if nothing was found. The calls are made in a fork of this process.

        The noise may be larger than stated. It fails if its mean square is more than six standard errors below the
        stated one (8 standard errors are 0.8% of the deviation for vectors of at least 8 coordinates), or far below it
        in one coordinate, if coordinates stay without noise, or if coordinates or consecutive calls are correlated.
        Claim: noise as stated, independent over coordinates and calls, fails with probability at most about 1e-8.
        """
        here, there = Pipe(duplex=False)

        def send_result() -> None:
            here.close()
            there.send(self._result_or_error())

        process = Fork(send_result)
        there.close()
        try:
            if here.poll(_SECONDS):
                return str(here.recv())
            return f"noise cannot be tested: its calls take more than {_SECONDS:.0f} s"
        except EOFError:
            return "noise cannot be tested: repeated calls end the process"
        finally:
            here.close()
            process.kill()
            process.wait()

    def _result_or_error(self) -> str:
        replayed.enter_replay(None)
        try:
            return self._result()
        except Exception as error:  # the function under audit may raise anything
            return f"noise cannot be tested: a repeated call raises {type(error).__name__}: {error}"

    def _result(self) -> str:
        entered = as_array(self.given).astype(np.float64).reshape(-1)
        squares, fourths, products, sums, zeros, calls = np.zeros(len(entered)), 0.0, 0.0, 0.0, 0, 0
        before: Floats | None = None
        late = time.monotonic() + _PART * _SECONDS
        for _ in range(min(_CALLS, max(8, _VALUES // max(1, len(entered))))):
            noise = as_array(self.f()).astype(np.float64).reshape(-1) - entered
            squares += noise**2
            fourths += float((noise**4).sum())
            products += 0.0 if before is None else float(noise @ before)
            sums += float(noise.sum()) ** 2
            zeros += int((noise == 0).sum())
            before, calls = noise, calls + 1
            if calls >= 8 and calls * len(entered) >= _FEWEST_VALUES and time.monotonic() > late:
                break
        silent = int(((squares == 0) & (entered != 0)).sum())
        zeros -= calls * int((squares == 0).sum())
        moved = max(int((squares > 0).sum()), 1)
        squares = squares[(squares > 0) | (entered != 0)]  # others may be outside a public mask
        count = max(calls * len(squares), 1)
        mean = float(squares.sum()) / count
        error = math.sqrt(max(fourths / count - mean**2, 0.0) / count)
        if silent and len(entered) * (zeros / moved / calls) ** calls < _ALPHA:  # whole numbers may all be 0
            return f"adds no noise to {silent} of {len(entered)} coordinates in {calls} calls"
        together = sums / max(float(squares.sum()), 1e-300)
        correlation = products / max(float(squares.sum()), 1e-300)
        limit = _ERRORS * float(np.linalg.norm(squares)) * math.sqrt(max(together, 1.0) / calls) * (1 + 1e-9)
        if abs(correlation) * float(squares.sum()) > limit:
            return f"noise of consecutive calls is correlated ({correlation:.2f} in {count:,} values)"
        # Fourth moment over the squared variance. The variance of the squared sum follows, as of chi-square (Laurent
        # and Massart 2000, Lemma 1).
        kurtosis, room = fourths / count / max(mean**2, 1e-300), -math.log(_ALPHA)
        room *= (1 + max(kurtosis - 3, 0.0) / 2 / max(len(squares), 1)) / calls
        if len(squares) > 1 and not abs(together - 1) <= 2 * math.sqrt(room) + 2 * room:
            return f"noise of its coordinates is correlated: their sum has {together:.2g} times the variance"
        if not mean + _ERRORS * error >= self.std**2:
            return (
                f"noise is short: standard deviation {math.sqrt(mean):.4g} in {count:,} values, {self.std:.4g} stated"
            )
        # A mean of n squares is below 1 - u of its expectation with probability at most exp(-n u^2 / (2 kurtosis)).
        lowest = 1 - math.sqrt(2 * kurtosis * math.log(max(len(squares), 1) / _ALPHA) / calls)
        short = squares / calls < max(lowest, 0.0) * self.std**2
        if short.any():
            least = math.sqrt(float(squares.min()) / calls)
            return (
                f"noise is short in {int(short.sum())} of {len(entered)} coordinates: standard deviation {least:.4g} "
                f"in {calls:,} calls, {self.std:.4g} stated"
            )
        return ""


def unchanged_coordinates() -> Callable[[str, object, Array, Array], list[int]]:
    """Return a function (mechanism, client, input, output) -> coordinates without noise in all calls so far.

    Claim: on noise with a density, or on a grid of at most a sixth of its smallest value, each call returns a
    coordinate with probability at most 1e-9. A coordinate whose input is 0 in all calls is never returned, since it may
    be outside a public mask.
    """
    kept: dict[tuple[str, object], tuple[NDArray[np.bool_], Floats, list[float]]] = {}

    @np.errstate(all="ignore")  # a warning here must not become an error of the code under audit
    def add(name: str, client: object, entered: Array, left: Array) -> list[int]:
        one, two = entered.reshape(-1), left.reshape(-1)
        noise = np.abs(two.astype(np.float64) - one.astype(np.float64))
        moved = noise[(noise > 0) & np.isfinite(noise)]
        if not len(moved):
            return []
        still, logs, pool = kept.get((name, client), (np.ones(len(one), bool), np.zeros(len(one)), []))
        if len(still) != len(one):
            return []
        pool += moved[: max(0, 4096 - len(pool))].tolist()
        equal = (noise == 0) & (one != 0)
        still &= (noise == 0) | (one == 0)
        grain = np.maximum(_grid(np.array(pool)), np.spacing(np.abs(one).astype(min(one.dtype, two.dtype))))
        logs = logs + np.where(equal, np.minimum(np.log(grain / float(np.median(moved))), 0.0), 0.0)
        kept[name, client] = still, logs, pool
        if len(pool) < 4:
            return []
        return np.flatnonzero(still & (logs < math.log(_ALPHA / len(one)))).tolist()

    return add


def _grid(values: Floats) -> float:
    """Return the step of the grid of which all values are multiples; 0.0 if there is none."""
    smallest = float(values.min())
    for part in range(1, 7):
        ratios = values / (smallest / part)
        if np.all(np.abs(ratios - np.round(ratios)) <= np.maximum(1e-3, ratios * 1e-6)):
            return smallest / part
    return 0.0
