"""Write docs/beside.md: the same plans, rounds and faults in dpfed and in other packages.

    python benchmarks/beside.py --measure NAME [NAME ...]   # numbers and seconds of installed packages, to beside.json
    python benchmarks/beside.py > docs/beside.md            # the page, from beside.json and other stored results

Each package is asked as its documentation says, with its defaults, in an environment that has it; a package that is not
there keeps its stored row, with version and date. Seconds: one call each, one thread, after a first call that imports.
opake: the functions of its compiled module opake_accounting, which its Python functions call.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import re
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STORED = HERE / "beside.json"
N, R, T, Z = 6000, 100, 180, 1.4
DELTA, Q = N**-1.1, R / N
PLANS = {
    "poisson": "Poisson, add-remove",
    "replaced": "Poisson, replace-one",
    "capped": "Poisson, at most 130 a round, add-remove",
    "fixed": "exactly 100 a round, replace-one",
    "zero-out": "exactly 100 a round, zero-out",
    "bins": "balls-and-bins, 3 epochs of 60 rounds",
    "allocation": "3 random rounds of the 180 for each client",
    "rests": "a client rests 29 rounds after each of its rounds",
    "order": "a public order, every client in each 60th round",
    "secure": "Poisson, discrete Gaussian noise in a secure sum of 2,410 numbers",
}
"""Plans of 6,000 clients, 100 a round, 180 rounds, noise multiplier 1.4, delta 6000^-1.1."""
Ask = Callable[[str], float | None]


def dpfed(plan: str) -> float | None:
    return dpfed_budget(plan).epsilon


def dpfed_budget(plan: str, with_lower_bound: bool = False) -> Any:
    """Return dpfed's budget of a plan; its lower bound is what any correct account must reach."""
    from accounting import budget

    more: dict[str, dict[str, Any]] = {
        "poisson": {},
        "replaced": {"adjacency": "replace-one"},
        "capped": {"cohort_cap": 130},
        "fixed": {"sampling": "fixed", "adjacency": "replace-one"},
        "zero-out": {"sampling": "fixed", "adjacency": "zero-out"},
        "bins": {"sampling": "balls-and-bins"},
        "allocation": {"sampling": "allocation", "participations": 3},
        "rests": {"sampling": "min-separation", "separation": 30},
        "order": {"sampling": "cyclic"},
        "secure": {"mechanism": "discrete-gaussian", "dimension": 2410},
    }
    made = budget.Plan(clients=N, cohort=R, delta=DELTA, **more[plan])
    return budget.solve(made, noise_multiplier=Z, rounds=T, with_lower_bound=with_lower_bound)


