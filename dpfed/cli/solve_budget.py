"""Which of epsilon, noise multiplier and rounds is wanted follows from the two that are given."""

from __future__ import annotations

from accounting import budget
from accounting.budget import Budget, Plan
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from dpfed.errors import ConfigError


def solve(
    plan: Plan,
    rounds: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    accountant: Accountant,
    conversion: Conversion,
    precise: bool = False,
) -> Budget:
    """The third of the three (coins have no noise multiplier: the second of two). ConfigError unless just one lacks."""
    given = {"--rounds": rounds, "--noise-multiplier": noise_multiplier, "--epsilon": epsilon}
    if not plan.has_noise_multiplier:
        refuse("coins: it is for Gaussian noise", noise_multiplier=noise_multiplier)
        _check_coins(rounds, epsilon, accountant)
    elif sum(value is not None for value in given.values()) != 2:
        names = ", ".join(name for name, value in given.items() if value is not None) or "none of them"
        raise ConfigError(
            f"given {names}: give exactly two of --rounds, --noise-multiplier and --epsilon; the third is what you get."
        )
    return budget.solve(
        plan,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        accountant=accountant,
        conversion=conversion,
        precise=precise,
    )


def _check_coins(rounds: int | None, epsilon: float | None, accountant: Accountant) -> None:
    if accountant not in ("best", "rdp", "exact"):
        raise ConfigError(f"--accountant {accountant} with coins: use best, rdp, or exact (few coordinates).")
    if (rounds is None) == (epsilon is None):
        raise ConfigError("coins: give --rounds to get epsilon, or --epsilon to get the rounds; exactly one of them.")


def refuse(why: str, **given: object) -> None:
    """ConfigError naming the options that were given and must not be."""
    named = [f"--{name.replace('_', '-')}" for name, value in given.items() if value is not None]
    if named:
        raise ConfigError(f"{', '.join(named)} with {why}. Remove it.")
