"""Run folders that somebody else has filled: one error of ours, in bounded memory, without waiting."""

import json
import os
import tomllib

import pytest
import tomli_w
from reference.bounded import bounded
from refusals import refused

from accounting.budget import Poisson
from dpfed.audit.evidence.cohort_distribution import most_testable_rounds, poisson_finding, size_distribution
from dpfed.cli import status
from dpfed.errors import RunError
from dpfed.records.summary import read_finished
from dpfed.runs.sweep_folder import read_sweep

from ..audit.run_folders import copied, run

FILES = (
    "config.toml", "ledger.jsonl", "metrics.jsonl", "diagnostics.jsonl", "canaries.jsonl", "summary.json",
    "checkpoint.safetensors", "population.key",
)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile") / "run"
    return run(folder, "audit.canaries=12", "federation.rounds=2")


@pytest.fixture
def folder(finished, tmp_path):
    return copied(finished, tmp_path / "run")


READERS = {
    "config.toml": {"audit", "report", "resume"},
    "ledger.jsonl": {"resume", "ledger", "audit"},
    "metrics.jsonl": {"report", "resume", "audit"},
    "summary.json": {"report", "audit"},
    "diagnostics.jsonl": {"report", "resume", "audit"},
    "checkpoint.safetensors": {"resume"},
    "canaries.jsonl": {"resume", "audit"},
    "population.key": {"resume"},
}
"""The commands that read a file."""


def answer(command, finished, folder):
    """Exit status of one command that reads a run folder."""
    given = {
        "audit": ["audit", "run", str(folder), "--json"],
        "report": ["report", str(folder), "--json"],
        "resume": ["run", str(finished / "config.toml"), "--resume", "--out", str(folder), "--json"],
        "ledger": ["ledger", "show", str(folder / "ledger.jsonl")],
    }
    with bounded():
        return status(given[command])


@pytest.mark.slow_but_one_in(10)
@pytest.mark.parametrize(("name", "command"), [(name, command) for name in FILES for command in sorted(READERS[name])])
@pytest.mark.parametrize("kind", ["fifo", "device", "endless"])
def test_no_file_of_a_run_is_waited_for_or_read_without_end(finished, folder, capfd, name, command, kind):
    (folder / name).unlink()
    match kind:
        case "fifo":
            os.mkfifo(folder / name)
        case "device":
            (folder / name).symlink_to("/dev/zero")
        case "endless":
            with (folder / name).open("wb") as file:
                file.truncate(2**42)
    assert answer(command, finished, folder) in ((0, 1) if command == "audit" and name != "config.toml" else (1, 2))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("name", ["checkpoint.safetensors", "metrics.jsonl", "report.html"])
def test_no_part_of_a_file_is_waited_for_or_followed(finished, folder, tmp_path, name):
    os.mkfifo(folder / f"{name}.part")
    with bounded():
        assert answer("resume", finished, folder) in (0, 1)
    (tmp_path / "precious").write_text("mine")
    (folder / f"{name}.part").unlink(missing_ok=True)
    (folder / f"{name}.part").symlink_to(tmp_path / "precious")
    assert answer("resume", finished, folder) in (0, 1)
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("name", ["results.csv", "table.csv", "report.html", "curves.png"])
def test_a_report_neither_waits_for_its_files_nor_follows_them(finished, folder, tmp_path, name):
    (folder / "report").mkdir()
    (tmp_path / "precious").write_text("mine")
    (folder / "report" / name).symlink_to(tmp_path / "precious")
    assert answer("report", finished, folder) == 0
    assert (tmp_path / "precious").read_text() == "mine"
    (folder / "report" / name).unlink()
    os.mkfifo(folder / "report" / name)
    assert answer("report", finished, folder) == 1
    assert (folder / "report" / name).is_fifo()


