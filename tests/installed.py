"""Build the wheel and the source archive, and test both where no source of this repository can be imported.

    python tests/installed.py [--pythons python3.11 python3.12 ...] [--lowest] [--folder FOLDER] [TESTS ...]

In FOLDER (default: dist) each interpreter gets an environment with the wheel, and the first one another with the source
archive; `--lowest` adds one with the oldest direct dependencies (uv). An environment that is already there gets the new
archive alone. Tests run on a copy of tests/ alone; then `dpfed run` trains the demo, and `dpfed verify` recomputes it.
Prints one row each; exit status 1 if one of them fails. Set DPFED_REPOSITORY for a build that is published.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCH = "torch==2.13.0"
TESTS = [
    "tests/accounting/gaussian",
    "tests/accounting/ledger",
    "tests/dpfed/stages",
    "tests/dpfed/cli/test_verify.py",
    "tests/dpfed/cli/test_second_verifier.py",
]


def built(folder: Path) -> tuple[Path, Path]:
    """Return the wheel and the source archive, built anew."""
    for old in [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]:
        old.unlink()
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True, capture_output=True
    )
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def environment(place: Path, python: str, archive: Path, *, lowest: bool = False) -> Path:
    """Return the interpreter of an environment with this archive, made if it is not there."""
    found = place / "bin" / "python"
    install = [found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if found.exists():
        subprocess.run([*install, "--force-reinstall", "--no-deps", archive], check=True)
    else:
        subprocess.run([python, "-m", "venv", place], check=True)
        if lowest:
            subprocess.run([*install, "uv==0.8.17"], check=True)
            uv = [place / "bin" / "uv", "pip", "install", "--quiet", "--python", found, "--resolution=lowest-direct"]
            wanted = ["-r", ROOT / "pyproject.toml", "--extra", "train", "--extra", "dev"]
            subprocess.run([*uv, TORCH, *wanted], check=True)
            subprocess.run([*install, "--no-deps", archive], check=True)
        else:
            subprocess.run([*install, TORCH], check=True)
            subprocess.run([*install, "--constraint", ROOT / "constraints.txt", f"{archive}[train,dev]"], check=True)
    return found


def row(name: str, python: Path, tests: list[str]) -> tuple[str, bool]:
    """Return a row of the table, and True if everything passed."""
    began = time.monotonic()
    kept = {key: one for key, one in os.environ.items() if key not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    with tempfile.TemporaryDirectory() as work:
        for one in ("tests", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / one).is_dir() else shutil.copy
            copy(ROOT / one, Path(work) / one)

        def done(*command: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run([python, "-m", *command], cwd=work, env=kept, capture_output=True, text=True)

        asked = "import dpfed, accounting, sys; print(dpfed.__file__, accounting.__file__, sys.version.split()[0])"
        where = subprocess.run([python, "-c", asked], cwd=work, env=kept, capture_output=True, text=True)
        installed = where.stdout.count("site-packages") == 2
        tested = done("pytest", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider", *tests)
        passed = re.search(r"(\d+ failed, )?\d+ passed.*", tested.stdout)
        run = done("dpfed", "run", "fed-smp-randk-digits", "--out", "run")
        checked = done("dpfed", "verify", "run", "--json")
        summary = Path(work, "run", "summary.json")
        stated = json.loads(summary.read_text()) if summary.exists() else {}
    good = installed and not (tested.returncode or run.returncode or checked.returncode)
    if not good:
        print(where.stderr, tested.stdout[-3000:], run.stderr[-1000:], checked.stdout[-500:], file=sys.stderr)
    version = where.stdout.split()[-1] if where.stdout else "-"
    return (
        f"| {name} | {version} | {passed[0] if passed else 'failed'} | {stated.get('test_accuracy')} at epsilon "
        f"{stated.get('epsilon')} | {'verified' if checked.returncode == 0 else 'refused'} | "
        f"{time.monotonic() - began:.0f} |"
    ), good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--pythons", nargs="+", default=[sys.executable])
    parser.add_argument("--lowest", action="store_true")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    wheel, source = built(folder)
    wanted = [(f"wheel-{Path(one).name}-{k}", one, wheel, False) for k, one in enumerate(given.pythons)]
    wanted.append(("source", given.pythons[0], source, False))
    wanted += [("lowest", given.pythons[0], wheel, True)] if given.lowest else []
    print("| what | Python | tests | demo | dpfed verify | seconds |\n|---|---|---|---|---|--:|", flush=True)
    good = []
    for name, python, archive, lowest in wanted:
        text, passed = row(name, environment(folder / name, python, archive, lowest=lowest), given.tests)
        print(text, flush=True)
        good.append(passed)
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
