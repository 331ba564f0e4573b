"""Figures of a budget: epsilon over rounds, readings, and heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from accounting import budget
from accounting.budget import BernoulliUploads, Budget, GaussianNoise, Plan
from accounting.compose import accountant as accountants
from accounting.compose import grid, readings
from accounting.compose.accountant import Accountant, Guarantee, guarantee
from accounting.compose.profiles import Profile, profile
from accounting.compose.rdp import Conversion
from accounting.errors import UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.errors import ConfigError
from dpfed.report.figures.figure import COLOURS, figure, figure_of, import_pandas
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
    return figure_of(axes)


def _noise_text(plan: Plan, answer: Budget) -> str:
    if isinstance(plan.mechanism, BernoulliUploads):
        edge = plan.mechanism.edge
        return f"{plan.mechanism.dimension:,} Bernoulli samples in [{edge:g}, {1 - edge:g}]"
    changes = "" if plan.noise_schedule is None else f" x {factors_text(plan.noise_schedule)}"
    return f"noise multiplier {upwards(answer.noise_multiplier)}{changes}"


def _epsilon_at(
    plan: Plan, answer: Budget, rounds: int, accountant: Accountant, conversion: Conversion
) -> Budget | Guarantee:
    account: dict[str, Any] = {"accountant": accountant, "conversion": conversion}
    account["with_lower_bound"] = accountant == "best"
    if plan.noise_schedule is not None:
        first = plan.first_rounds(answer.noise_multiplier, rounds, of=answer.rounds)
        return guarantee(first, delta=plan.delta, **account)
    return budget.solve(plan, noise_multiplier=answer.noise_multiplier, rounds=rounds, **account)


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
    return figure_of(above)


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


AxisName = Literal["noise-multiplier", "rounds", "cohort"]
_BUDGET_MAP_POINTS, _POINTS_OF_A_GRID = 19, 81


@dataclass(frozen=True, kw_only=True)
class MapAxis:
    """Axis of a map from `low` to `high`, with values in equal ratios."""

    name: AxisName
    low: float
    high: float

    @staticmethod
    def from_text(text: str) -> MapAxis:
        """Return the axis of a text NAME=LOW:HIGH, as in rounds=10:1000. ConfigError for any other text."""
        name, _, ends = text.partition("=")
        try:
            low, high = (float(end) for end in ends.split(":"))
        except ValueError:
            low = high = math.nan
        if name not in get_args(AxisName) or not 0 < low < high < math.inf:
            raise ConfigError(
                f"--over {text}: must be NAME=LOW:HIGH with NAME one of {', '.join(get_args(AxisName))} and "
                "0 < LOW < HIGH, as in --over rounds=10:1000."
            )
        if name != "noise-multiplier" and (low < 1 or low != round(low) or high != round(high)):
            raise ConfigError(f"--over {text}: LOW and HIGH must be integers of at least 1.")
        return MapAxis(name=name, low=low, high=high)  # type: ignore[arg-type]

    def axis_values(self, count: int) -> NDArray[np.float64]:
        """Return at most `count` values of the axis; distinct integers for rounds and cohorts."""
        values = np.geomspace(self.low, self.high, count)
        return values if self.name == "noise-multiplier" else np.unique(values.round())


@dataclass(frozen=True, kw_only=True)
class BudgetMap:
    """Upper bounds on epsilon [y, x] at every pair of values `x` of x_axis and `y` of y_axis.

    notes: conditions of the first and the last cell, and the other notes that both have
    """

    plan: Plan
    x_axis: MapAxis
    y_axis: MapAxis
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    fixed: Mapping[str, float]
    accountant: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `dpfed budget --over --json`; infinite values become null."""
        rows = [[float(e) if math.isfinite(e) else None for e in row] for row in self.epsilon]
        axes = {
            self.x_axis.name: _json_values(self.x_axis, self.x),
            self.y_axis.name: _json_values(self.y_axis, self.y),
        }
        record = {"axes": axes, "epsilon": rows, "delta": self.plan.delta, "accountant": self.accountant}
        return {**record, "notes": list(self.notes), **self.fixed}

    def to_pandas(self) -> Any:
        """Return epsilon as a pandas DataFrame: a column for each value of x_axis, a row for each value of y_axis."""
        pd = import_pandas()
        across, up = pd.Index(self.x, name=self.x_axis.name), pd.Index(self.y, name=self.y_axis.name)
        return pd.DataFrame(self.epsilon, index=up, columns=across)


def _json_values(axis: MapAxis, values: NDArray[np.float64]) -> list[float] | list[int]:
    return values.tolist() if axis.name == "noise-multiplier" else [int(value) for value in values]


