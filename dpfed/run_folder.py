"""The folder of a run: what it wrote, in an order that survives a crash.

config.toml        the resolved configuration
ledger.jsonl       what was released (private runs); synced before anything of a round is visible elsewhere
metrics.jsonl      one line a round, safe to publish with the model
diagnostics.jsonl  cohort sizes, clip counts, noise, times: covered by no epsilon, for the operator and audits only
canaries.jsonl     what was seen of each canary, if there were any
checkpoint.safetensors   the state that the next round starts from
model.safetensors, summary.json, report.html, *.png      at the end; model.mask.safetensors where a mask is the model
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from dpfed.errors import RunError
from dpfed.models.flat import FlatModel
from dpfed.server.state import ServerState

_FORMAT = "dpfed-checkpoint-3"


class RunFolder:
    """Paths and atomic writes; every failure is a RunError that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "ledger.jsonl"
        self.report = path / "report.html"
        self._metrics = path / "metrics.jsonl"
        self._diagnostics = path / "diagnostics.jsonl"
        self._canaries = path / "canaries.jsonl"
        self._checkpoint = path / "checkpoint.safetensors"

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """A new folder holding the configuration; RunError if something is already there."""
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise RunError(f"{path}: is not empty. Use --resume to go on with the run in it, or another --out.")
        except OSError as error:
            raise RunError(f"{path}: the run folder cannot be made ({error.strerror}).") from None
        folder._write("config.toml", tomli_w.dumps(dict(config)).encode())
        return folder

    @classmethod
    def reopen(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """The folder of an interrupted run; RunError if it holds none, or one with another configuration."""
        folder = cls(path)
        try:
            before = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{path}: holds no run to resume ({error}).") from None
        differences = list(_differences(before, dict(config)))
        if differences:
            raise RunError(
                f"{path}: cannot resume with another configuration: " + "; ".join(differences) + ". Start a new run, "
                "or take the differences back."
            )
        return folder

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl."""
        self._append(self._metrics, record)

    def append_diagnostics(self, record: Mapping[str, Any]) -> None:
        """One line of diagnostics.jsonl."""
        self._append(self._diagnostics, record)

    def append_canary(self, record: Mapping[str, Any]) -> None:
        """One line of canaries.jsonl."""
        self._append(self._canaries, record)

    def metrics(self, before_round: int | None = None) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; with `before_round`, later ones are dropped from the file (a resumed run)."""
        for file in (self._metrics, self._diagnostics, self._canaries):
            if before_round is not None and file.exists():
                kept = [record for record in _lines(file) if record["round"] <= before_round]
                self._write(file.name, b"".join(_line(record) for record in kept))
        return list(_lines(self._metrics)) if self._metrics.exists() else []

    def save_checkpoint(self, state: ServerState, clients: Mapping[str, torch.Tensor]) -> None:
        """The state, and what clients remember, atomically: a crash leaves the old one or the new one."""
        tensors = {"broadcast": state.broadcast.cpu()}
        tensors |= {f"memory.{name}": kept.cpu() for name, kept in state.memory.items()}
        tensors |= {f"clients.{name}": kept.cpu() for name, kept in clients.items()}
        facts = {"format": _FORMAT, "round": str(state.round), "clip_norm": repr(state.clip_norm)}
        self._write(self._checkpoint.name, save(tensors, metadata=facts))

    def load_checkpoint(self, start: ServerState) -> tuple[ServerState, Mapping[str, torch.Tensor]]:
        """The saved state and what clients remember, or `start` where none was saved yet."""
        if not self._checkpoint.exists():
            return start, {}
        try:
            with safe_open(self._checkpoint, framework="pt", device=str(start.broadcast.device)) as file:
                facts = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            if facts.get("format") != _FORMAT or tensors["broadcast"].shape != start.broadcast.shape:
                raise ValueError("not a checkpoint of this run")
            state = ServerState(
                round=int(facts["round"]),
                broadcast=tensors["broadcast"],
                clip_norm=float(facts["clip_norm"]),
                memory=_under("memory.", tensors),
            )
            return state, _under("clients.", tensors)
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise RunError(f"{self._checkpoint}: the checkpoint cannot be read ({error}). Start a new run.") from None

    def save_model(self, model: FlatModel, weights: torch.Tensor) -> None:
        """The final weights by parameter name."""
        flat = weights.cpu()
        tensors = {b.name: flat[b.start : b.stop].reshape(b.shape).clone() for b in model.layout}
        self._write("model.safetensors", save(tensors))

    def save_mask(self, content: bytes) -> None:
        """The final mask: with the seed in it, the whole network."""
        self._write("model.mask.safetensors", content)

    def save_summary(self, summary: Mapping[str, Any]) -> None:
        """summary.json."""
        self._write("summary.json", (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode())

    def _append(self, file: Path, record: Mapping[str, Any]) -> None:
        try:
            with open(file, "ab") as stream:
                stream.write(_line(record))
        except OSError as error:
            raise RunError(f"{file}: cannot be written ({error.strerror}). Free space, then --resume.") from None

    def _write(self, name: str, content: bytes) -> None:
        target, part = self.path / name, self.path / f"{name}.part"
        try:
            with open(part, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            part.replace(target)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise RunError(f"{target}: cannot be written ({error.strerror}). Free space, then --resume.") from None


def _under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def free_folder(parent: Path, name: str) -> Path:
    """parent/name, or the first of name-2, name-3, ... that does not exist."""
    candidates = (parent / (name if n == 1 else f"{name}-{n}") for n in range(1, 1_000_000))
    return next(path for path in candidates if not path.exists())


def _line(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, allow_nan=False) + "\n").encode()


def _lines(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file; a last line that a crash cut off is dropped."""
    whole = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in whole]


def _differences(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[str]:
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new, name = before.get(key), after.get(key), f"{path}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += _differences(old, new, f"{name}.")
        elif old != new:
            found.append(f"{name} was {old!r}, is {new!r}")
    return found
