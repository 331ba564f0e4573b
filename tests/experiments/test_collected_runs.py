"""Single runs of Fed-SMP's Table I, gathered: rows by their settings, epsilons, a run replaced by its later self."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import ModuleType

import pytest
from scripts import script

from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.sweep.plan import plan

FED_SMP = Path(__file__).parents[2] / "experiments" / "fed-smp"
ROWS = ("FedAvg", "DP-FedAvg, tight", "Fed-SMP rand-k, as published", "Fed-SMP rand-k, Poisson")


@pytest.fixture(scope="module")
def collect() -> ModuleType:
    return script("experiments/fed-smp/collect.py")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    cells = plan(FED_SMP / "table-1.toml", profile="smoke", out=folder, only=ROWS).grid.cells
    for number, cell in enumerate(cells):
        federation.run(build(cell.config), folder / str(number))
    return {cell.row: folder / str(number) for number, cell in enumerate(cells)}


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("data", ["fashion-mnist", "svhn", "shakespeare"])
def test_rows_of_figure_3_without_noise_have_its_row_names_and_the_clip_of_the_private_ones(
    collect: ModuleType, data: str
) -> None:
    cells = plan(FED_SMP / f"figure-3-{data}.toml", profile="full", out=None).grid.cells
    noiseless = [cell for cell in cells if cell.row.endswith("shared coordinates")]
    assert {collect.row_of(cell.config.to_dict()) for cell in noiseless} == {cell.row for cell in noiseless}
    assert len({cell.row for cell in noiseless}) == 2
    private = [cell.config.privacy for cell in cells if cell.row.startswith("Fed-SMP")]
    assert {cell.config.aggregation.clip_norm for cell in noiseless} == {one.clip_norm for one in private if one}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_a_run_is_found_by_its_settings(collect: ModuleType, runs: dict[str, Path], row: str) -> None:
    line, metrics = collect.read(runs[row])
    summary = json.loads((runs[row] / "summary.json").read_text(encoding="utf-8"))
    assert line["row"] == row
    assert line["rounds"] == len(metrics) == 2
    assert line["test_accuracy"] == pytest.approx(100 * summary["test_accuracy"])
    assert line["uplink_megabytes"] == summary["uplink_megabytes_total"]
    assert line["published_best"] == {"FedAvg": 86.98, "DP-FedAvg, tight": 72.72}.get(row, 77.59)
    if row == "FedAvg":
        assert line["epsilon"] == ""
        return
    assert line["epsilon"] == pytest.approx(summary["epsilon"], rel=1e-12)
    assert line["noise_multiplier"] == pytest.approx(summary["noise_multiplier"], rel=1e-12)
    theirs = line["epsilon_in_the_papers_way"]
    assert theirs < line["epsilon"] if row.endswith("as published") else theirs > line["epsilon"]


def test_a_later_state_of_a_run_replaces_the_earlier_one(collect: ModuleType, tmp_path: Path) -> None:
    path, fields = tmp_path / "results.csv", ("row", "x", "seed", "rounds")
    collect.merge(path, fields, [{"row": "A", "x": "", "seed": 0, "rounds": 10}])
    collect.merge(path, fields, [{"row": "A", "x": "", "seed": 1, "rounds": 180}])
    collect.merge(path, fields, [{"row": "A", "x": "", "seed": 0, "rounds": 180}])
    with path.open(encoding="utf-8", newline="") as file:
        assert [(line["seed"], line["rounds"]) for line in csv.DictReader(file)] == [("0", "180"), ("1", "180")]
