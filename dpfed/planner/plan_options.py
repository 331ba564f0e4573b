"""Numbers of a budget (epsilon, noise multiplier, rounds), which one is solved for, and refusals of options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from accounting import budget
from accounting.budget import Budget, Plan
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from dpfed.errors import ConfigError

Solved = Literal["epsilon", "noise_multiplier", "rounds"]


_NO_TARGETS: Mapping[str, float] = {}


def wanted(
    plan: Plan,
    *,
    rounds: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    targets: Mapping[str, float] = _NO_TARGETS,
) -> Solved:
    """Return the one of the three numbers that follows from the other two; for Bernoulli samples, from rounds or
    epsilon.

    targets: targets in place of epsilon, by name. ConfigError unless exactly one number is left to solve for.
    """
    if targets:
        refuse("--epsilon: a budget meets one target", **(targets if epsilon is not None else {}))
        epsilon = 0.0
    given = {"epsilon": epsilon, "noise_multiplier": noise_multiplier, "rounds": rounds}
    if not plan.has_noise_multiplier:
        refuse("coins: it is for Gaussian noise", noise_multiplier=noise_multiplier)
        if (rounds is None) == (epsilon is None):
            raise ConfigError(
                "coins: give --rounds to get epsilon, or --epsilon to get the rounds; exactly one of them."
            )
        return "rounds" if rounds is None else "epsilon"
    lacking = [name for name in get_args(Solved) if given[name] is None]
    if len(lacking) != 1:
        names = [name for name in reversed(given) if given[name] is not None and not (name == "epsilon" and targets)]
        named = ", ".join(map(flag, [*names, *targets]))
        raise ConfigError(
            f"given {named or 'none of them'}: give exactly two of --rounds, --noise-multiplier and --epsilon; the "
            "third is what you get. (In place of --epsilon: --advantage, or --tpr and --fpr.)"
        )
    solved: Solved = lacking[0]
    return solved


def solve(
    plan: Plan,
    rounds: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    accountant: Accountant,
    conversion: Conversion,
    precise: bool = False,
    targets: Mapping[str, float] = _NO_TARGETS,
) -> Budget:
    """Return the budget with the third of the three numbers. ConfigError unless exactly one is missing."""
    wanted(plan, rounds=rounds, noise_multiplier=noise_multiplier, epsilon=epsilon, targets=targets)
    if not plan.has_noise_multiplier and accountant not in ("best", "rdp", "exact"):
        raise ConfigError(
            f"--accountant {accountant} with Bernoulli samples: use best, rdp, or exact (few coordinates)."
        )
    return budget.solve(
        plan,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        accountant=accountant,
        conversion=conversion,
        precise=precise,
        advantage=targets.get("advantage"),
        tpr=targets.get("tpr"),
        fpr=targets.get("fpr"),
    )


def refuse(why: str, **given: object) -> None:
    """Raise ConfigError naming the options that were given and are not allowed."""
    named = [flag(name) for name, value in given.items() if value is not None]
    if named:
        raise ConfigError(f"{', '.join(named)} with {why}. Remove it.")


def flag(name: str) -> str:
    """Return the option of the command line for this name."""
    return f"--{name.replace('_', '-')}"
