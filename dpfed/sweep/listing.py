"""What sweep.json says of a plan, for reports and for whoever repeats it."""

from __future__ import annotations

import platform
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from dpfed import __version__
from dpfed.run.sweep_folder import Listed, Sweep
from dpfed.sweep.plan import PlannedSweep


def listing(plan: PlannedSweep, tuned: Sequence[Mapping[str, Any]]) -> Sweep:
    """The whole grid of the profile, also where --only has run a part of it."""
    file = plan.experiment
    return Sweep(
        title=file.title,
        paper=file.paper,
        profile=plan.profile,
        note=plan.note,
        quantities=tuple(file.quantities),
        x=file.x,
        rows=tuple(dict.fromkeys(cell.row for cell in plan.whole.cells)),
        runs=tuple(Listed(row=cell.row, at=dict(cell.at), folder=cell.folder) for cell in plan.whole.cells),
        published=plan.published,
        command=_command(plan),
        versions={
            "dpfed": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        commit=_commit(plan.file.parent),
        tuned=tuple(tuned),
    )


def _command(plan: PlannedSweep) -> str:
    words = ["dpfed", "sweep", str(plan.file), "--out", str(plan.folder)]
    words += ["--profile", plan.profile] if plan.profile else []
    for setting in plan.settings:
        words += ["--set", setting]
    return shlex.join(words)


def _commit(folder: Path) -> str | None:
    """The git commit that the experiment's file is in; None where there is none."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
