"""Heat map of epsilon over two of noise multiplier, rounds and cohort, with contours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from accounting.budget import GaussianNoise, Plan
from accounting.compose import accountant as accountants
from accounting.compose import grid
from accounting.compose.accountant import Accountant
from accounting.compose.rdp import Conversion
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.errors import ConfigError
from dpfed.report.figures.figure import figure, import_pandas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AxisName = Literal["noise-multiplier", "rounds", "cohort"]
_POINTS, _POINTS_OF_A_GRID = 19, 81


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
    """Upper bounds on epsilon [y, x] at every pair of values `x` of x_axis and `y` of y_axis."""

    plan: Plan
    x_axis: MapAxis
    y_axis: MapAxis
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    epsilon: NDArray[np.float64]
    fixed: Mapping[str, float]
    accountant: str

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `dpfed budget --over --json`; infinite values become null."""
        rows = [[float(e) if math.isfinite(e) else None for e in row] for row in self.epsilon]
        axes = {
            self.x_axis.name: _json_values(self.x_axis, self.x),
            self.y_axis.name: _json_values(self.y_axis, self.y),
        }
        return {"axes": axes, "epsilon": rows, "delta": self.plan.delta, "accountant": self.accountant, **self.fixed}

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
    x, y = (axis.axis_values(_POINTS_OF_A_GRID if quick else _POINTS) for axis in axes)
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
        each = [_cell_epsilon(plan, float(z), int(t), int(r), accountant, conversion) for z, t, r in cells]
        epsilon = np.array(each).reshape(across.shape)
    return BudgetMap(
        plan=plan, x_axis=axes[0], y_axis=axes[1], x=x, y=y, epsilon=epsilon, fixed=fixed, accountant=accountant
    )


def _has_grid_account(plan: Plan) -> bool:
    """Return True if `accounting.compose.grid` can compute the plan's account."""
    poisson = plan.sampling.name == "poisson" and plan.adjacency is not Adjacency.REPLACE_ONE
    gaussian = isinstance(plan.mechanism, GaussianNoise) and plan.noise_schedule is None
    return gaussian and plan.before is None and (poisson or plan.sampling.name == "fixed")


def _cell_epsilon(
    plan: Plan, z: float, rounds: int, cohort: int, accountant: Accountant, conversion: Conversion
) -> float:
    return accountants.guarantee(
        plan.changed(cohort=cohort).run(z, rounds),
        delta=plan.delta,
        accountant=accountant,
        conversion=conversion,
        with_lower_bound=False,
    ).epsilon


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
    drawn: Figure = axes.figure
    return drawn


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
