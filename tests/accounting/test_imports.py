"""What loading the package loads: counted in modules, never in seconds."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
{code}
print(json.dumps(sorted(sys.modules)))
"""


def modules_after(code, *, show=True):
    warnings = ["-W", "error"] if show else []
    run = subprocess.run(
        [sys.executable, *warnings, "-c", PROGRAM.format(code=code)], capture_output=True, text=True, check=True
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


ACCOUNTS = """
from accounting import Gaussian, Plan, budget, gaussian, guarantee
gaussian.noise_std(1.0, 1e-5, l2_sensitivity=1.0)
guarantee(Gaussian(noise_multiplier=1.0, adjacency="add-remove"), delta=1e-5)
budget.epsilon(Plan(clients=100, cohort=10, sampling="poisson"), noise_multiplier=2.0, rounds=5)
before = Plan(clients=100, cohort=10, sampling="fixed").run(3.0, 4)
budget.epsilon(Plan(clients=100, cohort=10, sampling="fixed", before=before), noise_multiplier=2.0, rounds=5)
"""


def test_accounts_load_no_library_of_accounts_and_no_statistics():
    """One engine composes whatever is released; dp-accounting is a second opinion, when one is asked for."""
    loaded = modules_after(ACCOUNTS)
    assert not {"dp_accounting", "scipy.stats", "scipy.signal", "torch", "opacus", "dpfed"} & loaded


@pytest.mark.slow
def test_a_second_opinion_loads_the_library_where_it_is_asked_for():
    asked = (
        "from dpfed.cli import status\n"
        "line = 'budget --clients 100 --cohort 10 --rounds 5 --noise-multiplier 2 --json'.split()\n"
        "assert status([*line, *{options}]) == 0"
    )
    assert "dp_accounting" not in modules_after(asked.format(options=[]), show=False)
    loaded = modules_after(asked.format(options=["--second-opinion"]), show=False)
    assert "dp_accounting" in loaded
    assert not {"torch", "opacus"} & loaded


def test_the_docstring_of_the_package_is_true():
    import doctest

    import accounting

    assert doctest.testmod(accounting).failed == 0


def test_every_exported_name_exists():
    import accounting

    assert all(hasattr(accounting, name) for name in accounting.__all__)
