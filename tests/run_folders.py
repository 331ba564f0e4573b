"""Folders of finished runs, made by hand: what reports read."""

import json

from dpfed.records.summary import Summary

SUMMARY = {
    "method": "fedavg", "dataset": "digits", "model": "mlp", "parameters": 100, "clients": 6000, "cohort": 100,
    "sampling": "fixed", "rounds": 180, "test_accuracy": 0.8, "best_test_accuracy": 0.85, "epsilon": None,
    "lower_bound": None, "delta": None, "unit": "none", "adjacency": None, "accountant": None,
    "noise_multiplier": None, "clip_norm": None, "noise_placement": None, "noise": None, "not_protected": [],
    "uplink_bits_per_parameter": 32.0, "uplink_bytes_per_client_round": 400, "uplink_megabytes_total": 7.2,
    "seconds": 10.0, "device": "cpu", "seed": 1, "stopped_by": "rounds",
}  # fmt: skip
PRIVATE = {
    "method": "dp-fedavg", "epsilon": 3.4887, "lower_bound": 3.2142, "delta": 6000**-1.1, "unit": "client",
    "adjacency": "replace-one", "accountant": "pld", "noise_multiplier": 1.4, "clip_norm": 1.0,
    "noise_placement": "server", "noise": "gaussian", "not_protected": ["the weather"],
}  # fmt: skip


def summary(**changes):
    """The record of a run: SUMMARY with these keys."""
    return Summary.read(SUMMARY | changes)


def run_folder(path, *, accuracies=(0.5, 0.8), config="", **changes):
    path.mkdir(parents=True)
    summary = SUMMARY | {"test_accuracy": accuracies[-1], "best_test_accuracy": max(accuracies)} | changes
    (path / "summary.json").write_text(json.dumps(summary))
    (path / "config.toml").write_text(f"{config}\n[run]\nseed = {summary['seed']}\n")
    lines = [
        {"round": 90 * (i + 1), "test_accuracy": accuracy, "epsilon": None, "uplink_megabytes": 3.6 * (i + 1)}
        for i, accuracy in enumerate(accuracies)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