def dp_accounting(plan: str) -> float | None:
    """Return epsilon by the PLD accountant; by the Renyi accountant where the former refuses."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    noise, relation = dp.GaussianDpEvent(Z), dp.NeighboringRelation
    event = {
        "poisson": dp.PoissonSampledDpEvent(Q, noise),
        "replaced": dp.PoissonSampledDpEvent(Q, noise),
        "capped": dp.TruncatedSubsampledGaussianDpEvent(N, Q, 130, Z),
        "order": noise,
        "fixed": dp.SampledWithoutReplacementDpEvent(N, R, noise),
        "zero-out": dp.SampledWithoutReplacementDpEvent(N, R, noise),
    }.get(plan)
    if event is None:
        return None
    kind = {"replaced": relation.REPLACE_ONE, "fixed": relation.REPLACE_ONE, "zero-out": relation.REPLACE_SPECIAL}
    for make in (PLDAccountant, lambda one: RdpAccountant(neighboring_relation=one)):
        try:
            accountant = make(kind.get(plan, relation.ADD_OR_REMOVE_ONE))
            accountant.compose(event, 3 if plan == "order" else T)
            return float(accountant.get_epsilon(DELTA))
        except (
            dp.UnsupportedEventError,
            NotImplementedError,
            ValueError,
        ):  # a package without an event for this plan: a dash in the table
            continue
    return None


def opacus(plan: str) -> float | None:
    from opacus.accountants import create_accountant

    if plan not in ("poisson", "order"):
        return None
    accountant = create_accountant("prv")
    accountant.history = [(Z, 1.0, 3)] if plan == "order" else [(Z, Q, T)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it divides by zero at a probability of 1
        return float(accountant.get_epsilon(DELTA))


def jax_privacy(plan: str) -> float | None:
    from jax_privacy.accounting import accountants, analysis

    more = {
        "poisson": {},
        "capped": {"truncated_batch_size": 130},
        "fixed": {"sampling_method": analysis.SamplingMethod.FIXED_BATCH_SIZE},
    }
    if plan not in (*more, "order"):
        return None
    batch, rounds = (N, 3) if plan == "order" else (R, T)
    params = analysis.DpParams(noise_multipliers=Z, num_samples=N, delta=DELTA, batch_size=batch, **more.get(plan, {}))
    found = analysis.DpsgdTrainingAccountant(accountants.PldAccountantConfig()).compute_epsilon(rounds, params)
    return float(found)


def opake(plan: str) -> float | None:
    place = distribution("opake-accounting").locate_file("opake/api/accounting/core/opake_accounting.abi3.so")
    spec = importlib.util.spec_from_file_location("opake_accounting", str(place))
    assert spec is not None
    assert spec.loader is not None
    native = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(native)
    config = native.DiscretizationConfig()
    found = {
        "poisson": lambda: native.poisson_pld(native.gaussian_pld(Z, config), Q) * T,
        "capped": lambda: native.truncated_poisson_gaussian_pld(Z, Q, 130, N, config) * T,
        "bins": lambda: native.bnb_mc_pld([float(i == j) for i in range(60) for j in range(60)], 60, Z, config) * 3,
        "allocation": lambda: native.random_allocation_gaussian_pld(Z, T, 3, config),
        "order": lambda: native.gaussian_pld(Z, config) * 3,
    }.get(plan)
    return None if found is None else float(found().epsilon_at(DELTA))


def pfl(plan: str) -> float | None:
    from pfl.privacy.privacy_accountant import PLDPrivacyAccountant

    if plan not in ("poisson", "order"):
        return None
    rounds, probability = (3, 1.0) if plan == "order" else (T, Q)
    return PLDPrivacyAccountant(rounds, probability, "gaussian", noise_parameter=Z, delta=DELTA).epsilon


def flower(plan: str) -> float | None:
    from flwr.supercore import privacy_accounting as flwr
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    kind = {
        "poisson": ("ADD_OR_REMOVE_ONE", "POISSON"),
        "fixed": ("REPLACE_ONE", "WITHOUT_REPLACEMENT"),
        "order": ("ADD_OR_REMOVE_ONE", "NO_AMPLIFICATION"),
    }.get(plan)
    if kind is None:
        return None
    accountant = RdpAccountant(
        flwr.PrivacyConfig(
            target_delta=DELTA,
            population_size=N,
            neighboring_relation=flwr.NeighboringRelation[kind[0]],
            sampling_method=flwr.SamplingMethod[kind[1]],
        )
    )
    accountant.compose(flwr.GaussianPrivacyEvent(Z, R, N), 3 if plan == "order" else T)
    return float(accountant.get_epsilon(DELTA))


PACKAGES: dict[str, tuple[Ask, str]] = {
    "dpfed": (dpfed, "dpfed"),
    "dp-accounting": (dp_accounting, "dp-accounting"),
    "Opacus": (opacus, "opacus"),
    "jax_privacy": (jax_privacy, "jax-privacy"),
    "opake": (opake, "opake-accounting"),
    "pfl": (pfl, "pfl"),
    "Flower": (flower, "flwr"),
}
"""Adapter and distribution of each package."""


def measured(name: str) -> dict[str, Any]:
    """Return version, date, and (epsilon, seconds) of each plan that the package can state."""
    ask, package = PACKAGES[name]
    ask("order")
    plans: dict[str, Any] = {}
    for plan in PLANS:
        began = time.perf_counter()
        epsilon = ask(plan)
        plans[plan] = None if epsilon is None else [epsilon, round(time.perf_counter() - began, 3)]
    return {"version": version(package), "date": datetime.date.today().isoformat(), "plans": plans}


def canary_audits() -> dict[str, Any]:
    """Return for each planted bug of experiments/audit-field: claimed epsilon, what jax_privacy's canary auditor shows
    from the same calls, and its verdict. A canary is a client far beyond the clip norm, along one coordinate or all,
    which is zero or absent in the other half of the calls; the other clients send zero. Scores are projections on the
    difference of the means of a quarter of the calls. 95% confidence, shared by the four canaries.
    """
    import importlib

    import numpy as np
    from jax_privacy.auditing import CanaryScoreAuditor, Split

    from accounting import guarantee

    bugs = HERE.parent / "experiments" / "audit-field" / "bugs"
    sys.path.insert(0, str(bugs))
    found = {}
    for name in sorted(one.stem for one in bugs.glob("*.py") if one.stem != "parts"):
        bug, best = importlib.import_module(name), 0.0
        claim, trials = bug.SETTING["claim"], bug.SETTING["trials"]
        claimed = claim[0] if isinstance(claim, tuple) else guarantee(claim, delta=1e-5).epsilon
        for direction in (np.eye(16)[0], np.full(16, 0.25)):
            inside = np.zeros((4, 16))
            inside[0] = 100 * direction
            for outside in (np.zeros((4, 16)), np.zeros((3, 16))):
                try:
                    both = [
                        np.array([np.ravel(bug.broken(one.copy(), seed)) for seed in range(start, start + trials)])
                        for start, one in ((0, inside), (10**6, outside))
                    ]
                    learnt = both[0][: trials // 4].mean(0) - both[1][: trials // 4].mean(0)
                except (ValueError, IndexError):  # this bug has no output for three clients, or one of another shape
                    continue
                scores = [one[trials // 4 :] @ learnt for one in both]
                auditor = CanaryScoreAuditor(*scores)
                best = max(best, auditor.epsilon_clopper_pearson(0.05 / 4, 1e-5, threshold_strategy=Split()))
        found[name] = [float(claimed), float(best)]
    return found


def audits_table(stored: dict[str, Any], field: str) -> list[str]:
    """Return a row for each planted bug: what dpfed's audit of functions found, and what canaries find."""
    ours = re.findall(
        r"^\| (?!bug )([^|]+) \| \[.*?\| +([\d.]+) \| ([\w-]+) \| +([\d.]+) \| (\w+) \| \w+ \| +\d+ \|$",
        field,
        re.MULTILINE,
    )
    lines = [
        "| fault | claimed epsilon | neighbours "
        "| dpfed audit: shown at least | canaries, jax_privacy 2.0.0: shown at least |",
        "|---|--:|---|--:|--:|",
    ]
    for (text, claimed, neighbours, shown, verdict), (_, canaries) in zip(ours, stored["audits"].values(), strict=True):
        marks = [
            f"{value} ({'found' if found else 'not found'})"
            for value, found in ((shown, verdict == "fail"), (f"{canaries:.2f}", canaries > float(claimed)))
        ]
        lines.append(f"| {text} | {claimed} | {neighbours} | {' | '.join(marks)} |")
    return lines


