"""Support matrix of docs/participation.md (sampler x noise x neighbours x unit), computed by the accounts.

    python docs/support_matrix.py            print it
    python docs/support_matrix.py --write    put it into the page

Every cell is a solved plan: its epsilon compared with the proven lower bound, or the reason of a refusal.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accounting import Composed, Gaussian, Plan, PoissonSampling, budget, guarantee, subsample
from accounting.errors import AccountingError
from accounting.mechanisms.adjacency import Adjacency
from dpfed.config.tables import parse
from dpfed.methods.catalogue import method_specification
from dpfed.methods.refusals import refusal_messages

PAGE = Path(__file__).with_name("participation.md")
BEGIN, END = "<!-- support matrix: begin -->\n", "<!-- support matrix: end -->\n"
PLAN: dict[str, Any] = {"clients": 600, "cohort": 100, "rounds": 18}
SAMPLINGS: dict[str, dict[str, Any]] = {
    "`poisson`": {},
    "`poisson`, cap 130": {"cohort_cap": 130},
    "`fixed`": {"sampling": "fixed"},
    "`all`": {"sampling": "all"},
    "`balls-and-bins`": {"sampling": "balls-and-bins"},
    "`balls-and-bins`, 3 lanes": {"sampling": "balls-and-bins", "lanes": 3},
    "`balls-and-bins`, 3 secret lanes": {"sampling": "balls-and-bins", "lanes": 3, "secret_lanes": True},
    "`allocation`": {"sampling": "allocation", "participations": 3},
    "`min-separation`": {"sampling": "min-separation", "separation": 3},
    "`cyclic`": {"sampling": "cyclic"},
}
COINS = {"dimension": 100, "edge": 0.4, "l2_sensitivity": 0.5}
NOISES: dict[str, dict[str, Any]] = {
    "Gaussian": {},
    "3 bands": {"noise": "banded", "bands": 3, "factorisation": "square-root"},
    "2 buffers": {"noise": "blt", "buffers": 2},
    "Gaussian shares": {"mechanism": "distributed-gaussian"},
    "discrete Gaussian": {"mechanism": "discrete-gaussian", "dimension": 100, "placement": "server", "secure": False},
    "discrete Gaussian shares": {"mechanism": "discrete-gaussian", "dimension": 100},
    "Skellam shares": {"mechanism": "skellam", "dimension": 100},
    "Bernoulli, summed": {"mechanism": "bernoulli-aggregate", **COINS},
    "Bernoulli, visible": {"mechanism": "bernoulli-channel", **COINS},
}
EXACT = 1e-3
"""Largest relative distance between both bounds that discretisation and the search of the lower bound explain."""
_UNKNOWN = ("no account", "no bound", "schedules are accounted with", "not implemented", "is implemented")


class Matrix:
    """Cells of all tables, and the numbered reasons of refusals."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def lines(self) -> Iterator[str]:
        yield (
            f"A client as unit: {PLAN['cohort']} of {PLAN['clients']} clients, {PLAN['rounds']} rounds, noise "
            "multiplier 2. *exact*: upper and lower bound meet within 0.1%. *certified, x%*: an upper bound x% above "
            "the lower bound. *certified*: an upper bound without a lower bound. Reasons of refusals are below."
        )
        for adjacency in Adjacency:
            yield f"\n| {adjacency} | {' | '.join(NOISES)} |"
            yield f"|---|{'---|' * len(NOISES)}"
            for name, sampling in SAMPLINGS.items():
                cells = [self.client(sampling, noise, adjacency) for noise in NOISES.values()]
                yield f"| {name} | {' | '.join(cells)} |"
        names = [name for name, sampling in SAMPLINGS.items() if not {"lanes", "cohort_cap"} & sampling.keys()]
        yield (
            "\nA record as unit (`[local.record]`): Gaussian or discrete Gaussian noise in local steps; each client "
            "is charged for its rounds."
        )
        yield f"\n| | {' | '.join(names)} |"
        yield f"|---|{'---|' * len(names)}"
        yield f"| add-remove | {' | '.join(self.record(SAMPLINGS[name]) for name in names)} |"
        yield ""
        for number, reason in enumerate(self.reasons, 1):
            yield f"{number}. {reason}"

    def client(self, sampling: dict[str, Any], noise: dict[str, Any], adjacency: Adjacency) -> str:
        try:
            plan = Plan(**PLAN, **sampling, **noise, adjacency=adjacency)
            found = budget.solve(plan, noise_multiplier=2.0 if plan.has_noise_multiplier else None)
        except AccountingError as refusal:
            return self.refused(str(refusal))
        return stated(found.epsilon, found.lower_bound)

    def record(self, sampling: dict[str, Any]) -> str:
        federation = {"clients": 600, "cohort": 100, "rounds": 18, **sampling}
        federation.pop("participations", None)
        tables = {
            "data": {"name": "digits"},
            "model": {"name": "mlp", "hidden": [8]},
            "federation": federation,
            "local": {
                "learning_rate": 0.1,
                "steps": 4,
                "batch_size": 8,
                "record": {"clip_norm": 1.0, "noise_multiplier": 1.0},
            },
            "method": {"name": "fedavg"},
        }
        config = parse(tables, source="matrix")
        for reason in refusal_messages(config, method_specification("fedavg")):
            return self.refused(reason)
        step = subsample(Gaussian(noise_multiplier=1.0, adjacency="add-remove"), PoissonSampling(probability=0.1))
        found = guarantee(Composed(parts=((step, 4 * 3),)), delta=1e-5)
        return stated(found.epsilon, found.lower_bound)

    def refused(self, message: str) -> str:
        reason = message.partition(": ")[2].partition(". ")[0].removesuffix(".")
        if reason not in self.reasons:
            self.reasons.append(reason)
        word = "not analysed" if any(text in message for text in _UNKNOWN) else "refused"
        return f"{word} ({self.reasons.index(reason) + 1})"


def stated(epsilon: float, lower: float | None) -> str:
    """Return the cell for an upper and a lower bound."""
    if lower is None:
        return "certified"
    above = epsilon / lower - 1
    return "exact" if above <= EXACT else f"certified, {100 * above:.2g}%"


def page_with(matrix: str) -> str:
    """Return the page with this matrix between its marks."""
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}{matrix}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    made = "\n".join(Matrix().lines()) + "\n"
    if "--write" in sys.argv:
        PAGE.write_text(page_with(made))
    else:
        print(made, end="")
