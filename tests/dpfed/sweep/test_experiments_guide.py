"""docs/experiments.md: its files are read, its lists are complete."""

import re
from pathlib import Path

import pytest

from dpfed.cli.sweep import sweep
from dpfed.runs.sweep_folder import QUANTITIES
from dpfed.sweep.experiment_file import ExperimentFile, Row, SweepProfile, Tune
from dpfed.sweep.plan import plan

GUIDE = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text(encoding="utf-8")
FENCED = re.findall(r"```(\w*)\n(.*?)```", GUIDE, flags=re.DOTALL)


def example(tmp_path, *more):
    whole, axis, tune = [text for kind, text in FENCED if kind == "toml"]
    (numbers,) = [text for kind, text in FENCED if text.startswith("row,x,")]
    (tmp_path / "numbers.csv").write_text(numbers)
    axis = axis.removeprefix("[axes]\n") if "axis" in more else ""
    text = whole.replace("run.seed = [1, 2, 3]\n", f"run.seed = [1, 2, 3]\n{axis}", 1)
    path = tmp_path / "mine.toml"
    path.write_text(text + (tune if "tune" in more else ""))
    return path


def test_the_example_is_an_experiment(tmp_path):
    planned = plan(example(tmp_path), profile=None, out=None)
    assert (len(planned.grid.cells), len(planned.published)) == (3 + 9 + 9, 2)
    assert len(plan(example(tmp_path), profile="smoke", out=None).grid.cells) == 3


@pytest.mark.slow
def test_the_other_tables_can_be_put_into_it(tmp_path):
    assert len(plan(example(tmp_path, "axis"), profile=None, out=None).grid.cells) == 2 * 21
    only = plan(example(tmp_path, "tune"), profile=None, out=None, only=["DP-FedAvg"])
    assert [len(choice.runs) for choice in only.grid.choices] == [6, 6, 6]


def test_every_key_option_and_quantity_is_named():
    for table in (ExperimentFile, Row, SweepProfile, Tune):
        for key in table.model_fields:
            assert re.search(rf"\b{key}\b", GUIDE), key
    assert f"<!-- quantities: begin -->\n{', '.join(QUANTITIES)}.\n" in GUIDE
    for option in ("profile", "out", "jobs", "only", "settings", "dry_run", "json"):
        assert option in sweep.__annotations__
        assert f"--{'set' if option == 'settings' else option.replace('_', '-')}" in GUIDE
