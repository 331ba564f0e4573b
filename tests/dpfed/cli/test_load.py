"""`--load FILE.py`: every command takes own code, each process of a sweep too, and a run knows which it was."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w

from dpfed.cli import status
from dpfed.config import own_code
from dpfed.config.own_code import VARIABLE, load_own_code

pytestmark = pytest.mark.slow_but_one_in(3)

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_compressor.py"
SMALL = [word for one in ("rounds=2", "clients=30", "cohort=10") for word in ("--set", f"federation.{one}")]
PRIVATE = ["--set", "privacy.clip_norm=2", "--set", "privacy.noise_multiplier=1"]
SWEEP = {
    "title": "Mine",
    "base": {
        "model": {"name": "mlp"},
        "data": {"name": "digits"},
        "federation": {"clients": 20, "cohort": 5, "rounds": 2},
        "local": {"learning_rate": 0.1, "epochs": 1, "batch_size": 10},
        "method": {"name": "masked-levels", "keep": 0.4},
    },
    "axes": {"run.seed": [1, 2]},
    "row": [{"name": "Mine"}],
}


def command(folder, *arguments):
    """In a process of its own, which knows nothing of this one's registrations."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    words = [sys.executable, "-m", "dpfed", *map(str, arguments), "--json"]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done, json.loads(done.stdout or "null")


@pytest.fixture
def mine(tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    return tmp_path / "mine.py"


@pytest.mark.slow
def test_a_run_from_the_command_line(mine, tmp_path):
    done, summary = command(tmp_path, "run", "masked-levels-digits", "--load", "mine.py", *SMALL, *PRIVATE)
    assert done.returncode == 0, done.stderr
    assert summary["method"] == "masked-levels"
    assert summary["epsilon"] > 0
    assert 0 < summary["uplink_bits_per_parameter"] < 1
    folder = tmp_path / "runs" / "masked-levels-digits"
    (file,) = json.loads((folder / "own_code.json").read_text())
    assert file["path"] == str(mine)
    assert json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])["binding"]["own_code"]


@pytest.mark.slow
def test_an_audit_of_uploads_from_the_command_line(mine, tmp_path):
    done, found = command(tmp_path, "audit", "masked-levels", "--load", "mine.py", "--set", "draws=20000")
    assert done.returncode == 0, done.stderr
    assert found["verdict"] == "pass"
    assert {part["audited"] for part in found["parts"]} >= {"masked-levels"}
    assert all(check["passed"] for check in found["checks"])
    assert found["parts"][0]["score_gap"] == pytest.approx(1, abs=0.01)


