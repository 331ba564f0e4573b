"""The folder of a run: its files, written in an order from which a run can be resumed after a crash.

config.toml        the resolved configuration
client_names.json  ids of clients that the data name, in their order; for the operator only (`dpfed diagnose`)
client_ids.json    hashes of the clients' public ids, if lanes or turns are derived from these ids
own_code.json      paths and hashes of the user's files that the run needs, if there are any
ledger.jsonl       releases of a private run; a round is on the disk here before any other file contains it
metrics.jsonl      one line per round, safe to publish with the model
diagnostics.jsonl  cohorts and their members, clip counts, noise, probes of sums, times; no epsilon covers them, so they
                   are for the operator and audits only
canaries.jsonl     scores of each canary, if the run has canaries
checkpoint.safetensors   state from which the next round starts, and the last round's lines of the files above
start.safetensors  what the first round broadcasts after training on public samples (server.start = "public")
population.key     secret key of the fingerprint of the clients, for the operator only
schedule.key       secret key of the participation schedule, in a run with secure randomness
model.safetensors, summary.json, report.html, *.png      written at the end, and model.mask.safetensors if the model is
                   a mask
lock               locked while a process uses the folder

A round is first charged (ledger), then saved (checkpoint), then reported (other files). Each step is on the disk before
the next one begins.
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
from safetensors import SafetensorError
from safetensors.torch import load, save

from accounting.cohorts import NamedClients
from accounting.ledger import regular_file
from accounting.ledger.regular_file import LARGEST_ARRAYS, one_path, require_input, require_locks
from dpfed import replayed
from dpfed.config.own_code import UserCodeFile, code_hash
from dpfed.config.tables import parse_written_config
from dpfed.data.client_ids import ClientIds
from dpfed.errors import RunError
from dpfed.models.flat import Block
from dpfed.records.reading import RoundLine, RoundLineKind, Unavailable, read_lines
from dpfed.records.round import CanaryLine, MetricsLine, RoundRecord, configuration_hash
from dpfed.records.summary import Summary
from dpfed.runs import binding, durable_files
from dpfed.runs.binding import Binding, Checkpoint
from dpfed.runs.resuming import (
    OWN_CODE,
    configuration_differences,
    configuration_of_run,
    is_prolonged,
    read_own_code,
    with_delta_of_run,
)
from dpfed.server.rules import ServerState

_LOCK = "lock"
CLIENT_NAMES = "client_names.json"
_OPERATOR_FILES = ("diagnostics.jsonl", "canaries.jsonl", "checkpoint.safetensors", "schedule.key", CLIENT_NAMES)
"""Files that no epsilon covers: only the operator may read them."""
SCHEDULE_KEY = "schedule.key"
CLIENT_IDS = "client_ids.json"
PUBLIC_START = "start.safetensors"


def read_public_start(folder: Path) -> torch.Tensor:
    """Return the first broadcast of the run in `folder`, after training on public samples. Raises RunError if the file
    cannot be read."""
    path = folder / PUBLIC_START
    try:
        require_input(path, at_most=LARGEST_ARRAYS)
        return load(path.read_bytes())["broadcast"]
    except (OSError, SafetensorError, KeyError) as error:
        raise RunError(
            f"{path}: the model that the run starts from cannot be read ({error}). It is not trained again. "
            "Restore the file from a copy, or start a new run."
        ) from None


class RunFolder:
    """Folder of a run, which one process at a time uses: its paths, and atomic writes.

    Every failure is a RunError that names the file. `unlock`, or any end of the process, unlocks the folder.

    shorter: the configuration with which the run began, if it is being prolonged, else None
    binding: hashes that are written into checkpoints, and compared when a checkpoint is loaded
    """

    def __init__(self, path: Path, config: Mapping[str, object]) -> None:
        self.path = path = one_path(path)
        self.configuration = configuration_hash(config)
        self.binding: Binding | None = None
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
        """Create a folder with config.toml. Raises RunError if the folder exists and is not empty."""
        folder = cls(path, config)
        try:
            folder._made = tuple(one for one in (path, *path.parents) if not one.exists())
            path.mkdir(parents=True, exist_ok=True)
            folder._refuse_content()
            folder._lock_folder()
            folder._refuse_content()
        except OSError as error:
            raise RunError(f"{path}: the run folder cannot be made ({error.strerror}). Use another --out.") from None
        try:
            folder._write_file("config.toml", tomli_w.dumps(dict(config)).encode())
        except RunError:
            folder.discard_new_folder()
            raise
        if (replay := replayed.current_replay()) is not None:
            replay.made_run_folder(path)
        return folder

    @classmethod
    def reopen(cls, path: Path, config: Mapping[str, object]) -> RunFolder:
        """Open the folder of an interrupted run, or of a run that is prolonged.

        Raises RunError if the folder has no run, or if its configuration differs from `config` otherwise than by more
        rounds in `config`. `parse_written_config` has the defaults of settings that an older version did not write.
        """
        before = configuration_of_run(path)
        written = parse_written_config(with_delta_of_run(path, before), source=str(path / "config.toml")).to_dict()
        changed = configuration_differences(written, dict(config))
        if changed and not is_prolonged(written, config):
            raise RunError(
                f"{path}: cannot resume with another configuration: " + "; ".join(changed) + ". Start a new run, "
                "or undo the changes."
            )
        folder = cls(path, before)  # the hash in the run's files is that of the configuration as written
        folder._lock_folder()
        folder.shorter = before if changed else None
        return folder

    def discard_statement(self) -> None:
        """Remove summary and report of a run that continues: their epsilon does not cover its further rounds."""
        for file in (self.path / "summary.json", self.report):
            self._write(lambda one, *_, **__: one.unlink(missing_ok=True), file, b"")

    def prolong(self, rounds: int) -> None:
        """Write the new number of rounds into config.toml."""
        assert self.shorter is not None
        tables = {**self.shorter, "federation": {**self.shorter["federation"], "rounds": rounds}}
        self._write_file("config.toml", tomli_w.dumps(tables).encode())

    def population_key(self, new: Callable[[], bytes]) -> bytes:
        """Return the key of the population's fingerprint.

        The key is new, from `new`, if the run has not begun or population.key is missing. With a new key, the existing
        ledger and checkpoint of the run are refused as those of another run. Raises LedgerError.
        """
        return durable_files.kept_key(
            self.path / "population.key", new, has_begun=lambda: self.ledger.exists() or self._checkpoint.exists()
        )

    def schedule_key(self, new: bytes) -> bytes:
        """Return the key from which the participation schedule is drawn; `new` if the run has not begun.

        Raises RunError if schedule.key of a run that has begun is missing, because a new schedule would differ from the
        charged one. Raises LedgerError if the file cannot be read or written.
        """
        path = self.path / SCHEDULE_KEY
        key = regular_file.read_key(path)
        if key is None and (self.ledger.exists() or self._checkpoint.exists()):
            raise RunError(
                f"{path}: is missing, so the remaining participation schedule is unknown. Restore the file from a copy."
            )
        if key is None:
            regular_file.write_key(path, new)
        return key or new

    def record_client_ids(self, ids: NamedClients | None, *, resume: bool) -> None:
        """Record the client ids that determine lanes or turns. Raises RunError if a resumed run has other ids."""
        content = b"" if ids is None else ids.to_json()
        path = self.path / CLIENT_IDS
        if not resume:
            if content:
                self._write_file(CLIENT_IDS, content)
        elif content != (path.read_bytes() if path.is_file() else b""):
            raise RunError(
                f"{path}: cannot resume with other client ids, because they determine the turns of clients. Use the "
                "original data, or start a new run."
            )

    def record_client_names(self, ids: ClientIds | None) -> None:
        """Record the names of the clients, if the data have some, for the operator's reports."""
        if ids is not None and ids.names is not None:
            self._write_file(CLIENT_NAMES, json.dumps(ids.names).encode() + b"\n")

    def record_own_code(self, files: Sequence[UserCodeFile], *, resume: bool) -> None:
        """Record the user-defined code that the run needs. Raises RunError if a resumed run has other code."""
        if not resume:
            if files:
                content = json.dumps([one.to_dict() for one in files], indent=2) + "\n"
                self._write_file(OWN_CODE, content.encode())
            return
        before = read_own_code(self.path)
        if code_hash(before) != code_hash(files):
            began, now = (", ".join(map(_file_description, each)) or "none" for each in (before, files))
            raise RunError(
                f"{self.path}: cannot resume with other code of your own: the run began with {began}; now it is {now}. "
                "Load the original files (--load), or start a new run."
            )

    def unlock(self) -> None:
        """Release the lock on the run folder."""
        self._lock.release()

    def discard_new_folder(self) -> None:
        """Unlock the folder, and remove it if this run created it and was refused before it charged or saved
        anything."""
        keys = ("population.key", SCHEDULE_KEY, CLIENT_IDS, CLIENT_NAMES, PUBLIC_START)
        names = ("config.toml", self.ledger.name, self._metrics.name, *keys, _LOCK)
        if self._made is not None:
            with suppress(OSError):  # a file that cannot be removed must not hide the reason of the refusal
                for name in names:
                    (self.path / name).unlink(missing_ok=True)
                for folder in self._made:
                    folder.rmdir()
        self.unlock()

    def _refuse_content(self) -> None:
        """Raise RunError for a folder with content, unless a run ended there before it wrote its configuration."""
        if any(one.name != _LOCK and one.suffix != ".part" for one in self.path.iterdir()):
            self.unlock()
            raise RunError(f"{self.path}: is not empty. Use --resume to continue the run in it, or another --out.")

    def _lock_folder(self) -> None:
        try:
            require_locks(self.path / _LOCK)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"{self.path}: another process is running in this folder. Wait for its end, end it, or use another "
                "--out."
            ) from None
        except OSError as error:
            raise RunError(f"{self.path / _LOCK}: cannot be locked ({error.strerror}). Use another --out.") from None

    def append_round(self, line: MetricsLine, record: RoundRecord) -> None:
        """Append the lines of one round to diagnostics.jsonl, canaries.jsonl and metrics.jsonl, in this order."""
        self._append_lines(self._diagnostics, record)
        if record.canaries:
            self._append_lines(self._canaries, *record.canaries)
        self._append_lines(self._metrics, line)

    def metrics_lines(self, last: int) -> list[MetricsLine]:
        """Return the lines of metrics.jsonl up to round `last`.

        Lines of later rounds are removed from metrics.jsonl, diagnostics.jsonl and canaries.jsonl; of the other files
        also those of round `last`, if its line in metrics.jsonl, which is written after them, is missing.
        """
        found = self._drop_lines_after(last, self._metrics, MetricsLine)
        complete = last if found and found[-1].round == last else last - 1
        self._drop_lines_after(complete, self._diagnostics, RoundRecord)
        self._drop_lines_after(complete, self._canaries, CanaryLine)
        return found

    def _drop_lines_after(self, last: int, file: Path, kind: type[RoundLineKind]) -> list[RoundLineKind]:
        """Return the lines of a file up to round `last`; remove later lines, and an incomplete line, from the file."""
        if not file.exists():
            return []
        try:
            kept = [one for one in read_lines(file, kind, running=True) if one.round <= last]
        except Unavailable as error:
            raise RunError(f"{file}: cannot be read ({error}). Restore the file from a copy.") from None
        self._write_file(file.name, b"".join(_json_line(one) for one in kept))
        return kept

    def save_checkpoint(self, saved: Checkpoint) -> None:
        """Save a checkpoint atomically: a crash leaves either the previous checkpoint or this one."""
        assert self.binding is not None
        self._write_file(self._checkpoint.name, binding.checkpoint_bytes(saved, binding=self.binding))

    def public_start(self, new: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the first broadcast after training on public samples.

        It is made by `new` and saved before round 1, and never made again. Raises RunError if a run that has begun
        lacks the file.
        """
        path = self.path / PUBLIC_START
        if not path.exists() and not (self.ledger.exists() or self._checkpoint.exists()):
            self._write_file(PUBLIC_START, save({"broadcast": new().cpu()}))
        return read_public_start(self.path)

    def load_checkpoint(self, start: ServerState) -> Checkpoint:
        """Return the last checkpoint; if none is saved, a checkpoint with the state `start`."""
        if not self._checkpoint.exists():
            return Checkpoint(state=start)
        assert self.binding is not None
        return binding.read_checkpoint(self._checkpoint, binding=self.binding, start=start)

    def save_model(
        self, layout: Sequence[Block], weights: torch.Tensor, fixed_weights: Mapping[str, torch.Tensor]
    ) -> str:
        """Save the final weights and the fixed weights by parameter name; return the SHA-256 of the file.

        The file's header lists the names of fixed weights.
        """
        flat = weights.cpu()
        tensors = {b.name: flat[b.start : b.stop].reshape(b.shape).clone() for b in layout}
        fixed = {name: tensor.cpu().contiguous() for name, tensor in fixed_weights.items()}
        about = {"fixed": json.dumps(sorted(fixed))} if fixed else None
        return self._write_hashed("model.safetensors", save(tensors | fixed, metadata=about))

    def save_mask(self, content: bytes) -> str:
        """Save the final mask and the seed of the frozen weights, which determine the network; return the file's
        SHA-256."""
        return self._write_hashed("model.mask.safetensors", content)

    def save_summary(self, summary: Summary) -> None:
        """Write summary.json."""
        self._write_file("summary.json", (json.dumps(summary.to_dict(), indent=2, allow_nan=False) + "\n").encode())

    def _write_hashed(self, name: str, content: bytes) -> str:
        self._write_file(name, content)
        return hashlib.sha256(content).hexdigest()

    def _append_lines(self, file: Path, *records: RoundLine) -> None:
        self._write(durable_files.append, file, b"".join(_json_line(one) for one in records))

    def _write_file(self, name: str, content: bytes) -> None:
        self._write(durable_files.put, self.path / name, content)

    def _write(self, how: Callable[..., None], file: Path, content: bytes) -> None:
        try:
            how(file, content, mode=0o600 if file.name in _OPERATOR_FILES else 0o666)
        except OSError as error:
            raise RunError(
                f"{file}: cannot be written ({error.strerror}). Files written before are complete; free space or fix "
                "the folder, then --resume."
            ) from None


def _file_description(one: UserCodeFile) -> str:
    return f"{one.path} ({one.sha256[:12] or 'typed in a session'})"


def free_folder(parent: Path, name: str) -> Path:
    """Return parent/name, or the first of name-2, name-3, ... that does not exist."""
    candidates = (parent / (name if n == 1 else f"{name}-{n}") for n in range(1, 1_000_000))
    return next(path for path in candidates if not path.exists())


def _json_line(record: RoundLine) -> bytes:
    return (json.dumps(record.to_dict(), allow_nan=False) + "\n").encode()
