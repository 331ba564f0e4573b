"""Epsilon over rounds, one line for each accountant of the same plan."""

from pathlib import Path

import numpy as np

from accounting import budget
from accounting.budget import BernoulliUploads, Budget, Plan
from accounting.compose.accountant import Accountant, Guarantee, guarantee
from accounting.compose.rdp import Conversion
from accounting.errors import UnsupportedMechanism
from accounting.rounding import upwards
from dpfed.report.figures.figure import figure
from dpfed.report.privacy_words import factors_words

_POINTS = 12
_LINES: tuple[tuple[Accountant, Conversion], ...] = (("best", "improved"), ("rdp", "improved"), ("rdp", "classical"))


def plot_budget(plan: Plan, answer: Budget, path: Path) -> None:
    """Write the figure; the shaded band lies between the best account and the lower bound."""
    rounds = np.unique(np.linspace(1, answer.rounds, _POINTS).round().astype(int))
    with figure(path) as axes:
        for accountant, conversion in _LINES if plan.has_noise_multiplier else _LINES[:1]:
            try:
                line = [_at(plan, answer, int(t), accountant, conversion) for t in rounds]
            except UnsupportedMechanism:
                continue
            name = "best valid account" if accountant == "best" else f"Renyi, {conversion} conversion"
            upper = [point.epsilon for point in line]
            axes.plot(rounds, upper, marker="o", markersize=3, label=name)
            if accountant == "best" and plan.has_noise_multiplier:
                lower = [point.lower_bound or 0.0 for point in line]
                axes.fill_between(rounds, lower, upper, alpha=0.25, label="between lower and upper bound")
        axes.set_xlabel("rounds")
        axes.set_ylabel(f"epsilon at delta {upwards(plan.delta)}")
        drawn = f"{plan.sampling.name} sampling {plan.cohort} of {plan.clients}"
        axes.set_title(f"{drawn}, {plan.adjacency}, {_strength(plan, answer)}", fontsize=10)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=9)


def _strength(plan: Plan, answer: Budget) -> str:
    if isinstance(plan.mechanism, BernoulliUploads):
        edge = plan.mechanism.edge
        return f"{plan.mechanism.dimension:,} coins in [{edge:g}, {1 - edge:g}]"
    changes = "" if plan.noise_schedule is None else f" x {factors_words(plan.noise_schedule)}"
    return f"noise multiplier {upwards(answer.noise_multiplier)}{changes}"


def _at(plan: Plan, answer: Budget, rounds: int, accountant: Accountant, conversion: Conversion) -> Budget | Guarantee:
    if plan.noise_schedule is not None:
        return guarantee(
            plan.first(answer.noise_multiplier, rounds, of=answer.rounds),
            delta=plan.delta,
            accountant=accountant,
            conversion=conversion,
            with_lower_bound=accountant == "best",
        )
    return budget.solve(
        plan,
        noise_multiplier=answer.noise_multiplier,
        rounds=rounds,
        accountant=accountant,
        conversion=conversion,
        with_lower_bound=accountant == "best",
    )
