"""The examples run as they stand, in an empty folder that is not the repository, and do what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from accounting import Ledger
from accounting.ledger.project import ProjectLedger
from dpfed.audit.run import audit_run

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.name for path in EXAMPLES.glob("*.py"))


def output(name, folder):
    run = subprocess.run([sys.executable, EXAMPLES / name], cwd=folder, capture_output=True, text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


def test_every_example_is_in_the_table():
    table = (EXAMPLES / "README.md").read_text()
    assert sorted(re.findall(r"\]\((\w+\.py)\)", table)) == NAMES
    assert len(NAMES) >= 4


def test_own_data_is_as_short_as_promised():
    code = [line for line in (EXAMPLES / "own_data.py").read_text().splitlines()[1:] if line.strip()]
    assert len(code) <= 15


@pytest.mark.slow
def test_own_data_trains_within_its_budget(tmp_path):
    said = output("own_data.py", tmp_path)
    assert float(re.search(r"accuracy ([\d.]+)%", said)[1]) > 80
    assert "epsilon 3.0000 at delta" in said
    assert (tmp_path / "own-data" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ledger", "least"),
    [("own_loop.py", "own-loop.jsonl", 60), ("own_loop_scikit_learn.py", "sklearn.jsonl", 40)],
)
def test_own_loops(tmp_path, name, ledger, least):
    said = output(name, tmp_path)
    assert float(re.search(r"accuracy ([\d.]+)%", said)[1]) > least
    assert len(Ledger.read(tmp_path / ledger).releases) == 20
    assert Ledger.read(tmp_path / ledger).header.randomness == "secure"
    assert audit_run(tmp_path / ledger, confidence=1 - 1e-6).verdict == "pass"


@pytest.mark.slow
def test_one_budget(tmp_path):
    said = output("one_budget.py", tmp_path)
    assert said.count("learning rate") == 3
    project = ProjectLedger.open(tmp_path / "project.jsonl")
    assert len({line.detail["run"] for line in project.ledger.releases}) == 3
    assert project.spent().epsilon <= project.terms.epsilon


@pytest.mark.slow
def test_types_of_the_examples(tmp_path):
    """Plain mypy; tests/typed has a user's file under mypy --strict."""
    mypy = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--disable-error-code=import-untyped"]
    mypy += ["--scripts-are-modules", "--cache-dir", str(tmp_path / "cache"), "--check-untyped-defs"]
    done = subprocess.run(
        [*mypy, *(str(EXAMPLES / name) for name in NAMES)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_regression(tmp_path):
    said = output("regression.py", tmp_path)
    shares = [float(share) for share in re.findall(r"([\d.]+)% of test targets", said)]
    assert 35 < shares[0] < 65
    assert shares[1] > 80
    assert said.count("epsilon 3.0000 at delta") == 2


@pytest.mark.slow
def test_own_compressor_as_its_docstring_says(tmp_path):
    file = EXAMPLES / "own_compressor.py"
    for words in (["audit", "scheme", "three-levels"], ["methods"]):
        run = [sys.executable, "-m", "dpfed", *words, "--load", str(file)]
        subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, timeout=600)


@pytest.mark.slow
def test_training_steps_keep_what_they_claim(tmp_path):
    said = output("audit_training_step.py", tmp_path)
    assert said.count(": pass on these inputs. ") == 2


@pytest.mark.slow
def test_a_function_of_ones_own_is_found_right_and_wrong(tmp_path):
    verdicts = {}
    for name in ("clipped_sum", "forgotten_layers"):
        command = [sys.executable, "-m", "dpfed", "audit", "upload", name, "--load", str(EXAMPLES / "own_upload.py")]
        verdicts[name] = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600).returncode
    assert verdicts == {"clipped_sum": 0, "forgotten_layers": 1}


@pytest.mark.slow
def test_the_replay_audit_of_a_project_that_uses_opacus(tmp_path):
    """The fixture is given by a conftest.py here: this environment may be older than the package's entry point."""
    (tmp_path / "conftest.py").write_text("from dpfed.audit.replays.pytest_plugin import dp_replay\n")
    (tmp_path / "test_opacus.py").write_text((EXAMPLES / "replay" / "test_opacus.py").read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
