"""Conditions go with every epsilon of a comparison: page, terminal, CSV, LaTeX, paragraph."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import PRIVATE, run_folder

from dpfed.cli import status
from dpfed.report.collection import collect_runs
from dpfed.report.experiment import write_experiment_report
from dpfed.report.privacy_card import conditions_text, differing_conditions
from dpfed.report.statistics import group_mean, groups_of, latex_table, privacy_paragraph, readings_of
from dpfed.runs.sweep_folder import QUANTITIES, ListedRun, Sweep, write_sweep

LIMITS = {
    "not_protected": ["137 public samples"],
    "notes": ["epsilon holds if interruptions did not depend on results"],
}
OTHER = {**PRIVATE, "adjacency": "zero-out", "public_samples": 137, **LIMITS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sweep of three rows with three seeds: two kinds of neighbours, and a row without privacy."""
    listed = []
    for row, changes in (("A & B", PRIVATE), ("C, masks", OTHER), ("D", {})):
        for seed, last in ((1, 0.8), (2, 0.9), (3, 0.7)):
            at = {"run.seed": str(seed)}
            listed.append(ListedRun(row=row, at=at, folder=f"{row[0].lower()}/{seed}"))
            run_folder(tmp_path / "out" / listed[-1].folder, accuracies=(last,), seed=seed, **changes)
    write_sweep(
        tmp_path / "out",
        Sweep(
            title="Two guarantees",
            paper="",
            profile=None,
            note="",
            quantities=("test_accuracy", "epsilon"),
            x=None,
            rows=("A & B", "C, masks", "D"),
            runs=tuple(listed),
            published=(),
            command="dpfed sweep two.toml",
            versions={},
            commit=None,
            tuned=(),
        ),
    )
    return tmp_path / "out"


