"""Figures of a budget: epsilon over rounds, and readings of the guarantee (profile, trade-off, groups, belief)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from accounting import budget
from accounting.budget import BernoulliUploads, Budget, Plan
from accounting.compose import readings
from accounting.compose.accountant import Accountant, Guarantee, guarantee
from accounting.compose.profiles import Profile, profile
from accounting.compose.rdp import Conversion
from accounting.errors import UnsupportedMechanism
from accounting.rounding import upwards
from dpfed.report.figures.figure import COLOURS, figure
from dpfed.report.privacy_text import factors_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_POINTS = 12
_MOST_TOGETHER = 8
_LARGEST = 50.0
_PRIORS = (0.01, 0.1, 0.5)
_LINES: tuple[tuple[Accountant, Conversion], ...] = (("best", "improved"), ("rdp", "improved"), ("rdp", "classical"))


def plot_budget(plan: Plan, answer: Budget, path: Path | None = None, *, ax: Axes | None = None) -> Figure:
    """Return the figure of epsilon over rounds, new or drawn on `ax`, and write it to `path` if given.

    The shaded band lies between the lower bound and the best valid upper bound.
    """
    rounds = np.unique(np.linspace(1, answer.rounds, _POINTS).round().astype(int))
    with figure(path, ax=ax) as axes:
        for accountant, conversion in _LINES if plan.has_noise_multiplier else _LINES[:1]:
            try:
                line = [_epsilon_at(plan, answer, int(t), accountant, conversion) for t in rounds]
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
        axes.set_title(f"{drawn}, {plan.adjacency}, {_noise_text(plan, answer)}", fontsize=10)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=9)
    drawn_on: Figure = axes.figure
    return drawn_on


def _noise_text(plan: Plan, answer: Budget) -> str:
    if isinstance(plan.mechanism, BernoulliUploads):
        edge = plan.mechanism.edge
        return f"{plan.mechanism.dimension:,} Bernoulli samples in [{edge:g}, {1 - edge:g}]"
    changes = "" if plan.noise_schedule is None else f" x {factors_text(plan.noise_schedule)}"
    return f"noise multiplier {upwards(answer.noise_multiplier)}{changes}"


def _epsilon_at(
    plan: Plan, answer: Budget, rounds: int, accountant: Accountant, conversion: Conversion
) -> Budget | Guarantee:
    if plan.noise_schedule is not None:
        return guarantee(
            plan.first_rounds(answer.noise_multiplier, rounds, of=answer.rounds),
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


def readings_path(path: Path) -> Path:
    """Return the path of the figure of readings for the figure of epsilon over rounds at `path`: NAME-readings.png."""
    return path.with_name(f"{path.stem}-readings{path.suffix or '.png'}")


def plot_readings(answer: Budget, path: Path | None = None, *, ax: Sequence[Axes] | None = None) -> Figure | None:
    """Return the figure of readings and write it to `path` if given; None if the mechanism has no privacy profile.

    Its four panels, drawn on the caller's axes `ax` if given, are computed from one privacy profile.
    """
    try:
        claim = profile(answer.mechanism)
    except UnsupportedMechanism:
        return None
    delta = answer.plan.delta
    with figure(path, columns=2, rows=2, ax=ax) as (above, curve, groups, belief):
        _draw_profile(above, claim, answer.epsilon, delta)
        _draw_tradeoff(curve, claim)
        _draw_groups(groups, claim, delta)
        _draw_belief(belief, answer.epsilon)
        for axes in (above, curve, groups, belief):
            axes.title.set_fontsize(10)
            axes.tick_params(labelsize=9)
    drawn: Figure = above.figure
    return drawn


def _draw_profile(axes: Axes, claim: Profile, epsilon: float, delta: float) -> None:
    at = np.linspace(0.0, max(2 * epsilon, 0.1), 300)
    values = claim(at)
    axes.plot(at, values)
    axes.plot([epsilon], [delta], "o", color=COLOURS[1])
    axes.annotate(
        f"({upwards(epsilon)}, {upwards(delta)})", (epsilon, delta), (4, 5), textcoords="offset points", fontsize=9
    )
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(float(values[values > 0].min(initial=1.0)), delta * 1e-5), top=1.5)
    axes.set(title="privacy profile", xlabel="epsilon", ylabel="delta")


def _draw_tradeoff(axes: Axes, claim: Profile) -> None:
    rate = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 400)])
    axes.plot(rate, readings.tradeoff(claim, rate))
    axes.plot([0, 1], [1, 0], "--", color="gray", linewidth=1)
    axes.text(0.52, 0.52, "guessing", color="gray", fontsize=9)
    axes.text(0.98, 0.97, f"advantage at most {upwards(readings.advantage(claim))}", ha="right", va="top", fontsize=9)
    axes.set(title="trade-off of any test", xlabel="false positive rate", ylabel="false negative rate, at least")
    axes.set(xlim=(0, 1), ylim=(0, 1.08))


def _draw_groups(axes: Axes, claim: Profile, delta: float) -> None:
    sizes = np.arange(1, _MOST_TOGETHER + 1)
    found = np.array([readings.epsilon_at(readings.group_profile(claim, int(size)), delta) for size in sizes])
    known = found <= _LARGEST
    axes.plot(sizes[known], found[known], marker="o", markersize=4)
    if not known.all():
        axes.text(0.98, 0.04, f"larger groups: above {_LARGEST:g}", ha="right", fontsize=9, transform=axes.transAxes)
    axes.set(title=f"groups, at delta {upwards(delta)}", xlabel="clients together", ylabel="epsilon")
    axes.set(ylim=(0, None), xlim=(0.5, _MOST_TOGETHER + 0.5), xticks=sizes)


def _draw_belief(axes: Axes, epsilon: float) -> None:
    at = np.linspace(0.0, max(2 * epsilon, 0.1), 200)
    for prior in _PRIORS:
        axes.plot(at, [readings.posterior(epsilon=float(one), prior=prior) for one in at], label=f"{prior:g}")
    axes.axvline(epsilon, color="gray", linewidth=1, linestyle=":")
    axes.set(title="largest posterior belief", xlabel="privacy loss of the outcome", ylabel="posterior probability")
    axes.set(ylim=(0, 1.42), xlim=(0, at[-1]), yticks=np.linspace(0, 1, 6))
    axes.legend(frameon=False, fontsize=9, loc="upper center", ncols=3, title="prior belief", title_fontsize=9)
