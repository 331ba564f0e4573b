"""The folder of a run: its files, in an order of writing that survives a crash.

config.toml        the resolved configuration
client_ids.json    hashes of the clients' public ids, if their lanes or turns follow from these
own_code.json      paths and hashes of the user's files that the run needs, if any
ledger.jsonl       releases (private runs); on the disk before any other file has the round
metrics.jsonl      one line a round, safe to publish with the model
diagnostics.jsonl  cohorts and their members, clip counts, noise, probes of sums, times: covered by no epsilon, for the
                   operator and audits only
canaries.jsonl     scores of each canary, if there were any
checkpoint.safetensors   the state that the next round starts from, and its round's lines in the files above
population.key     the secret key of the fingerprint of the clients, for the operator only
schedule.key       the secret key of the participation schedule in a run with secure randomness
model.safetensors, summary.json, report.html, *.png      at the end; model.mask.safetensors where a mask is the model
lock               held while a process runs here

A round is charged (ledger), done (checkpoint), reported (the rest), each on the disk before the next begins.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tomli_w
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save

from accounting.ledger import population_key
from dpfed.config.own_code import UserCodeFile, code_hash
from dpfed.config.tables import parse_written_config
from dpfed.data.client_ids import ClientIds
from dpfed.errors import RunError
from dpfed.models.flat import FlatModel
from dpfed.records.metrics import MetricsLine
from dpfed.records.reading import Line, OneLine, Unavailable, lines_of
from dpfed.records.round import CanaryLine, RoundRecord
from dpfed.records.summary import Summary
from dpfed.runs import checkpoint, durable_files
from dpfed.runs.binding import Binding, configuration_hash
from dpfed.runs.checkpoint import Checkpoint
from dpfed.runs.resuming import OWN_CODE, configuration_in, differences, own_code_in, prolonged, with_delta_of
from dpfed.server.state import ServerState

_LOCK = "lock"
SCHEDULE_KEY = "schedule.key"
CLIENT_IDS = "client_ids.json"


class RunFolder:
    """Paths and atomic writes, for one process at a time; every failure is a RunError that names the file.

    `shorter`: the configuration that the run began with, if it is prolonged. `release` unlocks the folder; so does the
    end of this process, for any reason.
    """

    def __init__(self, path: Path, config: Mapping[str, object]) -> None:
        self.path = path
        self.configuration = configuration_hash(config)
        self._binding: Binding | None = None
        self.shorter: Mapping[str, Any] | None = None
        self._made: tuple[Path, ...] | None = None
        self._lock = FileLock(path / _LOCK, thread_local=False)
        self.ledger = path / "ledger.jsonl"
        self.report = path / "report.html"
        self._metrics = path / "metrics.jsonl"
        self._diagnostics = path / "diagnostics.jsonl"
        self._canaries = path / "canaries.jsonl"
        self._checkpoint = path / "checkpoint.safetensors"

    @classmethod
    def create(cls, path: Path, config: Mapping[str, object]) -> RunFolder:
        """Create a folder with the configuration; RunError if it is not empty."""
        folder = cls(path, config)
        try:
            folder._made = tuple(one for one in (path, *path.parents) if not one.exists())
            path.mkdir(parents=True, exist_ok=True)
            folder._refuse_content()
            folder._hold()
            folder._refuse_content()
        except OSError as error:
            raise RunError(f"{path}: the run folder cannot be made ({error.strerror}).") from None
        try:
            folder._write("config.toml", tomli_w.dumps(dict(config)).encode())
        except RunError:
            folder.discard()
            raise
        return folder

    @classmethod
    def reopen(cls, path: Path, config: Mapping[str, object]) -> RunFolder:
        """Open the folder of an interrupted run, or of a run to prolong.

        RunError if there is none, or its configuration differs.

        For settings that the run's version did not have yet, see `parse_written`.
        """
        before = configuration_in(path)
        written = parse_written_config(with_delta_of(path, before), source=str(path / "config.toml")).to_dict()
        changed = differences(written, dict(config))
        if changed and not prolonged(written, config):
            raise RunError(
                f"{path}: cannot resume with another configuration: " + "; ".join(changed) + ". Start a new run, "
                "or take the differences back."
            )
        folder = cls(path, before)  # the run's files have the hash of the configuration as it was written
        folder._hold()
        folder.shorter = before if changed else None
        return folder

    def prolong(self, rounds: int) -> None:
        """Write the new number of rounds into config.toml."""
        assert self.shorter is not None
        tables = {**self.shorter, "federation": {**self.shorter["federation"], "rounds": rounds}}
        self._write("config.toml", tomli_w.dumps(tables).encode())

    def key(self, new: Callable[[], bytes]) -> bytes:
        """Return the key of the population's fingerprint; a new key for a run that has not begun, or if the file is
        gone.

        With a new key no ledger and no checkpoint is this run's any more. LedgerError.
        """
        path = self.path / "population.key"
        key = population_key.read(path)
        if key is None or not (self.ledger.exists() or self._checkpoint.exists()):
            key = new()
            population_key.write(path, key)
        return key

    def schedule_key(self, new: bytes) -> bytes:
        """Return the key that the schedule is drawn from; `new` for a run that has not begun.

        RunError if the file is gone: a schedule drawn anew would differ from the ledger's. LedgerError.
        """
        path = self.path / SCHEDULE_KEY
        key = population_key.read(path)
        if key is None and (self.ledger.exists() or self._checkpoint.exists()):
            raise RunError(
                f"{path}: is gone, and with it the remaining participation schedule. Restore it from a copy."
            )
        if key is None:
            population_key.write(path, new)
        return key or new

    def client_ids(self, ids: ClientIds | None, *, resume: bool) -> None:
        """Record the ids that fix the order of turns; RunError if a continued run has other ids."""
        content = b"" if ids is None else ids.to_json()
        path = self.path / CLIENT_IDS
        if not resume:
            if content:
                self._write(CLIENT_IDS, content)
        elif content != (path.read_bytes() if path.is_file() else b""):
            raise RunError(
                f"{path}: cannot resume with other ids of clients, from which their turns follow. Give the data as "
                "they were, or start a new run."
            )

    def own_code(self, files: Sequence[UserCodeFile], *, resume: bool) -> None:
        """Record the user's code that a new run needs; RunError if a continued run has other code."""
        if not resume:
            if files:
                content = json.dumps([one.to_dict() for one in files], indent=2) + "\n"
                self._write(OWN_CODE, content.encode())
            return
        before = own_code_in(self.path)
        if code_hash(before) != code_hash(files):
            began, now = (", ".join(map(_named, each)) or "none" for each in (before, files))
            raise RunError(
                f"{self.path}: cannot resume with other code of your own: it began with {began}; there is {now} now. "
                "Load the files as they were (--load), or start a new run."
            )

    def bind(self, binding: Binding) -> None:
        """Set the hashes that checkpoints are written with, and must have been written with."""
        self._binding = binding

    def release(self) -> None:
        """Release the lock on the run folder."""
        self._lock.release()

    def discard(self) -> None:
        """Unlock the folder; remove a new folder of a run that was refused before it charged or saved anything."""
        names = ("config.toml", self.ledger.name, self._metrics.name, "population.key", SCHEDULE_KEY, CLIENT_IDS, _LOCK)
        if self._made is not None:
            with suppress(
                OSError
            ):  # files that cannot be removed are kept; the reason of the refusal is reported in any case
                for name in names:
                    (self.path / name).unlink(missing_ok=True)
                for folder in self._made:
                    folder.rmdir()
        self.release()

    def _refuse_content(self) -> None:
        """Refuse a folder with content, except that of a run that ended before it had a configuration."""
        if any(one.name != _LOCK and one.suffix != ".part" for one in self.path.iterdir()):
            self.release()
            raise RunError(f"{self.path}: is not empty. Use --resume to go on with the run in it, or another --out.")

    def _hold(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"{self.path}: another process is running in this folder. Wait for its end, end it, or use another "
                "--out."
            ) from None
        except OSError as error:
            raise RunError(f"{self.path / _LOCK}: cannot be locked ({error.strerror}). Use another --out.") from None

    def append(self, line: MetricsLine, record: RoundRecord) -> None:
        """Append the lines of a round to diagnostics.jsonl, canaries.jsonl and metrics.jsonl, in this order."""
        self._append(self._diagnostics, record)
        if record.canaries:
            self._append(self._canaries, *record.canaries)
        self._append(self._metrics, line)

    def metrics(self, before_round: int) -> list[MetricsLine]:
        """Return the lines of metrics.jsonl up to that round; later lines are removed from this file and those
        beside it.
        """
        self._drop_after(before_round, self._diagnostics, RoundRecord)
        self._drop_after(before_round, self._canaries, CanaryLine)
        return self._drop_after(before_round, self._metrics, MetricsLine)

    def _drop_after(self, last: int, file: Path, kind: type[OneLine]) -> list[OneLine]:
        """Remove lines of later rounds than `last`, and a line that a crash cut off, from a file; return the other
        lines.
        """
        if not file.exists():
            return []
        try:
            kept = [one for one in lines_of(file, kind, running=True) if one.round <= last]
        except Unavailable as error:
            raise RunError(f"{file}: cannot be read ({error}). Restore the file from a copy.") from None
        self._write(file.name, b"".join(_line(one) for one in kept))
        return kept

    def save_checkpoint(self, saved: Checkpoint) -> None:
        """Save a checkpoint atomically: a crash leaves the old one or this one."""
        assert self._binding is not None
        self._write(self._checkpoint.name, checkpoint.to_bytes(saved, binding=self._binding))

    def load_checkpoint(self, start: ServerState) -> Checkpoint:
        """Return the last checkpoint, or one of `start` if there is none."""
        if not self._checkpoint.exists():
            return Checkpoint(state=start)
        assert self._binding is not None
        return checkpoint.read(self._checkpoint, binding=self._binding, start=start)

    def save_model(self, model: FlatModel, weights: torch.Tensor) -> str:
        """Save the final weights by parameter name, and the fixed ones, which the header names; return the SHA-256
        of the file.
        """
        flat = weights.cpu()
        tensors = {b.name: flat[b.start : b.stop].reshape(b.shape).clone() for b in model.layout}
        fixed = {name: tensor.cpu().contiguous() for name, tensor in model.fixed.items()}
        about = {"fixed": json.dumps(sorted(fixed))} if fixed else None
        return self._hashed("model.safetensors", save(tensors | fixed, metadata=about))

    def save_mask(self, content: bytes) -> str:
        """Save the final mask with its seed, which give the whole network; return the SHA-256 of the file."""
        return self._hashed("model.mask.safetensors", content)

    def save_summary(self, summary: Summary) -> None:
        """Write summary.json."""
        self._write("summary.json", (json.dumps(summary.to_dict(), indent=2, allow_nan=False) + "\n").encode())

    def _hashed(self, name: str, content: bytes) -> str:
        self._write(name, content)
        return hashlib.sha256(content).hexdigest()

    def _append(self, file: Path, *records: Line) -> None:
        try:
            durable_files.append(file, b"".join(_line(record) for record in records))
        except OSError as error:
            raise _not_written(file, error) from None

    def _write(self, name: str, content: bytes) -> None:
        try:
            durable_files.put(self.path / name, content)
        except OSError as error:
            raise _not_written(self.path / name, error) from None


def _named(one: UserCodeFile) -> str:
    return f"{one.path} ({one.sha256[:12] or 'typed in a session'})"


def _not_written(file: Path, error: OSError) -> RunError:
    return RunError(
        f"{file}: cannot be written ({error.strerror}). Files written before are complete; free space or fix the "
        "folder, then --resume."
    )


def free_folder(parent: Path, name: str) -> Path:
    """Return parent/name, or the first of name-2, name-3, ... that does not exist."""
    candidates = (parent / (name if n == 1 else f"{name}-{n}") for n in range(1, 1_000_000))
    return next(path for path in candidates if not path.exists())


def _line(record: Line) -> bytes:
    return (json.dumps(record.to_dict(), allow_nan=False) + "\n").encode()
