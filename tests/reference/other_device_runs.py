"""What the test of another device asks of its process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dpfed.config.tables import override, parse
from dpfed.methods import catalogue
from dpfed.runs import experiment
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from reference.other_device import other_device


def both(preset: str, settings: list[str], here: Path, there: Path) -> tuple[float, float]:
    """Test accuracy of the same run on the CPU and on the other device."""
    config = parse(override(catalogue.preset_tables(preset), settings), source=preset)

    def run(device: torch.device, folder: Path) -> float:
        experiment.device_of = lambda *_: device
        made = build(config)
        assert made.start.broadcast.device == device
        return float(federation.run(made, folder).summary["test_accuracy"])

    on_cpu = run(torch.device("cpu"), here)
    with other_device() as device:
        return on_cpu, run(device, there)


def complaints() -> dict[str, Any]:
    """What the other device says to operations that CUDA takes, and to those that it does not."""
    said: dict[str, Any] = {}
    with other_device() as device:
        near, far = torch.ones(3), torch.ones(3, device=device)
        said["a number"] = (far + torch.tensor(1.0)).cpu().tolist()
        said["an index"] = far[torch.tensor([0, 2])].device.type
        for name, mixed in (
            ("a sum", lambda: far + near),
            ("index_copy", lambda: far.index_copy_(0, torch.tensor([1]), far[:1])),
        ):
            try:
                mixed()
            except RuntimeError as error:
                said[name] = str(error)
        try:
            far.numpy()
        except (RuntimeError, TypeError):
            said["numpy"] = "refused"
    return said
