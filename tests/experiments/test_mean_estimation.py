"""FedPM, Figure 5: the numbers that its curves rest on."""

from __future__ import annotations

import itertools
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scripts import script


@pytest.fixture(scope="module")
def run() -> ModuleType:
    return script("experiments/fedpm/figure-5/run.py")


def test_the_paper_s_cap_is_a_renyi_bound_of_order_5_with_its_conversion(run: ModuleType) -> None:
    of_one_coin = math.log(0.2**5 * 0.8**-4 + 0.8**5 * 0.2**-4) / 4
    assert run.paper_cap(5) == pytest.approx(5 * of_one_coin + math.log(1e4) / 4, rel=1e-12)
    assert run.paper_cap(5) == pytest.approx(8.96, abs=0.006)


@pytest.mark.parametrize("noise_std", [0.0, 0.4, 2.0])
def test_the_exact_epsilon_of_five_coins_by_all_their_outcomes(run: ModuleType, noise_std: float) -> None:
    """At the returned epsilon the 32 outcomes' hockey stick is delta: just above it a hair less, below it more."""
    from scipy.integrate import quad
    from scipy.stats import norm

    def clipped(theta: float) -> float:
        if noise_std == 0:
            return theta
        inside, _ = quad(lambda t: t * norm.pdf(t, theta, noise_std), 0.2, 0.8)
        return inside + 0.2 * norm.cdf(0.2, theta, noise_std) + 0.8 * norm.sf(0.8, theta, noise_std)

    p, q = clipped(0.8), clipped(0.2)
    laws = [
        np.array([math.prod(one if bit else 1 - one for bit in bits) for bits in itertools.product((0, 1), repeat=5)])
        for one in (p, q)
    ]
    epsilon = run.exact_epsilon_of_five(noise_std)

    def delta(epsilon: float) -> float:
        return float(np.maximum(laws[0] - math.exp(epsilon) * laws[1], 0).sum())

    assert delta(epsilon + 1e-6) <= 1e-4 <= delta(epsilon - 1e-6)


@pytest.mark.slow
def test_smoke_profile_writes_its_curves(run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--profile", "smoke", "--out", str(tmp_path)])
    run.main()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.png", "d1000.csv", "d5.csv"]
    lines = (tmp_path / "d5.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "epsilon,method,noise_std,squared_error"
    assert len(lines) == 1 + 3 * 6
