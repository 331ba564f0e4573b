"""Results over seeds: means, readings of epsilon, and tables for a paper."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

from accounting import budget
from accounting.budget import Plan
from accounting.compose.accountant import Accountant
from accounting.errors import AccountingError
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.records.summary import FinishedRun, Summary
from dpfed.report.collection import SEED, RunCollection
from dpfed.report.privacy_card import conditions_of, conditions_text
from dpfed.runs.durable_files import put
from dpfed.runs.sweep_folder import QUANTITIES, SAFELY, PublishedNumber, Quantity


@dataclass(frozen=True, kw_only=True, eq=False)
class RunGroup:
    """Runs of a row at one point of its axes, which differ only in their seed."""

    row: str
    at: Mapping[str, str]
    runs: tuple[FinishedRun, ...]

    @property
    def name(self) -> str:
        """Name of the row, followed by its values on the axes."""
        return self.name_without()

    def name_without(self, *axes: str) -> str:
        """Return the name without its values on these axes."""
        words = [f"{short_axis_name(name)} {value}" for name, value in self.at.items() if name not in axes]
        return ", ".join([self.row, *words])

    @property
    def worst(self) -> Summary:
        """Summary of the run with the largest epsilon; a run without a statement has none."""
        return max((run.summary for run in self.runs), key=lambda one: math.inf if one.epsilon is None else one.epsilon)

    @property
    def conditions(self) -> tuple[str, ...]:
        """Distinct conditions of the group's epsilons (`dpfed.report.privacy_card`)."""
        return tuple(dict.fromkeys(conditions_text(run.summary) for run in self.runs))


@dataclass(frozen=True, kw_only=True)
class GroupMean:
    """Mean over seeds of a quantity of a group, or its statistic `quantity.over_seeds`, in the printed unit.

    `std` is the sample deviation over seeds, None for one seed and for statistics other than a mean; `difference` is
    measured minus published.
    """

    quantity: Quantity
    n: int
    mean: float | None
    std: float | None
    published: PublishedNumber | None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.published is None else self.mean - self.published.value

    @property
    def shown_mean(self) -> str:
        """Mean as text, in the quantity's form; a dash without a mean."""
        return "–" if self.mean is None else self.quantity.printed(self.mean, self.digits)

    @property
    def shown_difference(self) -> str:
        """Difference as text, in the quantity's form; a dash without a difference."""
        return "–" if self.difference is None else self.quantity.difference(self.difference, self.digits)

    @property
    def shown_std(self) -> float | None:
        """Deviation to print: None for fewer than three seeds, whose deviation says little."""
        return self.std if self.n > 2 else None

    @property
    def digits(self) -> int:
        """Return the number of decimals to print: the quantity's, or more to show two digits of a small mean."""
        usual = self.quantity.digits
        if self.quantity.unit == "%" or usual == 0 or not self.mean or not math.isfinite(self.mean):
            return usual
        return max(usual, 1 - math.floor(math.log10(abs(self.mean))))


_COLUMNS = (
    "quantity", "unit", "over_seeds", "n", "mean", "std", "published", "difference", "published_where"
)  # fmt: skip
_OVER_SEEDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "largest": max,
    "smallest": min,
}


