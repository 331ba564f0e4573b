"""One version in one place; links of the README on PyPI; pinned actions; constraints of what is declared."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import dpfed

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_is_written_once():
    assert "version" in PROJECT["dynamic"]
    assert version("dpfed") == dpfed.__version__
    assert f"\nversion: {dpfed.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_links_of_the_readme_are_absolute_on_pypi(monkeypatch):
    pytest.importorskip("hatchling")
    monkeypatch.syspath_prepend(str(ROOT))
    sys.modules.pop("hatch_build", None)
    import hatch_build

    monkeypatch.setenv("DPFED_REPOSITORY", "https://example.org/a/dpfed/")
    metadata: dict = {}
    hatch_build.CustomMetadataHook(str(ROOT), {}).update(metadata)
    links = re.findall(r"\]\(([^)\s]+)\)", metadata["readme"]["text"])
    assert links
    assert all(link.startswith(("https://", "#")) for link in links)
    assert f"https://example.org/a/dpfed/blob/v{dpfed.__version__}/docs/statement.md" in links
    assert metadata["urls"]["Source"] == "https://example.org/a/dpfed"


def test_actions_are_pinned_by_hash():
    uses = [
        line
        for file in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in file.read_text().splitlines()
        if "uses:" in line
    ]
    assert uses
    assert not [line for line in uses if not re.search(r"@[0-9a-f]{40} # v[\d.]+$", line)]


def test_every_python_that_is_tested_is_a_classifier():
    tested = re.search(r'python-version: (\["3\.11".*\])', (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert tested is not None
    named = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    assert named == re.findall(r"3\.\d+", tested[1])


def test_what_is_declared_has_a_tested_version():
    def plain(name):
        return re.sub(r"[-_.]+", "-", name).lower()

    pinned = {plain(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    elsewhere = ("flower", "mlflow", "tensorboard", "wandb")  # in constraints-flower.txt, or never installed by tests
    extras = {name: found for name, found in PROJECT["optional-dependencies"].items() if name not in elsewhere}
    declared = [*PROJECT["dependencies"], *(one for found in extras.values() for one in found)]
    names = {plain(re.split(r"[\[<>=]", one)[0]) for one in declared} - {"dpfed"}
    assert sorted(names - pinned) == []


def test_a_budget_needs_the_core_alone():
    """Everything that only extras install is hidden; then the commands of the core, their pages of help, and a plan."""
    lines = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

HIDDEN = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Hidden())
from dpfed.cli import status

plan = ["--clients", "600", "--cohort", "60", "--rounds", "10", "--noise-multiplier", "2"]
assert status(["budget", *plan]) == 0
assert status(["budget", *plan, "--json"]) == 0
assert status(["--help"]) == 0
assert status(["methods"]) == 0
assert status(["budget", *plan, "--second-opinion"]) == 2
"""
    hidden = (
        "cloudpickle,constriction,cryptography,dp_accounting,h5py,joblib,matplotlib,mpmath,opacus,pandas,PIL,polars,"
        "pyarrow,pydantic,safetensors,sklearn,tomli_w,torch"
    )
    done = subprocess.run([sys.executable, "-c", lines, hidden], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "pip install 'dpfed[train]'" in done.stderr


def test_tests_without_time_are_skipped_and_counted(tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/conftest.py", tmp_path)
    for name in "ab":
        (tmp_path / f"test_{name}.py").write_text("def test(): pass\n")
    run = [sys.executable, "-m", "pytest", "-v", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    all_run, none = (
        subprocess.run([*run, "--minutes", *more], capture_output=True, text=True, check=True).stdout
        for more in (["9", "--order", "x"], ["0", "--order", "v"])
    )
    assert "2 passed" in all_run
    assert "2 skipped" in none
    assert "2 tests were not run: the time given by --minutes is over" in none
    assert (all_run.index("test_a.py") < all_run.index("test_b.py")) != (
        none.index("test_a.py") < none.index("test_b.py")
    )
