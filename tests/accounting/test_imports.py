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


HEAVY = {
    "torch",
    "dp_accounting",
    "absl",
    "opacus",
    "mpmath",
    "scipy.special",  # `import scipy` loads a part of it when that is first used
    "scipy.stats",
    "scipy.signal",
    "dpfed",
    "pandas",
    "matplotlib",
}


def test_importing_accounting_loads_nothing_heavy():
    assert not HEAVY & modules_after("import accounting")


@pytest.mark.parametrize(
    "code",
    [
        "from accounting import gaussian; gaussian.noise_std(1.0, 1e-5, l2_sensitivity=1.0)",
        "from accounting import Gaussian, guarantee\n"
        "guarantee(Gaussian(noise_multiplier=1.0, adjacency='add-remove'), delta=1e-5)",
    ],
)
def test_closed_forms_do_not_load_the_library(code):
    assert "dp_accounting" not in modules_after(code)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
def test_a_budget_is_worked_out_without_the_library(sampling):
    """Nor with the parts of scipy that take longest to load."""
    loaded = modules_after(
        "from accounting import Plan, budget\n"
        f"budget.epsilon(Plan(clients=100, cohort=10, sampling={sampling!r}), noise_multiplier=2.0, rounds=5)"
    )
    assert not {"dp_accounting", "scipy.stats", "scipy.signal", "torch", "opacus", "dpfed"} & loaded


def test_a_composition_of_different_rounds_loads_no_library_of_accounts():
    """One engine composes whatever is released; dp-accounting is a second opinion, when one is asked for."""
    loaded = modules_after(
        "from accounting import Plan, budget\n"
        "before = Plan(clients=100, cohort=10, sampling='fixed').run(3.0, 4)\n"
        "plan = Plan(clients=100, cohort=10, sampling='fixed', before=before)\n"
        "budget.epsilon(plan, noise_multiplier=2.0, rounds=5)"
    )
    assert "dp_accounting" not in loaded
    assert not {"torch", "opacus", "dpfed"} & loaded


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
