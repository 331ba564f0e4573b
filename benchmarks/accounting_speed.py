"""Speed of accounting compared with dp-accounting and Opacus: 10,000 settings, and noise or rounds from epsilon.

python benchmarks/accounting_speed.py [--force] [--repeats 5]

Medians of repeated runs on one thread, contenders in turn. Stops without a report if other processes kept the cores
busy; --force reports with a warning.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import contextlib
import io
import logging
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, calibrate_dp_mechanism
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from quiet import OtherWork, other_work_now, refuse

from accounting import budget
from accounting.budget import Plan
from accounting.compose import accountant, grid, lower_bound, pld, rdp
from accounting.mechanisms import Composed, Gaussian, PoissonSampling, subsample
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards

WHOLE = rdp.ORDERS[np.round(rdp.ORDERS) == rdp.ORDERS]
# clients, cohort, rounds, epsilon: small noise, the Fed-SMP paper's setting, many rounds
SETTINGS = [(1_000, 100, 50, 4.0), (6_000, 100, 180, 1.01), (100_000, 100, 5_000, 2.0)]
ACCURACY = 1e-4


def median(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def cells(kind: str) -> tuple[np.ndarray, ...]:
    """Return 10,000 settings (q, sigma, T), all different, or on a lattice 20 x 25 x 20."""
    draw = np.random.default_rng(1)
    if kind == "10,000 different":
        q, z = 10 ** draw.uniform(-4, -0.3, 10_000), 10 ** draw.uniform(-0.3, 1.5, 10_000)
        return q, z, 10.0 ** draw.integers(0, 5, 10_000)
    axes = np.geomspace(1e-3, 0.3, 20), np.geomspace(0.5, 4, 25), np.geomspace(10, 10_000, 20).round()
    return tuple(axis.ravel() for axis in np.meshgrid(*axes, indexing="ij"))


def library_rdp(q: float, z: float, rounds: int, orders: list[float], delta: float) -> float:
    upstream = RdpAccountant(orders)
    upstream.compose(PoissonSampledDpEvent(q, GaussianDpEvent(z)), rounds)
    return float(upstream.get_epsilon(delta))


def sampled_run(q: float, z: float, rounds: float) -> Composed:
    noise = Gaussian(noise_multiplier=float(z), adjacency=Adjacency.ADD_REMOVE)
    return Composed(parts=((subsample(noise, PoissonSampling(probability=float(q))), int(rounds)),))


def grid_table(repeats: int) -> None:
    print(
        "\n| 10,000 cells (q, sigma, T) | seconds | dp-accounting, whole orders: a cell, s | all, s (extrapolated) | ",
        end="",
    )
    print("largest difference | least epsilon / the truth's |\n|---|--:|--:|--:|--:|--:|")
    for kind in ("10,000 different", "lattice 20 x 25 x 20"):
        q, z, rounds = cells(kind)
        seconds = median(lambda c=(q, z, rounds): grid.epsilons(*c, 1e-5), repeats)
        ours = grid.epsilons(q, z, rounds, 1e-5, orders=WHOLE)
        best = grid.epsilons(q, z, rounds, 1e-5)
        some = np.random.default_rng(2).choice(10_000, 40, replace=False)
        began, worst = time.perf_counter(), 0.0
        for i in some:
            theirs = library_rdp(float(q[i]), float(z[i]), int(rounds[i]), WHOLE.tolist(), 1e-5)
            worst = max(worst, abs(ours[i] - theirs) / max(theirs, 1e-12) if theirs else abs(ours[i]))
        each = (time.perf_counter() - began) / len(some)
        least = np.inf
        for i in some[:20]:
            truth = lower_bound.epsilon(sampled_run(q[i], z[i], rounds[i]), delta=1e-5)
            least = min(least, best[i] / truth if truth > 0 else np.inf)
        print(f"| {kind} | {seconds:.2f} | {each:.3f} | {each * 1e4:,.0f} | {worst:.1e} | {least:.4f} |", flush=True)


def contenders(setting: tuple[int, int, int, float]) -> dict[str, dict[str, Callable[[], float]]]:
    """Return functions from epsilon to noise multiplier, by accountant and library."""
    from opacus.accountants.utils import get_noise_multiplier

    clients, cohort, rounds, epsilon = setting
    plan, q = Plan(clients=clients, cohort=cohort), cohort / clients

    def event(z: float) -> SelfComposedDpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(float(z))), rounds)

    def opacus(kind: str, **more: float) -> float:
        # A step of epsilon this small moves the noise multiplier by less than ACCURACY.
        return get_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=float(plan.delta or 0),
            sample_rate=q,
            steps=rounds,
            accountant=kind,
            epsilon_tolerance=ACCURACY * epsilon,
            **more,
        )

    def ours(kind: str) -> float:
        rdp._sampled_curve.cache_clear()
        return budget.noise_multiplier(plan, epsilon=epsilon, rounds=rounds, accountant=kind)

    def library(kind: Callable) -> float:
        return calibrate_dp_mechanism(kind, event, epsilon, float(plan.delta or 0), tol=ACCURACY)

    return {
        "rdp": {
            "dpfed": lambda: ours("rdp"),
            "dp-accounting": lambda: library(RdpAccountant),
            "Opacus": lambda: opacus("rdp"),
        },
        "pld": {
            "dpfed": lambda: ours("pld"),
            "dp-accounting": lambda: library(PLDAccountant),
            "Opacus prv": lambda: opacus("prv"),
            "Opacus prv, eps_error 1e-3": lambda: opacus("prv", eps_error=1e-3),
        },
    }


def noise_table(repeats: int) -> None:
    print("\n| noise multiplier from epsilon | accountant | by | median s | times ours | noise multiplier |", end="")
    print(" epsilon by dpfed |")
    print("|---|---|---|--:|--:|--:|--:|")
    for setting in SETTINGS:
        clients, cohort, rounds, epsilon = setting
        plan = Plan(clients=clients, cohort=cohort)
        for kind, who in contenders(setting).items():
            fastest = 0.0
            for name, solve in who.items():
                z = solve()
                seconds = median(solve, repeats if name == "dpfed" else max(1, repeats // 2))
                fastest = fastest or seconds
                reached = accountant.epsilon(plan.run(z, rounds), delta=float(plan.delta or 0), accountant=kind)
                print(
                    f"| {cohort} of {clients:,}, T = {rounds:,}, epsilon {upwards(epsilon)} | {kind} | {name} "
                    f"| {seconds:.3f} | {seconds / fastest:.0f} "
                    f"| {upwards(z, digits=6)} | {upwards(reached, digits=5)} |",
                    flush=True,
                )


def rounds_table(repeats: int) -> None:
    print("\n| rounds from epsilon | accountant | by | median s | times ours | rounds |\n|---|---|---|--:|--:|--:|")
    plan, epsilon, z = Plan(clients=6_000, cohort=100), 1.01, 1.4
    delta, q = float(plan.delta or 0), 1 / 60

    def event(count: int) -> SelfComposedDpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(z)), max(int(count), 1))

    def ours(kind: str) -> int:
        rdp._sampled_curve.cache_clear()
        return budget.rounds(plan, epsilon=epsilon, noise_multiplier=z, accountant=kind)

    for kind, upstream in (("rdp", RdpAccountant), ("pld", PLDAccountant)):
        who = {
            "dpfed": lambda k=kind: ours(k),
            "dp-accounting": lambda u=upstream: calibrate_dp_mechanism(u, event, epsilon, delta, discrete=True),
        }
        fastest = 0.0
        for name, solve in who.items():
            found = solve()
            seconds = median(solve, repeats if name == "dpfed" else max(1, repeats // 2))
            fastest = fastest or seconds
            print(f"| 100 of 6,000, sigma 1.4, epsilon 1.01 | {kind} | {name} | {seconds:.3f} ", end="")
            print(f"| {seconds / fastest:.0f} | {found} |", flush=True)


def import_seconds() -> float:
    def once() -> float:
        run = [sys.executable, "-X", "importtime", "-c", "import accounting"]
        last = subprocess.run(run, check=True, capture_output=True, text=True).stderr.strip().splitlines()[-1]
        return int(last.split("|")[1]) / 1e6

    return statistics.median(once() for _ in range(7))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    refuse(other_work_now(), force=options.force)
    warnings.simplefilter("ignore")  # the peers warn at every call, which is not measured
    logging.disable(logging.WARNING)
    pld.epsilon(
        Plan(clients=100, cohort=10).run(2.0, 3), delta=1e-5
    )  # warm-up: loads modules that are imported at first use
    during, report = OtherWork(), io.StringIO()
    with contextlib.redirect_stdout(report):
        print(f"`import accounting`: {import_seconds():.3f} s")
        grid_table(options.repeats)
        noise_table(options.repeats)
        rounds_table(options.repeats)
    refuse(during.cores(), force=options.force)
    print(report.getvalue())


if __name__ == "__main__":
    main()
