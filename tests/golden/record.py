"""Record what every setting of the golden net gives, and compare it with the answers that are stored.

    make golden [WORDS="WORD ..."]     say what differs, and store it (only settings whose name has a WORD)

The net has three layers (docs of `given`, `trained`, `answers`). The first two are equal on every processor; the
tolerance of the third is ten times the largest distance over the sets of instructions below, stored with each number.
A setting is recorded anew by naming it: `make golden WORDS=dropouts`. The commit that stores it
names the setting and the reason of its change; an answer that nobody meant to change is an error to be found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from golden.answers import ANSWERS, DEPENDS, MOST, differences, merged, store, stored
from golden.given import loop_with_given_updates, run_with_given_updates
from golden.settings import LOOPS, NOT_ON_THE_GRID, SETTINGS, TRAINED, UPLOAD_AUDITS
from golden.trained import run_with_training, upload_audit
from golden.wide import Wide

from accounting.errors import AccountingError
from dpfed.errors import DpfedError

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "golden.record"]
NAMES = [*SETTINGS, *LOOPS, *TRAINED, *UPLOAD_AUDITS]
OTHER_PROCESSORS: dict[str, tuple[dict[str, str], int]] = {
    "this": ({}, 1),
    "two threads": ({}, 2),
    "avx2": ({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}, 1),
    "default": ({"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}, 1),
    "numpy without AVX512": ({"NPY_DISABLE_CPU_FEATURES": "X86_V4 X86_V3"}, 1),
    "wide": ({}, 1),
}
"""Variables of the environment, and threads, under which answers are compared; "wide": `golden.wide`."""


def environment_of(tree: Path) -> dict[str, str]:
    """Return the environment in which COMMAND runs the golden net of a tree."""
    path = os.pathsep.join(map(str, (tree, tree / "tests")))
    return os.environ | {"PYTHONPATH": path, "DPFED_CACHE_DIR": "", "OMP_NUM_THREADS": "1"}


def chosen_names(words: list[str]) -> list[str]:
    """Return the names of settings that have one of the words; without words, all names."""
    return [name for name in NAMES if not words or any(word in name for word in words)]


def answer_of(name: str, folder: Path, *, audited: bool = True) -> dict[str, Any]:
    """Return the answer of the setting `name`, as JSON has it; a refusal's answer is its error's class and text.

    audited: False without the verdict of `dpfed audit run`, which takes half of the time
    """
    try:
        if name in SETTINGS:
            found = run_with_given_updates(name, folder, audited=audited)
        elif name in LOOPS:
            found = loop_with_given_updates(name, folder, audited=audited)
        elif name in TRAINED:
            found = run_with_training(name, folder)
        else:
            found = upload_audit(name)
    except (DpfedError, AccountingError) as error:
        found = {"error": type(error).__name__, "text": str(error).replace(str(folder), "FOLDER")}
    return json.loads(json.dumps(found))


def answers_of(names: list[str], file: Path, threads: int, wide: bool, audited: bool) -> None:
    """Write the answers of these settings, one line each."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as home, file.open("w") as out:
        for number, name in enumerate(names):
            with Wide() if wide else nullcontext():
                answer = answer_of(name, Path(home) / str(number), audited=audited)
            out.write(json.dumps([name, answer]) + "\n")


def record(names: list[str]) -> None:
    """Compare and store the answers of these settings, under all sets of instructions."""
    with tempfile.TemporaryDirectory() as home, ThreadPoolExecutor(len(OTHER_PROCESSORS)) as at_once:

        def answers_under(processor: str) -> dict[str, dict[str, Any]]:
            out, (variables, threads) = Path(home) / processor, OTHER_PROCESSORS[processor]
            command = [*COMMAND, "--to", str(out), str(threads), processor, *names]
            subprocess.run(command, env=environment_of(ROOT) | variables, check=True)
            return dict(json.loads(line) for line in out.read_text().splitlines())

        found = dict(zip(OTHER_PROCESSORS, at_once.map(answers_under, OTHER_PROCESSORS), strict=True))
    answers = stored()
    for name in names:
        new = merged([each[name] for each in found.values()])
        said = list(differences(answers[name], found["this"][name])) if name in answers else ["new"]
        said += [f"unequal among processors: {line}" for line in unequal(name, new, found)]
        print(*(f"{name}: {line}\n" for line in said), sep="", end="", flush=True)
        answers[name] = new
    store(answers, NAMES)
    print(f"{ANSWERS}: {len(names)} of {len(NAMES)} settings")


def unequal(name: str, new: dict[str, Any], found: dict[str, dict[str, Any]]) -> list[str]:
    """Return what is wrong with an answer: parts that ought to be exact and are not, and too large tolerances."""
    wrong = [
        f"{processor}: {line}"
        for processor, answers in found.items()
        for line in differences({key: new[key] for key in new if key in answers[name]}, answers[name])
    ]
    for part in ("rounds of given updates", "training"):
        for key, one in new.get(part, {}).items():
            within = 0.0 if one == DEPENDS else one.get("within", 0.0)
            if within > MOST:
                wrong.append(f"{part}.{key}: a tolerance of {within:.2g}; make the setting smaller")
            if part != "training" and within and name not in NOT_ON_THE_GRID:
                wrong.append(f"{part}.{key}: not exact, within {within:.2g}")
    return wrong


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--to"]:
        _, to, count, this, *chosen = words
        answers_of(chosen, Path(to), int(count), wide=this == "wide", audited=this == "this")
    elif words[:1] == ["--answers"]:  # for `beside`, which calls this option of other commits' nets
        answers_of(chosen_names(words[2:]), Path(words[1]), 1, wide=False, audited=True)
    else:
        record(chosen_names(words))