def groups_of(collection: RunCollection) -> list[RunGroup]:
    """Return the groups, in the order of their first runs."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[FinishedRun]] = {}
    for run in collection.runs:
        at = tuple((name, value) for name, value in run.at.items() if name != SEED)
        found.setdefault((run.row, at), []).append(run)
    return [RunGroup(row=row, at=dict(at), runs=tuple(runs)) for (row, at), runs in found.items()]


def group_mean(group: RunGroup, key: str, collection: RunCollection) -> GroupMean:
    """Return the mean of a key of the summary over those runs of the group that have this number.

    An upper bound that one of the runs does not have is none of the group.
    """
    quantity = QUANTITIES[key]
    values = [quantity.scale * value for run in group.runs if (value := run.summary.number(key)) is not None]
    if quantity.over_seeds == "largest" and len(values) < len(group.runs):
        values = []
    return GroupMean(
        quantity=quantity,
        n=len(values),
        mean=_OVER_SEEDS[quantity.over_seeds](values) if values else None,
        std=statistics.stdev(values) if len(values) > 1 and quantity.over_seeds == "mean" else None,
        published=_published_number(group, key, collection),
    )


def write_table(collection: RunCollection, target: Path) -> None:
    """Write table.csv: one line for each group and quantity."""
    groups = groups_of(collection)
    axes = list(dict.fromkeys(name for group in groups for name in group.at))
    stream = io.StringIO(newline="")
    lines = csv.writer(stream)
    lines.writerow(["row", *axes, *_COLUMNS, "epsilon_holds_for"])
    for group in groups:
        for key in collection.quantities:
            one = group_mean(group, key, collection)
            there, quantity = one.published, one.quantity
            numbers = [one.mean, one.std, there.value if there else None, one.difference]
            lines.writerow(
                [group.row, *(group.at.get(name, "") for name in axes)]
                + [key, quantity.unit, quantity.over_seeds, one.n]
                + ["" if number is None else _number_text(key, number) for number in numbers]
                + [there.where if there else "", "; ".join(group.conditions)]
            )
    put(target, stream.getvalue().encode())


def _number_text(key: str, number: float) -> str:
    """Return a number as text; guarantees keep all digits, because rounding to nearest would invalidate them."""
    return repr(number) if key in SAFELY else f"{number:.8g}"


def short_axis_name(axis: str) -> str:
    """Return the last part of an axis's name."""
    return axis.rpartition(".")[2].replace("_", " ")


def _published_number(group: RunGroup, key: str, collection: RunCollection) -> PublishedNumber | None:
    """Return the published number for this row at its value of x, or else the one for the whole row."""
    at = group.at.get(collection.x or "")
    found = {one.x: one for one in collection.published if (one.row, one.quantity) == (group.row, key)}
    return found.get(at, found.get(None))


@dataclass(frozen=True, kw_only=True)
class EpsilonReadings:
    """Epsilons at the delta of `summary`, the record of the group's longest run.

    stated_epsilon:    upper bound for what ran, recomputed from the ledger; `holds_for`: unit, adjacency, sampler
    classical_epsilon: the Fed-SMP paper's formula: Poisson sampling, add-remove, Renyi with the classical conversion
    poisson_epsilon:   the tightest account for Poisson sampling and add-remove
    starred:           True if the last two are no guarantee for what ran: it had another sampler or adjacency, a cap on
                       its cohorts, or a plan of other rounds than those that ran
    The last two are upper bounds for Poisson sampling with the run's noise. They are None unless the run adds Gaussian
    noise of one size to a sampled sum, and if it charged a round twice.
    """

    group: RunGroup
    summary: Summary
    stated_epsilon: float
    holds_for: str
    classical_epsilon: float | None
    poisson_epsilon: float | None
    starred: bool


def readings_of(group: RunGroup) -> EpsilonReadings | None:
    """Return the readings of a group, computed for its longest run; None if a run has no statement of privacy."""
    summary = max(group.runs, key=lambda run: run.summary.rounds).summary
    if group.worst.epsilon is None or summary.delta is None:
        return None
    classical = poisson = own = None
    if summary.noise_multiplier is not None and _is_sampled_gaussian(summary):
        by: Accountant = "rdp" if summary.accountant == "rdp" else "best"
        classical, poisson, own = _poisson_readings(
            summary.clients, summary.cohort, summary.rounds, summary.noise_multiplier, summary.delta, by
        )
    same_kind = (summary.sampling, summary.adjacency) == ("poisson", "add-remove")
    sampler = "every upload seen" if summary.noise_placement == "uploads" else f"{summary.sampling} sampling"
    return EpsilonReadings(
        group=group,
        summary=summary,
        stated_epsilon=group.worst.epsilon,
        holds_for=f"{summary.unit}, {summary.adjacency}, {sampler}, {summary.accountant}",
        classical_epsilon=classical,
        poisson_epsilon=poisson,
        starred=own is not None and not (same_kind and own > group.worst.epsilon * (1 - 1e-6)),
    )


def _is_sampled_gaussian(summary: Summary) -> bool:
    return (
        summary.unit == "client"
        and summary.noise == "gaussian"
        and summary.noise_placement == "server"
        and not summary.noise_schedule
        and summary.sampling in ("poisson", "fixed")
        and summary.rounds > 0
        and not summary.interrupted_charges
    )


