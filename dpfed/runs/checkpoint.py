"""Checkpoint of a run: the state from which it continues, in one safetensors file (no pickle)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from accounting.ledger.regular_file import LARGEST_ARRAYS, require_input
from dpfed.errors import RunError
from dpfed.records.reading import Unavailable, json_object, validated_record
from dpfed.records.round import CheckpointReport
from dpfed.runs.binding import PARTS, Binding, LedgerHeads
from dpfed.server.rules import ServerState

_FORMAT = "dpfed-checkpoint-5"


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """State of a run after a round.

    A checkpoint is saved atomically, so that a round is either finished or not.

    state:  state of the server and of the stages
    report: lines that the round adds to other files; resuming writes those that a crash prevented; None before round 1
    heads:  hashes of the last lines of the ledgers with the run's charges
    """

    state: ServerState
    report: CheckpointReport | None = None
    heads: LedgerHeads = field(default_factory=LedgerHeads)


def checkpoint_bytes(checkpoint: Checkpoint, *, binding: Binding) -> bytes:
    """Return the bytes of the checkpoint file of the run with this binding."""
    state = checkpoint.state
    tensors = {"broadcast": state.broadcast.cpu()}
    tensors |= {f"memory.{name}": kept.cpu() for name, kept in state.memory.items()}
    tensors |= {f"clients.{name}": kept.cpu() for name, kept in state.stages.items()}
    facts = {
        "format": _FORMAT,
        **_binding_metadata(binding),
        "ledger_head": checkpoint.heads.ledger,
        "project_head": checkpoint.heads.project,
        "round": str(state.round),
        "clip_norm": repr(state.clip_norm),
        "told": json.dumps({} if checkpoint.report is None else checkpoint.report.to_dict(), allow_nan=False),
    }
    return save(tensors, metadata=facts | {"digest": _content_digest(facts, tensors)})


def read_checkpoint(path: Path, *, binding: Binding, start: ServerState) -> Checkpoint:
    """Return the checkpoint in this file, on the device of `start`.

    Raises RunError if the file is damaged or edited, or belongs to another run.
    """
    try:
        require_input(path, at_most=LARGEST_ARRAYS)
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        _check_digest(facts, tensors)
        _check_binding(path, facts, binding)
        if tensors["broadcast"].shape != start.broadcast.shape:
            raise ValueError("it is not a checkpoint of this run")
        device, told = start.broadcast.device, json_object(facts["told"], "its report")
        state = ServerState(
            round=int(facts["round"]),
            broadcast=tensors["broadcast"].to(device),
            clip_norm=float(facts["clip_norm"]),
            memory=_tensors_under("memory.", tensors, device),
            stages=_tensors_under("clients.", tensors, device),
        )
        return Checkpoint(
            state=state,
            report=validated_record(CheckpointReport, told, "its report") if told else None,
            heads=LedgerHeads(ledger=facts["ledger_head"], project=facts["project_head"]),
        )
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, Unavailable) as error:
        raise RunError(
            f"{path}: the checkpoint cannot be read ({error}). Restore the file from a copy, or start a new run."
        ) from None


def _binding_metadata(binding: Binding) -> dict[str, str]:
    always = {"run": binding.configuration, "population": binding.population, "start": binding.start}
    return always | binding.optional


def _check_binding(path: Path, facts: Mapping[str, str], binding: Binding) -> None:
    """Raise RunError if the checkpoint belongs to another run."""
    now = _binding_metadata(binding)
    other = [
        name for name in ("run", "population", "start", "own_code", "public_start") if facts.get(name) != now.get(name)
    ]
    if other:
        words = " and ".join(PARTS["configuration" if name == "run" else name] for name in other)
        raise RunError(
            f"{path}: is the checkpoint of another run, or this run has changed since it began in {words}. Restore "
            "what "
            "the run began with, or start a new run."
        )


def _check_digest(facts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
    if facts.get("format") != _FORMAT:
        raise ValueError(
            f"its format is {facts.get('format')!r}, this version reads {_FORMAT!r}: finish the run with the version "
            "of dpfed that began it"
        )
    kept = {name: value for name, value in facts.items() if name != "digest"}
    if facts.get("digest") != _content_digest(kept, tensors):
        raise ValueError("its digest does not match: it is damaged or was edited")


def _content_digest(facts: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return a digest that detects damage and accidental edits, but not forgery."""
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _tensors_under(prefix: str, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): one.to(device) for name, one in tensors.items() if name.startswith(prefix)}
