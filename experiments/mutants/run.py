"""Kill matrix: 100 mutants of accounting/ and dpfed/, each shown to the quick tests that reach it.

    python experiments/mutants/run.py --out /tmp/mutants                      # what it takes: README.md
    python experiments/mutants/run.py --out /tmp/again --beside /tmp/mutants  # after a change of tests: no kill lost?

Three steps, each of which goes on where it stopped: the mutants are drawn (`mutants.py`; or are those of the folder
that is named by --beside); the quick tests run once without a change, which shows what each takes and reaches
(`reaching.py`); every mutant meets the tests that passed and reach it, in a fork, until the first failure
(`killing.py`). A kill counts where the same test passes in such a fork without the change.

The last lines say how many were killed, and with --beside which kills were lost: then the exit status is 1.

mutmut and cosmic-ray are not used: mutmut changes neither decorated functions nor properties, and first runs the whole
suite under its tracer; cosmic-ray starts an interpreter for every mutant, which takes three seconds of imports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import mutants

HERE = Path(__file__).parent


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mutants", type=int, default=100)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--seconds", type=float, default=40.0, help="of tests for a mutant")
    options.add_argument("--beside", type=Path, help="an earlier --out: the same mutants, its killers first")
    options.add_argument("--out", type=Path, default=Path("/tmp/mutants"))
    options.add_argument("tests", nargs="*", default=["tests"])
    given = options.parse_args()
    files = {"MUTANTS": "drawn.json", "REACHED": "reached", "KILLED": "killed.jsonl"}
    files = {name: given.out / file for name, file in files.items()}
    files["REACHED"].mkdir(parents=True, exist_ok=True)
    if not files["MUTANTS"].exists():
        found = given.beside and (given.beside / "drawn.json").read_text()
        found = found or json.dumps([asdict(one) for one in mutants.drawn(given.mutants, given.seed)])
        files["MUTANTS"].write_text(found)
    path = os.pathsep.join([str(mutants.ROOT), str(HERE)])
    settings = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "SECONDS": str(given.seconds)}
    settings |= {name: str(file) for name, file in files.items()}
    if given.beside:
        settings["FIRST"] = str(given.beside / "killed.jsonl")
    quick = [sys.executable, "-m", "pytest", "-m", "not slow", *given.tests]
    if not (given.out / "reached.txt").exists():
        done = subprocess.run(
            [*quick, "-p", "reaching"], cwd=mutants.ROOT, env=settings, capture_output=True, text=True
        )
        (given.out / "reached.txt").write_text(done.stdout)
    subprocess.run([*quick, "-p", "killing", "-n", "0"], cwd=mutants.ROOT, env=settings, check=True)
    return summary(files["KILLED"], given.beside and given.beside / "killed.jsonl")


def outcomes(path: Path) -> dict[int, str]:
    """Return what became of each mutant."""
    return {line["number"]: line["outcome"] for line in map(json.loads, path.read_text().splitlines())}


def summary(now: Path, before: Path | None) -> int:
    """Print the counts and the lost kills; return how many were lost, at most 1."""
    found, old = outcomes(now), outcomes(before) if before else {}
    print(*(f"{count} {outcome}" for outcome, count in Counter(found.values()).most_common()), sep=", ")
    lost = [n for n, outcome in found.items() if outcome not in ("killed", "gone") and old.get(n) == "killed"]
    if old:
        print(f"{len(lost)} kills lost", *lost)
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
