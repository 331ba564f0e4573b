"""Epsilon over rounds, one line for each accountant of the same plan."""

from pathlib import Path

import numpy as np

from accounting import budget
from accounting.budget import Budget, NoisePlan, coin_budget
from accounting.budget.coin_budget import CoinPlan
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from accounting.errors import UnsupportedMechanism
from accounting.rounding import upwards
from dpfed.report.figures.figure import figure

_POINTS = 12
_LINES: tuple[tuple[Accountant, Conversion], ...] = (("best", "improved"), ("rdp", "improved"), ("rdp", "classical"))


def plot_budget(plan: NoisePlan | CoinPlan, answer: Budget, path: Path) -> None:
    """Write the figure; the shaded band lies between the best account and the lower bound."""
    rounds = np.unique(np.linspace(1, answer.rounds, _POINTS).round().astype(int))
    with figure(path) as axes:
        for accountant, conversion in _LINES[:1] if isinstance(plan, CoinPlan) else _LINES:
            try:
                line = [_at(plan, answer, int(t), accountant, conversion) for t in rounds]
            except UnsupportedMechanism:
                continue
            name = "best valid account" if accountant == "best" else f"Renyi, {conversion} conversion"
            upper = [point.epsilon for point in line]
            axes.plot(rounds, upper, marker="o", markersize=3, label=name)
            if accountant == "best" and not isinstance(plan, CoinPlan):
                lower = [point.lower_bound or 0.0 for point in line]
                axes.fill_between(rounds, lower, upper, alpha=0.25, label="between lower and upper bound")
        axes.set_xlabel("rounds")
        axes.set_ylabel(f"epsilon at delta {upwards(plan.delta)}")
        axes.set_title(
            f"{plan.sampling} sampling {plan.cohort} of {plan.clients}, {plan.adjacency}, {_strength(plan, answer)}",
            fontsize=10,
        )
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=9)


def _strength(plan: NoisePlan | CoinPlan, answer: Budget) -> str:
    if isinstance(plan, CoinPlan):
        return f"{plan.dimension:,} coins in [{plan.edge:g}, {1 - plan.edge:g}]"
    return f"noise multiplier {upwards(answer.noise_multiplier)}"


def _at(
    plan: NoisePlan | CoinPlan, answer: Budget, rounds: int, accountant: Accountant, conversion: Conversion
) -> Budget:
    if isinstance(plan, CoinPlan):
        return coin_budget.epsilon(plan, rounds=rounds)
    return budget.epsilon(
        plan,
        noise_multiplier=answer.noise_multiplier or 0.0,
        rounds=rounds,
        accountant=accountant,
        conversion=conversion,
        with_lower_bound=accountant == "best",
    )