def is_installed(name: str) -> bool:
    try:
        return bool(version(PACKAGES[name][1]))
    except PackageNotFoundError:
        return False


def epsilon_text(cell: list[float] | None, at_least: float) -> str:
    """Return epsilon and seconds; a number below what the plan provably has is marked."""
    from accounting.rounding import downwards, upwards

    if cell is None:
        return "–"
    too_small = f" (**at least {downwards(at_least)}**)" if cell[0] < at_least * (1 - 1e-3) else ""
    return f"{upwards(cell[0])}{too_small}, {max(cell[1], 0.01):.2f} s"


def plans_table(stored: dict[str, Any]) -> list[str]:
    lines = [f"| plan | {' | '.join(PACKAGES)} |", "|---|" + "---|" * len(PACKAGES)]
    for plan, text in PLANS.items():
        cells = [epsilon_text(stored["packages"][name]["plans"][plan], stored["proven"][plan]) for name in PACKAGES]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return lines


def page() -> str:
    """Return the page."""
    stored, text = json.loads(STORED.read_text()), (HERE / "beside.md").read_text()
    rounds = re.search(r"^\| 2 threads \|.*?\n\n", (HERE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    field = (HERE.parent / "experiments" / "audit-field" / "README.md").read_text()
    accountants = re.search(r"^\| accountant \| refuted.*?\n\n", field, re.MULTILINE | re.DOTALL)
    assert rounds is not None
    assert accountants is not None
    versions = ", ".join(f"{name} {one['version']} ({one['date']})" for name, one in stored["packages"].items())
    tables = {
        "plans": "\n".join(plans_table(stored)),
        "versions": versions,
        "rounds": rounds[0].strip(),
        "accountants": accountants[0].strip(),
        "audits": "\n".join(audits_table(stored, field)),
        "blaze": "\n".join(stored["blaze"]),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: tables[found[1]], text).rstrip()


if __name__ == "__main__":
    if "--measure" in sys.argv:
        warnings.simplefilter("ignore")  # of deprecated names in the packages that are measured
        content = json.loads(STORED.read_text())
        for given in sys.argv[sys.argv.index("--measure") + 1 :]:
            if given == "audits":
                content["audits"] = canary_audits()
                continue
            content["packages"][given] = measured(given)
            if given == "dpfed":
                content["proven"] = {
                    plan: dpfed_budget(plan, with_lower_bound=True).lower_bound or 0.0 for plan in PLANS
                }
        content["packages"] = {name: content["packages"][name] for name in PACKAGES if name in content["packages"]}
        STORED.write_text(json.dumps(content, indent=1) + "\n")
    else:
        print(page())
