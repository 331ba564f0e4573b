"""A few rows of each paper's smoke profile, run."""

from __future__ import annotations

import csv
import math
import runpy
import sys
from pathlib import Path

import pytest

from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.sweep.plan import plan

pytestmark = pytest.mark.usefixtures("_own_code")

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
ROWS = [
    ("fed-smp/table-1.toml", "Fed-SMP rand-k, as published"),
    ("fedpm/figure-3-mnist.toml", "FedPM"),
]


PAPERS = sorted(
    f"{folder}/{path.name}"
    for folder in ("fed-smp", "fedpm", "fedmrn", "fedscalar")
    for path in (EXPERIMENTS / folder).glob("*.toml")
)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_every_row_of_a_papers_smoke_profile_runs(name: str, tmp_path: Path) -> None:
    """Each row at one point of its axes; test_experiment_files.py builds all points."""
    rounds, cells = [], plan(EXPERIMENTS / name, profile="smoke", out=tmp_path / "runs").grid.cells
    for number, cell in enumerate({cell.row: cell for cell in cells}.values()):
        summary = federation.run(build(cell.config), tmp_path / str(number)).summary
        rounds.append(summary["rounds"])
        assert (summary["epsilon"] is None) == (cell.config.privacy is None)
    assert set(rounds) == {2}


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_first_run_of_the_row_in_the_smoke_profile(name: str, row: str, tmp_path: Path) -> None:
    found = plan(EXPERIMENTS / name, profile="smoke", out=tmp_path / "runs", only=[row])
    summary = federation.run(build(found.grid.cells[0].config), tmp_path / "run").summary
    assert summary["rounds"] == 2
    assert 0 <= summary["test_accuracy"] <= 1
    assert (summary["epsilon"] is None) == (found.grid.cells[0].config.privacy is None)
    if summary["epsilon"] is not None:
        assert 0 < summary["epsilon"] < math.inf
        assert summary["sampling"] == ("fixed" if row.endswith("as published") else "poisson")


def test_seconds_of_one_client_are_measured_for_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = EXPERIMENTS / "fedmrn" / "figure_6.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--profile", "smoke", "--out", str(tmp_path)])
    runpy.run_path(str(path), run_name="__main__")
    with (tmp_path / "figure-6.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [lines[place]["row"] for place in (0, -1)] == ["FedAvg", "FedAvg on FedPM's network"]
    assert all(float(line[key]) > 0 for line in lines for key in ("training_seconds", "message_seconds"))
    assert (tmp_path / "figure-6.png").stat().st_size > 10_000