def budget_map(
    plan: Plan,
    axes: tuple[MapAxis, MapAxis],
    *,
    fixed: Mapping[str, float],
    accountant: Accountant = "best",
    conversion: Conversion = "improved",
) -> BudgetMap:
    """Compute epsilon over two axes; `fixed` holds noise multiplier or rounds unless it is an axis.

    Renyi accounts of sampled Gaussians are computed together on a fine grid; other accounts point by point.
    """
    quick = accountant == "rdp" and _has_grid_account(plan)
    x, y = (axis.axis_values(_POINTS_OF_A_GRID if quick else _BUDGET_MAP_POINTS) for axis in axes)
    across, up = np.meshgrid(x, y)
    values = {axes[0].name: across, axes[1].name: up}
    noise, rounds, cohort = (
        np.broadcast_to(values.get(name, fixed.get(name, plan.cohort)), across.shape) for name in get_args(AxisName)
    )
    if cohort.max() > plan.clients:
        raise ConfigError(f"--over cohort: at most {plan.clients}, the number of clients.")
    if quick:
        epsilon = grid.epsilons(
            cohort / plan.clients,
            noise * math.sqrt(plan.mechanism.noise_kept),
            rounds,
            plan.delta,
            sampling="fixed" if plan.sampling.name == "fixed" else "poisson",
            conversion=conversion,
        )
    else:
        cells = zip(noise.flat, rounds.flat, cohort.flat, strict=True)
        runs = (plan.changed(cohort=int(m)).run(float(z), int(t)) for z, t, m in cells)
        each = [
            accountants.epsilon(run, delta=plan.delta, accountant=accountant, conversion=conversion) for run in runs
        ]
        epsilon = np.array(each).reshape(across.shape)
    conditions, others = list[str](), list[tuple[str, ...]]()
    for end in (0, -1):
        one, z, count = plan.changed(cohort=int(cohort.flat[end])), float(noise.flat[end]), int(rounds.flat[end])
        conditions += accountants.hypothesis_notes(one.run(z, count))
        others.append(one.notes(z, count))
    notes = tuple(dict.fromkeys([*conditions, *(note for note in others[0] if note in others[1])]))
    return BudgetMap(
        plan=plan,
        x_axis=axes[0],
        y_axis=axes[1],
        x=x,
        y=y,
        epsilon=epsilon,
        fixed=fixed,
        accountant=accountant,
        notes=notes,
    )


def _has_grid_account(plan: Plan) -> bool:
    """Return True if `accounting.compose.grid` can compute the plan's account."""
    poisson = plan.sampling.name == "poisson" and plan.cohort_cap is None
    poisson = poisson and plan.adjacency is not Adjacency.REPLACE_ONE
    gaussian = isinstance(plan.mechanism, GaussianNoise) and plan.noise_schedule is None
    return gaussian and plan.before is None and (poisson or plan.sampling.name == "fixed")


def plot_budget_map(found: BudgetMap, path: Path | None = None, *, ax: Axes | None = None) -> Figure:
    """Return the heat map with contours of epsilon, and write it to `path` if given.

    Colours and contours are interpolated between computed points: for a guarantee use `accounting.budget.epsilon`.
    """
    from matplotlib.colors import LogNorm

    shown = np.where(np.isfinite(found.epsilon) & (found.epsilon > 0), found.epsilon, np.nan)
    if np.isnan(shown).all():
        raise ConfigError("--over: no epsilon of this map is finite and above 0. Widen the axes.")
    low, high = float(np.nanmin(shown)), float(np.nanmax(shown))
    with figure(path, ax=ax) as axes:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis, values, line in ((found.x_axis, found.x, axes.xaxis), (found.y_axis, found.y, axes.yaxis)):
            _label_axis(axis, values, line, found.plan.clients)
        norm = LogNorm(low, high) if high > low * 1.001 else None
        mesh = axes.pcolormesh(found.x, found.y, shown, norm=norm, cmap="viridis_r", shading="gouraud", rasterized=True)
        names = {math.log(level): f"{level:g}" for level in _LEVELS if low < level < high}
        if names:
            lines = axes.contour(
                found.x, found.y, np.log(shown), levels=list(names), colors="black", linewidths=0.8, linestyles="solid"
            )
            axes.clabel(lines, fmt=names, fontsize=8)
        axes.grid(visible=False)
        axes.figure.colorbar(mesh, ax=axes, label=f"epsilon at delta {upwards(found.plan.delta)}")
        axes.set_title(_map_title(found), fontsize=10)
    return figure_of(axes)


_LEVELS = [digit * 10.0**power for power in range(-4, 6) for digit in (1, 2, 5)]


def _label_axis(axis: MapAxis, values: NDArray[np.float64], line: Any, clients: int) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    inside = [level for level in _LEVELS if values[0] <= level <= values[-1]]
    line.set_major_locator(FixedLocator(inside if len(inside) > 1 else [float(values[0]), float(values[-1])]))
    line.set_minor_locator(NullLocator())
    line.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    line.set_label_text(axis.name.replace("-", " ") + (f" of {clients:,} clients" if axis.name == "cohort" else ""))


def _map_title(found: BudgetMap) -> str:
    plan, names = found.plan, (found.x_axis.name, found.y_axis.name)
    cohort = "" if "cohort" in names else f" {plan.cohort:,} of {plan.clients:,}"
    fixed = "".join(f", {name.replace('-', ' ')} {upwards(value)}" for name, value in found.fixed.items())
    return f"{plan.sampling.name} sampling{cohort}, {plan.adjacency}{fixed}; accountant {found.accountant}"
