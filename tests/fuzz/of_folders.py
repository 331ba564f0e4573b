"""Parsers of what a report takes from folders of runs and sweeps."""

from __future__ import annotations

import json
from pathlib import Path

from fuzz.of_runs import EXPERIMENT
from fuzz.parser import Parser, folder, written

from dpfed.report.collection import collect_runs, write_results
from dpfed.report.statistics import groups_of, readings_of
from dpfed.report.statistics import write_table as write_statistics
from dpfed.sweep.experiment_file import read_experiment, read_published

_SUMMARY = {
    "method": "dp-fedavg", "dataset": "digits", "seed": 1, "rounds": 2, "seconds": 1.5, "epsilon": 1.0, "delta": 1e-5,
    "noise_multiplier": 1.1, "clients": 60, "cohort": 12, "unit": "client", "sampling": "poisson", "test_accuracy": 0.5,
    "adjacency": "add-remove", "accountant": "pld", "noise": "gaussian", "noise_placement": "server", "device": "cpu",
    "not_protected": ["nothing"], "lower_bound": None,
}  # fmt: skip
_METRICS = [{"round": 1, "test_accuracy": None, "epsilon": 0.5, "uplink_megabytes": 0.1}]
_METRICS += [{"round": 2, "test_accuracy": 0.5, "epsilon": 1.0, "uplink_megabytes": 0.2}]
_DIAGNOSTICS = b'{"round": 1, "cohort": 12, "participants": 12, "seconds": 0.5}\n'
_SWEEP = {
    "title": "t", "paper": "p", "profile": "smoke", "note": "", "quantities": ["epsilon", "rounds"], "x": "run.seed",
    "rows": ["a"], "runs": [{"row": "a", "at": {"run.seed": "1"}, "folder": "a/run"}], "command": "dpfed sweep",
    "published": [{"row": "a", "x": None, "quantity": "epsilon", "value": 1.0, "where": "table 1"}],
    "versions": {"dpfed": "0.1"}, "commit": None, "tuned": [{"row": "a"}],
}  # fmt: skip


def _run_folder(**changes: bytes) -> Path:
    contents = {
        "config": b"[run]\nseed = 1\n",
        "summary": json.dumps(_SUMMARY).encode(),
        "metrics": b"".join(json.dumps(line).encode() + b"\n" for line in _METRICS),
        "diagnostics": _DIAGNOSTICS,
    } | changes
    names = {"config": "config.toml", "summary": "summary.json"}
    for name, content in contents.items():
        written(content, f"a/run/{names.get(name, f'{name}.jsonl')}")
    return folder() / "a"


def _summary(content: bytes) -> None:
    _reported(_run_folder(summary=content))


def _metrics(content: bytes) -> None:
    _reported(_run_folder(metrics=content))


def _diagnostics(content: bytes) -> None:
    _reported(_run_folder(diagnostics=content))


def _reported(folder: Path) -> None:
    """All that a page takes from a run, but for the drawing."""
    found = collect_runs([folder / "run"])
    write_statistics(found, folder / "table.csv")
    write_results(found.runs, folder / "results.csv")
    for group in groups_of(found):
        readings_of(group)


def _sweep(content: bytes) -> None:
    _run_folder()
    collect_runs([written(content, "sweep.json").parent])


def _published(content: bytes) -> None:
    read_published(written(content, "published.csv"), read_experiment(written(EXPERIMENT, "experiment.toml")))


PARSERS: dict[str, Parser] = {
    "summary": Parser(seeds=lambda: [json.dumps(_SUMMARY).encode()], parse=_summary),
    "metrics": Parser(seeds=lambda: [b"".join(json.dumps(line).encode() + b"\n" for line in _METRICS)], parse=_metrics),
    "diagnostics": Parser(seeds=lambda: [_DIAGNOSTICS], parse=_diagnostics),
    "sweep": Parser(seeds=lambda: [json.dumps(_SWEEP).encode()], parse=_sweep),
    "published": Parser(
        seeds=lambda: [b"row,x,quantity,value,where\na,1,epsilon,1.5,table 1\nb,,test_accuracy,80,\n"], parse=_published
    ),
}