@pytest.mark.slow
def test_a_sweep_from_the_command_line_in_two_processes(mine, tmp_path):
    (tmp_path / "sweep.toml").write_text(tomli_w.dumps(SWEEP))
    words = ["sweep", "sweep.toml", "--load", "mine.py", "--jobs", "2", "--out", "out"]
    done, found = command(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert [run["state"] for run in found["runs"]] == ["finished"] * 2
    mine.write_text(mine.read_text() + "# another version\n")
    done, _ = command(tmp_path, *words)
    assert done.returncode == 1
    assert "was run with different custom code" in done.stderr


def test_other_commands_know_it(mine, tmp_path, capsys):
    assert status(["methods", "--load", str(mine), "--json"]) == 0
    names = [record["name"] for record in json.loads(capsys.readouterr().out)]
    assert names[-2:] == ["three-levels", "masked-levels"]
    assert status(["run", "--list", "--load", str(mine)]) == 0
    assert "masked-levels-fashion-mnist" in capsys.readouterr().out.split()
    assert status(["audit", "scheme", "masked-levels", "--load", str(mine), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["passed"] is True
    assert status(["audit", "scheme", "fedpm"]) == 2
    assert "sends Bernoulli samples" in capsys.readouterr().err
    mine.write_text(
        mine.read_text().replace("unbiased = True", "unbiased = True  # not").replace("x.abs() /", ".5 * x.abs() /")
    )
    assert status(["audit", "scheme", "three-levels", "--load", str(mine)]) == 1
    assert "Checks that failed: unbiased." in capsys.readouterr().out


def test_what_one_command_has_loaded_the_next_does_not_know(mine, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert status(["run", "masked-levels-digits", "--load", str(mine), *SMALL, "--out", out]) == 0
    assert VARIABLE not in os.environ
    load_own_code()
    assert not own_code.objects_of_kind("scheme")
    assert status(["run", "masked-levels-digits", "--out", str(tmp_path / "other")]) == 2
    assert "neither a file nor a preset" in capsys.readouterr().err


@pytest.mark.slow
def test_another_version_is_noticed_by_resume_and_by_the_audit(mine, tmp_path, capsys):
    out = str(tmp_path / "run")
    words = ["run", "masked-levels-digits", "--load", str(mine), *SMALL, *PRIVATE, "--out", out]
    assert status(words) == 0
    assert status([*words, "--resume"]) == 0
    assert status(["audit", "run", out]) == 2
    assert f"--load {mine}" in capsys.readouterr().err
    assert status(["audit", "run", out, "--load", str(mine), "--json"]) == 0
    assert own_code_check(capsys)["passed"] is True
    mine.write_text(mine.read_text() + "# another version\n")
    assert status([*words, "--resume"]) == 1
    assert "cannot resume with other code of your own" in capsys.readouterr().err
    assert status(["audit", "run", out, "--load", str(mine), "--json"]) == 0
    assert own_code_check(capsys)["passed"] is None
    (tmp_path / "run" / "own_code.json").write_text("[]")
    assert status(["audit", "run", out, "--load", str(mine), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "own_code.json is not the code in the ledger's header" in str(found["checks"])


NETWORK = """
import torch
import dpfed.models

def one_layer(shape, classes):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, classes))

dpfed.models.register("one-layer", one_layer)
"""


def test_a_run_whose_code_is_not_loaded_is_audited_without_it(tmp_path, capsys):
    file, out = tmp_path / "network.py", str(tmp_path / "run")
    file.write_text(NETWORK)
    own = ["--set", "model.name=one-layer", "--set", "model.hidden="]
    assert status(["run", "dp-fedavg-digits", "--load", str(file), *own, *SMALL, *PRIVATE, "--out", out]) == 0
    capsys.readouterr()
    assert status(["audit", "run", out, "--confidence", "0.999999", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check = next(one for one in found["checks"] if one["name"] == "loaded code is the run's code")
    assert check["passed"] is None
    assert f"is not loaded here. Give --load {file}." in check["detail"]
    assert {one["name"] for one in found["checks"] if not one["passed"]} == {"loaded code is the run's code"}
    assert found["verdict"] == "pass"
    assert "test_accuracy" in found["not_checked"]
    assert f"dpfed audit dp-fedavg --load {file}" in str(found["notes"])


def own_code_check(capsys):
    checks = json.loads(capsys.readouterr().out)["checks"]
    return next(check for check in checks if check["name"] == "loaded code is the run's code")


def test_two_files_with_one_name_are_one_error(mine, tmp_path, capsys):
    shutil.copy(mine, tmp_path / "again.py")
    words = ["run", "masked-levels-digits", "--load", str(mine), "--load", str(tmp_path / "again.py")]
    assert status([*words, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "scheme 'three-levels'" in said
    assert f"is registered twice, first by {mine}, line" in said
    assert not (tmp_path / "run").exists()


def test_an_app_for_flower_carries_the_file(mine, tmp_path, capsys):
    app = tmp_path / "app"
    assert status(["deploy", "masked-levels-digits", "--load", str(mine), "--out", str(app)]) == 0
    copy = app / "dpfed_app" / "own_code_0_mine.py"
    assert copy.read_text() == mine.read_text()
    for side in ("server", "client"):
        line = f'own_code=[Path(__file__).with_name("{copy.name}")])'
        assert line in (app / "dpfed_app" / f"{side}_app.py").read_text()


PACKAGE = """
from dpfed import compress
from reference.own_schemes import Honest

@compress.register("installed-levels")
class Installed(Honest):
    pass
"""


def install(folder, package, *, code=PACKAGE, name="installed-levels"):
    """As pip would leave it."""
    (folder / f"{package}.py").write_text(code)
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[dpfed.schemes]\n{name} = {package}\n")


def test_an_installed_package_makes_its_schemes_known_and_a_run_without_own_code_says_nothing_of_it(
    tmp_path, monkeypatch, capsys
):
    install(tmp_path, "levels_package")
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "run"
    assert status(["run", "fedavg-digits", "--set", "method.name=installed-levels", *SMALL, "--out", str(out)]) == 0
    (file,) = json.loads((out / "own_code.json").read_text())
    assert file["path"] == str(tmp_path / "levels_package.py")
    other = tmp_path / "other"
    assert status(["run", "dp-fedavg-digits", *SMALL, *PRIVATE, "--out", str(other)]) == 0
    assert not (other / "own_code.json").exists()
    assert "own_code" not in json.loads((other / "ledger.jsonl").read_text().splitlines()[0])["binding"]


@pytest.mark.parametrize(
    ("package", "code", "name", "words"),
    [
        ("broken_package", "1 / 0", "any", "broken_package fails: ZeroDivisionError"),
        ("empty_package", "", "any", "registers no scheme of this name"),
    ],
)
def test_a_package_that_fails_is_one_error(tmp_path, monkeypatch, capsys, package, code, name, words):
    install(tmp_path, package, code=code, name=name)
    monkeypatch.syspath_prepend(tmp_path)
    assert status(["run", "fedavg-digits", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "uninstall it" in said
    assert "Traceback" not in said