@lru_cache
def _poisson_readings(
    clients: int, cohort: int, rounds: int, z: float, delta: float, by: Accountant
) -> tuple[float | None, float | None, float | None]:
    """Return epsilon by the classical conversion, the tightest one, and that of the run's accountant `by`."""
    try:
        plan = Plan(clients=clients, cohort=cohort, sampling="poisson", adjacency=Adjacency.ADD_REMOVE, delta=delta)
        old = budget.epsilon(plan, noise_multiplier=z, rounds=rounds, accountant="rdp", conversion="classical")
        tight = budget.epsilon(plan, noise_multiplier=z, rounds=rounds)
        own = tight if by == "best" else budget.epsilon(plan, noise_multiplier=z, rounds=rounds, accountant=by)
    except AccountingError:
        return None, None, None
    return old, tight, own


TUNED = "Hyperparameters were chosen by training on the same data, which no epsilon covers."
_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
_SPECIAL |= {one: f"\\{one}" for one in "&%$#_{}"}


def latex_table(collection: RunCollection) -> str:
    """Return the results as a LaTeX table; its caption states the conditions of epsilon, or a column where they
    differ."""
    groups, keys = groups_of(collection), collection.quantities
    axes = list(dict.fromkeys(name for group in groups for name in group.at))
    conditions = list(dict.fromkeys(one for group in groups for one in group.conditions))
    private = any(run.summary.epsilon is not None for run in collection.runs)
    differ = private and len(conditions) > 1
    heads = ["", *map(short_axis_name, axes), *(QUANTITIES[key].heading for key in keys), "n"]
    heads += ["epsilon holds for"] if differ else []
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{l{'l' * len(axes)}{'r' * (len(keys) + 1)}{'l' if differ else ''}}}",
        r"\toprule",
        _row(heads),
        r"\midrule",
    ]
    for group in groups:
        cells = [group.row, *(group.at.get(axis, "") for axis in axes)]
        cells += [_number(group_mean(group, key, collection)) for key in keys]
        lines.append(_row([*cells, str(len(group.runs)), *(["; ".join(group.conditions)] if differ else [])]))
    caption = f"{collection.title}. Mean over n seeds, from three on with the standard deviation; epsilon: the largest."
    if private and not differ:
        caption += f" Epsilon holds for: {conditions[0]}."
    if private and collection.tuned_choices:
        caption += f" {TUNED}"
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_escaped(caption)}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def privacy_paragraph(collection: RunCollection) -> str:
    """Return one sentence for each group of rows whose guarantees have equal conditions, with its limits and notes."""
    by_conditions: dict[tuple[tuple[str, str], ...], list[RunGroup]] = {}
    for group in groups_of(collection):
        by_conditions.setdefault(tuple(conditions_of(group.worst).items()), []).append(group)
    sentences = []
    for items, groups in by_conditions.items():
        names = ", ".join(group.name for group in groups)
        if not items:
            sentences.append(f"{names}: no differential privacy.")
            continue
        found = dict(items)
        largest = max(group.worst.epsilon or 0.0 for group in groups)
        runs = [run.summary for group in groups for run in group.runs]
        accountants = ", ".join(dict.fromkeys(str(one.accountant) for one in runs))
        sentences.append(
            f"{names}: each run is (epsilon, delta)-differentially private with epsilon at most {upwards(largest)} and "
            f"delta {found['delta']} for one {found['unit']}, {found['neighbours']} neighbours, {found['sampler']} "
            f"participation, computed from the ledger of releases (accountant: {accountants})."
        )
        sentences += [f"Not protected: {note}." for note in dict.fromkeys(chain(*(one.not_protected for one in runs)))]
        sentences += [f"Note: {note}." for note in dict.fromkeys(chain(*(one.notes for one in runs)))]
    if sum(run.summary.epsilon is not None for run in collection.runs) > 1:
        sentences.append("Each epsilon is for one run alone; publishing several of these runs adds up their losses.")
    if collection.tuned_choices and any(run.summary.epsilon is not None for run in collection.runs):
        sentences.append(TUNED)
    return " ".join(sentences)


def _number(one: GroupMean) -> str:
    return one.shown_mean + ("" if one.shown_std is None else f" ± {one.shown_std:,.{one.digits}f}")


def _row(cells: list[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(one, one) for one in text).replace("±", r"$\pm$").replace("epsilon", r"$\varepsilon$")
