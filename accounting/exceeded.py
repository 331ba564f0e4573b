"""A budget that does not pay for a single round, in words: which one, what it would come to, what is left."""

from accounting.rounding import downwards, upwards


def no_round_fits(
    whose: str, *, allowed: float, after: float, delta: float, advice: str, spent: float | None = None
) -> str:
    """`whose` names the budget: an argument, a TOML key, a file. `after`: epsilon with one round; `spent`: without it,
    where other runs draw from the same budget."""
    left = "" if spent is None else f", of which {downwards(max(allowed - spent, 0.0))} is left"
    return (
        f"{whose}: not even one round fits. It would bring epsilon to {upwards(after)} at delta {upwards(delta)}; "
        f"allowed is {downwards(allowed)}{left}. {advice}"
    )
