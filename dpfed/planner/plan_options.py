"""The unknown one of epsilon, noise multiplier and rounds; the solution; refusals of options without effect."""

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


def number_to_solve(
    plan: Plan,
    *,
    rounds: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    targets: Mapping[str, float] = _NO_TARGETS,
) -> Solved:
    """Return the name of the number to solve for: epsilon, noise multiplier or rounds.

    Two of the three are given; for Bernoulli samples only one, rounds or epsilon.
    targets: targets that replace epsilon, by name. ConfigError unless exactly one number is missing."""
    if targets:
        refuse_options("--epsilon: a budget has one target", **(targets if epsilon is not None else {}))
        epsilon = 0.0
    given = {"epsilon": epsilon, "noise_multiplier": noise_multiplier, "rounds": rounds}
    if not plan.has_noise_multiplier:
        refuse_options("Bernoulli samples: it requires Gaussian noise", noise_multiplier=noise_multiplier)
        if (rounds is None) == (epsilon is None):
            raise ConfigError(
                "Bernoulli samples: give exactly one of --rounds (to get epsilon) and --epsilon (to get rounds)."
            )
        return "rounds" if rounds is None else "epsilon"
    lacking: list[Solved] = [name for name in get_args(Solved) if given[name] is None]
    if len(lacking) != 1:
        names = [name for name in reversed(given) if given[name] is not None and not (name == "epsilon" and targets)]
        named = ", ".join(map(option_flag, [*names, *targets]))
        raise ConfigError(
            f"given {named or 'no number'}: give exactly two of --rounds, --noise-multiplier and --epsilon; the "
            "third is computed."
        )
    return lacking[0]


def solve_budget(
    plan: Plan,
    rounds: int | None,
    noise_multiplier: float | None,
    epsilon: float | None,
    accountant: Accountant,
    conversion: Conversion,
    precise: bool = False,
    targets: Mapping[str, float] = _NO_TARGETS,
) -> Budget:
    """Return the budget with all of epsilon, noise multiplier and rounds. ConfigError unless exactly one is missing."""
    number_to_solve(plan, rounds=rounds, noise_multiplier=noise_multiplier, epsilon=epsilon, targets=targets)
    if not plan.has_noise_multiplier and accountant not in ("best", "rdp", "exact"):
        raise ConfigError(
            f"--accountant {accountant} with Bernoulli samples: give best, rdp, or exact (for few coordinates)."
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


def refuse_options(why: str, **given: object) -> None:
    """Raise ConfigError if one of these options is given (not None); `why` names what they conflict with."""
    named = [option_flag(name) for name, value in given.items() if value is not None]
    if named:
        raise ConfigError(f"{', '.join(named)} with {why}. Remove it.")


def option_flag(name: str) -> str:
    """Return the command-line option of this name: noise_multiplier -> --noise-multiplier."""
    return f"--{name.replace('_', '-')}"
