"""Two rounds of real training: the third layer of the golden net, as numbers with a tolerance."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from golden.answers import item
from golden.given import configuration, lines
from golden.settings import TRAINED, UPLOAD_AUDITS
from golden.streams import recorded_streams

from dpfed.audit.round.method_setting import audit_upload
from dpfed.clients.training import LocalTraining
from dpfed.errors import RunInterrupted
from dpfed.runs import loop
from dpfed.runs.experiment import build

ROUNDS = {"federation.rounds": 2, "run.evaluate_every": 2}


def run_with_training(name: str, folder: Path) -> dict[str, Any]:
    """Return moves of the model, diagnostics and metrics of two rounds."""
    setting, more = TRAINED[name]
    config = configuration(setting, ROUNDS | more)
    with recorded_streams() as streams:
        experiment = build(config)
        if "resumed" in name:
            done: list[int] = []
            with suppress(RunInterrupted):
                loop.run(experiment, folder, on_round=lambda _: done.append(1), stop=lambda: len(done) == 1)
            experiment = build(config)
        states, updates = [], {}
        train = LocalTraining.train

        def trained(self: Any, broadcast: Any, clients: Any, *, number: int, **more: Any) -> Any:
            rows = train(self, broadcast, clients, number=number, **more)
            updates.update({(number, int(one)): row.clone() for one, row in zip(clients, rows, strict=True)})
            return rows

        before = loop.run_round

        def run_round(*given: Any, **more: Any) -> Any:
            result = before(*given, **more)
            states.append(result.state.broadcast.clone())
            return result

        with patch.object(loop, "run_round", run_round), patch.object(LocalTraining, "train", trained):
            loop.run(experiment, folder, resume="resumed" in name)
    start = experiment.start.broadcast
    drawn = {key: value for key, value in streams.summary().items() if " local." in key or " public." in key}
    training = {"moves": item(one - start for one in states)}
    training["updates"] = item(updates[place] for place in sorted(updates))
    for file in ("diagnostics", "metrics"):
        for key, numbers in _numbers(lines(folder / f"{file}.jsonl")).items():
            training[f"{file} {key}"] = item([np.array(numbers)])
    return {"streams of training": drawn, "training": training}


def upload_audit(name: str) -> dict[str, Any]:
    """Return the verdict of an audit of a method's upload, and the gaps of its pairs."""
    method, settings = UPLOAD_AUDITS[name]
    words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    found = audit_upload(method, settings=words, draws=20_000, seed=3).to_dict()
    return {
        **{key: found[key] for key in ("claimed_epsilon", "delta", "verdict", "adjacency", "mechanism")},
        "pairs": [pair["pair"] for pair in found["pairs"]],
        "checks": {check["name"]: check["passed"] for check in found["checks"]},
        "training": {"gaps": item([[pair["gap"] for pair in found["pairs"]]])},
    }


def _numbers(records: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the numbers of all lines by the path of their key, without times and digests."""
    found: dict[str, list[float]] = {}

    def gather(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, one in value.items():
                gather(f"{path}.{key}".lstrip("."), one)
        elif isinstance(value, int | float) and not isinstance(value, bool) and not path.endswith("seconds"):
            found.setdefault(path, []).append(float(value))

    for record in records:
        gather("", record)
    return found
