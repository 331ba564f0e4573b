"""Which of epsilon, noise multiplier and rounds is wanted follows from the two that are given."""

from __future__ import annotations

from accounting import budget as budgets
from accounting.budget import Budget, NoisePlan, coin_budget
from accounting.budget.coin_budget import CoinPlan
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from dpfed.cli.budget_plans import refuse
from dpfed.errors import ConfigError


def solve(
    plan: NoisePlan | CoinPlan,
    rounds: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    accountant: Accountant,
    conversion: Conversion,
) -> Budget:
    """The third of the three (coins have no noise multiplier: the second of two). ConfigError unless just one lacks."""
    if isinstance(plan, CoinPlan):
        refuse("coins: it is for Gaussian noise", noise_multiplier=noise_multiplier)
        return _solve_coins(plan, rounds, epsilon, accountant)
    return _solve(plan, rounds, noise_multiplier, epsilon, accountant, conversion)


def _solve_coins(plan: CoinPlan, rounds: int | None, epsilon: float | None, accountant: Accountant) -> Budget:
    if accountant not in ("best", "rdp", "exact"):
        raise ConfigError(f"--accountant {accountant} with coins: use best, rdp, or exact (few coordinates).")
    match (rounds, epsilon):
        case (int(), None):
            return coin_budget.epsilon(plan, rounds=rounds, accountant=accountant)
        case (None, float()):
            return coin_budget.rounds(plan, epsilon_target=epsilon, accountant=accountant)
    raise ConfigError("coins: give --rounds to get epsilon, or --epsilon to get the rounds; exactly one of them.")


def _solve(
    plan: NoisePlan,
    rounds: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    accountant: Accountant,
    conversion: Conversion,
) -> Budget:
    match (rounds, noise_multiplier, epsilon):
        case (int(), float(), None):
            return budgets.epsilon(
                plan, noise_multiplier=noise_multiplier, rounds=rounds, accountant=accountant, conversion=conversion
            )
        case (int(), None, float()):
            return budgets.noise_multiplier(
                plan, epsilon_target=epsilon, rounds=rounds, accountant=accountant, conversion=conversion
            )
        case (None, float(), float()):
            return budgets.rounds(
                plan,
                epsilon_target=epsilon,
                noise_multiplier=noise_multiplier,
                accountant=accountant,
                conversion=conversion,
            )
    given = {"--rounds": rounds, "--noise-multiplier": noise_multiplier, "--epsilon": epsilon}
    names = ", ".join(name for name, value in given.items() if value is not None) or "none of them"
    raise ConfigError(
        f"given {names}: give exactly two of --rounds, --noise-multiplier and --epsilon; the third is what you get."
    )
