"""Last checkpoint and model of a finished run, which are validated when they are read, since they are not trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dpfed.records.reading import Unavailable

_MEMORY = "memory."


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedState:
    """Content of checkpoint.safetensors.

    round: number of finished rounds. clip_norm, broadcast: clip norm and model at the start of the next round.
    header: header of the file. memory: memory of the server's rule.
    """

    round: int
    clip_norm: float
    broadcast: Tensor
    header: Mapping[str, str]
    memory: Mapping[str, Tensor] = field(default_factory=dict)


def read_checkpoint(path: Path) -> SavedState:
    """Return the content of a checkpoint file. Errors: Unavailable if it is missing, damaged, or lacks a value."""
    _require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            broadcast = file.get_tensor("broadcast")
            memory = {
                name.removeprefix(_MEMORY): file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118 (not a dict)
                if name.startswith(_MEMORY)
            }
        done, clip_norm = int(facts["round"]), float(facts["clip_norm"])
        saved = SavedState(round=done, clip_norm=clip_norm, broadcast=broadcast, header=facts, memory=memory)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise Unavailable(f"{path.name}: cannot be read ({str(error)[:200]}).") from None
    alike = all(one.shape == broadcast.shape and one.dtype == broadcast.dtype for one in memory.values())
    if saved.round < 0 or broadcast.dim() != 1 or not broadcast.is_floating_point() or not alike:
        raise Unavailable(f"{path.name}: is not a checkpoint of this package.")
    return saved


def _require_file(path: Path) -> None:
    """Raise Unavailable unless the path is a regular file, since reading a pipe could wait forever."""
    if not path.is_file():
        raise Unavailable(f"{path.name}: is missing, or not a regular file.")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    _require_file(path)
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unavailable(f"{path.name}: cannot be read ({error.strerror}).") from None


def sorted_values_of(path: Path) -> NDArray[np.float32]:
    """Return all numbers of a safetensors file, sorted, without fixed tensors, which no round releases."""
    _require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            fixed = json.loads((file.metadata() or {}).get("fixed", "[]"))
            names = [name for name in file.keys() if name not in fixed]  # noqa: SIM118 (not a dict)
            tensors = [file.get_tensor(name).float().reshape(-1).numpy() for name in names]
    except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise Unavailable(f"{path.name}: cannot be read ({str(error)[:200]}).") from None
    return np.sort(np.concatenate(tensors)) if tensors else np.zeros(0, dtype=np.float32)
