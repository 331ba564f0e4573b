"""A report's results for a paper: a LaTeX table (booktabs), and the privacy paragraph of all rows."""

from __future__ import annotations

from accounting.rounding import upwards
from dpfed.report.collection import RunCollection
from dpfed.report.conditions import conditions_of
from dpfed.report.statistics import GroupMean, RunGroup, group_mean, groups_of, short_axis_name
from dpfed.runs.quantities import QUANTITIES

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
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_escaped(caption)}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def privacy_paragraph(collection: RunCollection) -> str:
    """Return one sentence for each group of rows whose guarantees have equal conditions."""
    by_conditions: dict[tuple[tuple[str, str], ...], list[RunGroup]] = {}
    for group in groups_of(collection):
        worst = max(group.runs, key=lambda run: run.summary.epsilon or 0.0)
        by_conditions.setdefault(tuple(conditions_of(worst.summary).items()), []).append(group)
    sentences = []
    for items, groups in by_conditions.items():
        names = ", ".join(group.name for group in groups)
        if not items:
            sentences.append(f"{names}: no differential privacy.")
            continue
        found = dict(items)
        largest = max(run.summary.epsilon or 0.0 for group in groups for run in group.runs)
        accountants = ", ".join(dict.fromkeys(str(run.summary.accountant) for group in groups for run in group.runs))
        public = found["public samples"]
        exempt = "" if public == "none" else f" {public} public samples are not protected."
        sentences.append(
            f"{names}: each run is (epsilon, delta)-differentially private with epsilon at most {upwards(largest)} and "
            f"delta {found['delta']} for one {found['unit']}, {found['neighbours']} neighbours, {found['sampler']} "
            f"participation, computed from the ledger of releases (accountant: {accountants}).{exempt}"
        )
    if sum(run.summary.epsilon is not None for run in collection.runs) > 1:
        sentences.append("Each epsilon is for one run alone; publishing several of these runs adds up their losses.")
    return " ".join(sentences)


def _number(one: GroupMean) -> str:
    if one.mean is None:
        return "–"
    words = one.quantity.printed(one.mean, one.digits)
    return words if one.shown_std is None else f"{words} ± {one.shown_std:,.{one.digits}f}"


def _row(cells: list[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(one, one) for one in text).replace("±", r"$\pm$").replace("epsilon", r"$\varepsilon$")
