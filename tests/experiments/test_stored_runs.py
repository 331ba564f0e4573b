"""Stored runs are those of their results, and pass all checks that need no model; a changed digit is seen."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from scripts import script

import dpfed
from dpfed.audit.run import audit_run

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
RESULTS = sorted(file.with_suffix("").with_suffix(".csv") for file in EXPERIMENTS.glob("*/*.tar.xz"))
LINES = [(file, line) for file in RESULTS for line in csv.DictReader(file.read_text(encoding="utf-8").splitlines())]
FIRST_SEEDS = [(file, line) for file, line in LINES if line["seed"] == "2"]
OF_A_MODEL = {
    "all files have the same rounds", "all files are of one run", "model is the run's",
    "metrics agree with other files", "model moves by what was released",
}  # fmt: skip
"""Checks that read the model or the checkpoint, which are not stored."""
OF_A_START = "coordinates are chosen by public data"
"""Reads the public start of a warm top-k run as well."""


@pytest.fixture(scope="module")
def stored() -> ModuleType:
    return script("experiments/stored_runs.py")


@pytest.fixture(scope="module")
def folder(stored: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for results in RESULTS:
        assert stored.unpack(results, folder / results.stem)
    return folder


def test_a_line_of_results_is_the_summary_of_its_run(stored: ModuleType, folder: Path) -> None:
    assert len(LINES) >= 36
    for results, line in LINES:
        summary = json.loads((stored.run_folder(folder / results.stem, line) / "summary.json").read_text())
        for key in stored.FIELDS:
            assert line[key] == ("" if summary.get(key) is None else str(summary.get(key)))


@pytest.mark.slow_but_one_in(1000)
@pytest.mark.parametrize(
    ("results", "line"), FIRST_SEEDS, ids=lambda one: one["row"] if isinstance(one, dict) else one.stem
)
def test_a_stored_run_passes_the_audit(stored: ModuleType, folder: Path, results: Path, line: dict[str, str]) -> None:
    audit = audit_run(stored.run_folder(folder / results.stem, line))
    unclear = {check.name for check in audit.checks if check.passed is None}
    assert unclear - {OF_A_START} == OF_A_MODEL
    assert OF_A_START not in unclear or "top-k" in line["row"]
    assert all(check.passed in (True, None) for check in audit.checks), audit.as_text()
    assert len(audit.checks) > 20


def test_a_changed_digit_is_seen(stored: ModuleType, folder: Path, tmp_path: Path) -> None:
    results, line = LINES[0]
    run = tmp_path / "run"
    shutil.copytree(stored.run_folder(folder / results.stem, line), run)
    assert stored.digest(run) == line["files_sha256"]
    summary = (run / "summary.json").read_text()
    epsilon = json.loads(summary)["epsilon"]
    (run / "summary.json").write_text(summary.replace(str(epsilon), str(epsilon - 0.001)))
    assert stored.digest(run) != line["files_sha256"]
    assert audit_run(run).verdict == "fail"


def test_runs_are_added_with_their_commit_and_none_that_fails_its_audit(
    stored: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)
    results = tmp_path / "results.csv"
    small = {"federation.rounds": 1, "federation.clients": 60, "federation.cohort": 12, "local.epochs": 1}
    small |= {"privacy.epsilon": None, "privacy.noise_multiplier": 1.0}
    for seed, others in (("1", "__method.keep=0.1"), ("2", "")):
        sweep = tmp_path / seed
        run = sweep / "row" / f"run.seed={seed}{others}"
        dpfed.run("dp-fedavg-digits", small | {"run.seed": int(seed)}, out=run)
        (sweep / "sweep.json").write_text(json.dumps({"commit": f"commit {seed}"}))
        stored.pack(sweep, results)
    lines = [(line["row"], line["seed"], line["commit"]) for line in stored.lines_of(results)]
    assert lines == [("row", "2", "commit 2"), ("row__method.keep=0.1", "1", "commit 1")]
    assert len(stored.unpack(results, tmp_path / "unpacked")) == 2
    (run / "summary.json").write_text((run / "summary.json").read_text().replace('"epsilon": ', '"epsilon": -'))
    with pytest.raises(SystemExit, match="its audit says fail"):
        stored.pack(sweep, results)