def test_rows_with_other_conditions_are_named_first(folder: Path, tmp_path: Path) -> None:
    found = collect_runs([folder])
    text = write_experiment_report(found, tmp_path / "page").read_text()
    plain = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))
    warning = plain.index("Epsilons of these rows are different guarantees")
    assert warning < plain.index("Results")
    assert "zero-out (&#34;C, masks&#34;)" in plain[warning:]
    assert "137 public" in plain
    with (tmp_path / "page" / "table.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert {line["row"]: line["epsilon_holds_for"] for line in lines}.keys() == {"A & B", "C, masks", "D"}
    assert all("replace-one" in line["epsilon_holds_for"] for line in lines if line["row"] == "A & B")
    assert all(line["epsilon_holds_for"] == "no guarantee" for line in lines if line["row"] == "D")


def test_bounds_are_rounded_in_their_direction() -> None:
    bounds = {"largest": "1.0001", "smallest": "1.0000"}
    for quantity in QUANTITIES.values():
        if quantity.over_seeds in bounds:
            assert quantity.printed(1.00001) == bounds[quantity.over_seeds], quantity.key


@pytest.mark.drawn
def test_a_bound_in_a_figure_is_rounded_in_its_direction(folder: Path, tmp_path: Path) -> None:
    """Planted: an epsilon that two decimals round to 1.00."""
    found = collect_runs([folder])
    runs = tuple(
        replace(run, at={"rounds": run.at["run.seed"]}, summary=replace(run.summary, epsilon=1.00001))
        for run in found.runs
        if run.row == "A & B"
    )
    page = write_experiment_report(replace(found, runs=runs, quantities=("epsilon",), x="rounds"), tmp_path / "page")
    assert "B: 1.0001 at 2.00<" in page.read_text()


def test_equal_conditions_give_no_warning(folder: Path) -> None:
    runs = [run for run in collect_runs([folder]).runs if run.row != "C, masks"]
    assert differing_conditions([(run.row, run.summary) for run in runs]) is None
    assert conditions_text(runs[0].summary).startswith("client, replace-one, delta ")


def test_the_terminal_says_it_before_its_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("different guarantees") < printed.index("test accuracy")
    assert "published" not in printed


def test_latex_states_conditions_and_escapes_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = latex_table(collect_runs([folder]))
    assert r"A \& B & 80.00 $\pm$ 10.00 &" in text
    assert r"$\varepsilon$ holds for" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {4}
    assert status(["report", str(folder), "--latex"]) == 0
    assert capsys.readouterr().out.strip() == text.strip()
    assert status(["report", str(folder), "--latex", "--sentence"]) == 2


def test_the_paragraph_names_each_guarantee_once(folder: Path) -> None:
    text = privacy_paragraph(collect_runs([folder]))
    assert text.count("differentially private") == 2
    assert text.count("Not protected: 137 public samples. Note: epsilon holds if interruptions did not") == 1
    assert "D: no differential privacy." in text
    assert text.endswith("adds up their losses.")


def test_a_run_without_statement_is_the_worst_of_its_group(tmp_path: Path) -> None:
    """Planted: the bounds of one of two seeds contradict each other, so that nothing is claimed of its model."""
    lost = {**PRIVATE, "epsilon": None, "no_statement": "The bounds contradict each other."}
    folders = [run_folder(tmp_path / f"{seed}", seed=seed, **one) for seed, one in ((1, PRIVATE), (2, lost))]
    found = collect_runs(folders)
    (group,) = groups_of(found)
    assert group.worst.no_statement
    assert readings_of(group) is None
    assert group_mean(group, "epsilon", found).mean is None
    assert privacy_paragraph(found) == "dp-fedavg: no differential privacy."
    page = write_experiment_report(found, tmp_path / "page").read_text()
    assert "no statement" in page


def test_rounds_that_were_charged_twice_have_no_reading_by_their_number(tmp_path: Path) -> None:
    sampled = {**PRIVATE, "sampling": "poisson", "adjacency": "add-remove", "clients": 100, "cohort": 10}
    for repeated in (0, 40):
        folder = run_folder(tmp_path / f"{repeated}", **sampled, interrupted_charges=repeated)
        found = readings_of(groups_of(collect_runs([folder]))[0])
        assert found is not None
        assert (found.poisson_epsilon is None) == (repeated > 0)


@pytest.mark.parametrize(("stated", "starred"), [(4.6759, False), (4.6760, True)])
def test_a_reading_below_what_the_run_states_is_no_guarantee(tmp_path: Path, stated: float, starred: bool) -> None:
    """A cap, spare rounds and prolonged runs state more than their rounds: the smaller number had no star."""
    run = {**PRIVATE, "sampling": "poisson", "adjacency": "add-remove", "clients": 100, "cohort": 10, "epsilon": stated}
    found = readings_of(groups_of(collect_runs([run_folder(tmp_path / "run", **run)]))[0])
    assert found is not None
    assert found.poisson_epsilon == pytest.approx(4.67593, abs=1e-5)
    assert found.starred is starred


def test_tuning_that_no_epsilon_covers_is_stated(folder: Path) -> None:
    found = collect_runs([folder])
    tuned = replace(found, tuned_choices=({"row": "A & B"},))
    for text in (latex_table, privacy_paragraph):
        assert "no epsilon covers" not in text(found).replace(r"$\varepsilon$", "epsilon")
        assert "no epsilon covers" in text(tuned).replace(r"$\varepsilon$", "epsilon")
    unprotected = tuple(run for run in found.runs if run.row == "D")
    assert "Hyperparameters" not in privacy_paragraph(replace(tuned, runs=unprotected))


def test_neighbours_are_set_in_private_rows_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "two.toml"
    file.write_text(
        'title = "Two"\n[[row]]\nname = "A"\npreset = "dp-fedavg-digits"\n'
        '[[row]]\nname = "B"\npreset = "fedavg-digits"\n'
    )
    assert status(["sweep", str(file), "--dry-run", "--json", "--neighbours", "zero-out", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.count('"adjacency": "zero-out"') == 1
