"""Milliseconds of integer noise and fixed-point encoding for d numbers of a client, on one thread.

    python benchmarks/integer_noise.py [--dimension 1600000] [--std 840] [--opendp-python PYTHON]

dpfed's exact samplers are compared with naive inexact ones (a rounded normal is no discrete Gaussian; numpy's Poisson
sampler works in floating point), and with OpenDP's exact discrete Gaussian, run by a Python that has it. Prints
Markdown tables, and a two-sample test of OpenDP's and dpfed's draws.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from dpfed.compress.fixed_point import FixedPoint
from dpfed.compress.rotation import one_thread
from dpfed.mechanisms.integer_distributions import DiscreteGaussianLaw, SkellamLaw
from dpfed.randomness import Randomness, Secure, Simulated
from dpfed.seeds import Seeds

_OPENDP = """
import sys, time
import numpy as np
import opendp.prelude as dp
dp.enable_features("contrib")
space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")
noise = space >> dp.m.then_gaussian(float(sys.argv[1]))
zeros = [0] * int(sys.argv[2])
start = time.perf_counter()
drawn = noise(zeros)
print(time.perf_counter() - start)
np.save(sys.argv[3], drawn)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=1_600_000)
    parser.add_argument("--std", type=int, default=840)
    parser.add_argument("--opendp-python")
    options = parser.parse_args()
    with one_thread():
        noise_table(options.dimension, options.std, options.opendp_python)
        code_table(options.dimension)


def noise_table(dimension: int, std: int, opendp_python: str | None) -> None:
    variance, generator = std**2, np.random.default_rng(0)
    simulated, secure = Simulated(seeds=Seeds(root=0)), Secure()
    print(f"d = {dimension:,}, σ = {std}\n")
    print("| noise | exact | simulated, ms | secure, ms |\n|---|---|--:|--:|")
    for name, law in (
        ("discrete Gaussian, dpfed", DiscreteGaussianLaw(variance)),
        ("Skellam, dpfed", SkellamLaw(variance)),
    ):
        times = [
            best(lambda source=source, law=law: law.sample(dimension, source, "x")) for source in (simulated, secure)
        ]
        print(f"| {name} | yes | {times[0]:.0f} | {times[1]:.0f} |")
    rounded = best(lambda: np.rint(std * generator.standard_normal(dimension)).astype(np.int64))
    print(f"| normal, rounded, numpy | no | {rounded:.0f} | |")
    rate = variance / 2
    skellam = best(lambda: generator.poisson(rate, dimension) - generator.poisson(rate, dimension))
    print(f"| two Poissons, numpy | no | {skellam:.0f} | |")
    if opendp_python:
        seconds, drawn = opendp(opendp_python, std, dimension)
        print(f"| discrete Gaussian, OpenDP | yes | | {1e3 * seconds:,.0f} |")
        ours = DiscreteGaussianLaw(variance).sample(dimension, secure, "x")
        print(f"\nOpenDP's draws and ours: Kolmogorov-Smirnov p = {stats.ks_2samp(drawn, ours).pvalue:.3f}")


def opendp(python: str, std: int, dimension: int) -> tuple[float, np.ndarray]:
    """Return the seconds of OpenDP, and its draws."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawn.npy"
        command = [python, "-c", _OPENDP, str(std), str(dimension), str(path)]
        seconds = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return seconds, np.load(path)


def code_table(dimension: int) -> None:
    row = torch.randn(1, dimension, generator=torch.Generator().manual_seed(0))
    row /= row.norm()
    simulated, secure = Simulated(seeds=Seeds(root=0)), Secure()
    print("\n| fixed point | integers | encode simulated, ms | encode secure, ms | decode, ms |\n|---|--:|--:|--:|--:|")
    for rotate in (False, True):
        code = FixedPoint(size=dimension, steps_per_unit=8000.0, rotate=rotate)
        times = [best(lambda source=source, code=code: encoded(code, row, source)) for source in (simulated, secure)]
        total = encoded(code, row, simulated)[0].long()
        decode = best(lambda code=code, total=total: code.decode(total, rotation_seed=1))
        name = "rotated" if rotate else "not rotated"
        print(f"| {name} | {code.padded:,} | {times[0]:.0f} | {times[1]:.0f} | {decode:.0f} |")


def encoded(code: FixedPoint, row: torch.Tensor, source: Randomness) -> torch.Tensor:
    client = np.array([0])
    return code.encode(row, clip_norm=1.0, rotation_seed=1, randomness=source, names=client, path=(0,)).integers


def best(run: Callable[[], object], times: int = 7) -> float:
    """Return the milliseconds of the fastest run, after a warm-up of tables and memory."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return 1e3 * min(taken)


if __name__ == "__main__":
    main()