COUNTS = (
    "federation.clients", "federation.cohort", "federation.rounds", "federation.cohort_cap", "local.epochs",
    "local.steps", "local.batch_size", "data.samples", "data.public", "run.group", "aggregation.neighbours",
)  # fmt: skip
HUGE = dict.fromkeys(COUNTS, 10**15) | {"audit.canaries": 10**9, "run.seed": 10**19}
HUGE |= {"local.learning_rate": 1e300, "server.prior": 1e300}


BESIDE = {
    "aggregation.neighbours": "aggregation.kind=masked",
    "data.samples": "data.partition=resampled",
    "server.prior": "server.rule=posterior",
}
"""The choice that a key belongs to."""


@pytest.mark.parametrize("key", sorted(HUGE))
def test_a_configuration_names_no_number_that_takes_all_memory(folder, capfd, key):
    table, _, name = key.partition(".")
    tables = tomllib.loads((folder / "config.toml").read_text())
    tables.setdefault(table, {})[name] = HUGE[key]
    if key in BESIDE:
        other, _, choice = BESIDE[key].partition(".")
        choice, _, value = choice.partition("=")
        tables[other] = {
            **{k: v for k, v in tables[other].items() if key != "server.prior"},
            name: HUGE[key],
            choice: value,
        }
    (folder / "config.toml").write_text(tomli_w.dumps(tables))
    with bounded():
        assert status(["audit", "run", str(folder), "--json"]) == 2
    said = capfd.readouterr().err
    assert key in said
    assert "less than or equal to" in said


@pytest.mark.slow
def test_cohorts_are_tested_in_bounded_memory():
    law = size_distribution(Poisson(cohort=5 * 10**6).cohorts(10**7))
    sizes = [5 * 10**6] * 100_000
    with bounded(megabytes=1500):
        assert poisson_finding(law, 5 * 10**6, sizes[: most_testable_rounds(law)], 1e-6)[0] is False
    assert most_testable_rounds(size_distribution(Poisson(cohort=10**3).cohorts(10**6))) > 4000


STRANGE = [None, "x", [], 10**400, float("nan")]


@pytest.mark.slow_but_one_in(10)
@pytest.mark.parametrize("value", STRANGE, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "diagnostics.jsonl", "canaries.jsonl"])
def test_strange_values_are_one_error(finished, folder, capfd, name, value):
    """In every key at once, then in a few alone: what reads one must not need another."""
    for keys in (None, ("round", "rounds"), ("test_accuracy", "score"), ("epsilon", "noise"), ("delta", "cohort")):
        lines = [json.loads(line) for line in (finished / name).read_text().splitlines()] if name[-1] == "l" else None
        record = json.loads((finished / name).read_text()) if lines is None else lines[0]
        record |= {key: value for key in record if keys is None or key in keys}
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines or [record]))
        if keys is None:
            assert answer("audit", finished, folder) in (0, 1, 2)
        with bounded():
            try:
                read_finished(folder)
            except RunError as error:
                assert len(str(error)) < 2000
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("value", [None, 1, "x", [], {"runs": 1}, {"runs": [], "published": [{}]}])
def test_strange_descriptions_of_sweeps_are_one_error(tmp_path, value):
    (tmp_path / "sweep.json").write_text(json.dumps(value))
    assert status(["report", str(tmp_path)]) == 1


def test_runs_of_a_sweep_lie_below_it(tmp_path, finished):
    listed = {"row": "a", "at": {}, "folder": os.path.relpath(finished, tmp_path)}
    told = {
        "title": "", "paper": "", "profile": None, "note": "", "quantities": ["epsilon"], "x": None, "rows": ["a"],
        "runs": [listed], "published": [], "command": "", "versions": {}, "commit": None, "tuned": [],
    }  # fmt: skip
    (tmp_path / "sweep.json").write_text(json.dumps(told))
    refused(RunError, "not inside the folder of the sweep", read_sweep, tmp_path)
    told["runs"][0]["folder"], told["quantities"] = "a", ["epsylon"]
    (tmp_path / "sweep.json").write_text(json.dumps(told))
    refused(RunError, "epsylon", read_sweep, tmp_path)
