"""Hashes of a run's configuration, clients, initial model and code, by which files of another run are refused.

The checkpoint of a run is the state from which it continues, in one safetensors file (no pickle).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from accounting.ledger import regular_file
from accounting.ledger.project import ProjectLedger
from accounting.ledger.regular_file import LARGEST_ARRAYS, require_input
from dpfed.config.own_code import code_hash
from dpfed.data.population import fingerprint
from dpfed.errors import RunError
from dpfed.records.reading import Unavailable, json_object, validated_record
from dpfed.records.round import CheckpointReport
from dpfed.runs.experiment import Experiment
from dpfed.server.rules import ServerState, frozen_network_of

FORMAT = "dpfed-run-2"
"""Version of the random streams and steps of a run; it changes whenever dpfed would continue a run differently."""


@dataclass(frozen=True, kw_only=True)
class Binding:
    """Hashes that bind the files of a run together.

    configuration: hash of config.toml as it was written
    population:    fingerprint of the clients (`dpfed.data.population.fingerprint`)
    start:         hash of the first broadcast, and of the frozen network if there is one
    own_code:      hash of the user's files; empty, and not recorded, if the run needs none
    public_start:  hash of the broadcast after training on public samples (server.start = "public"); empty, and not
        recorded, without it
    """

    configuration: str
    population: str
    start: str
    own_code: str = ""
    public_start: str = ""

    def to_header(self) -> dict[str, str]:
        """Return the entries of the ledger's header, without the population, which has its own field there."""
        return {"format": FORMAT, "configuration": self.configuration, "start": self.start} | self.optional

    @property
    def optional(self) -> dict[str, str]:
        """Hashes of parts that a run may lack, by their names; only those that it has."""
        return {name: getattr(self, name) for name in ("own_code", "public_start") if getattr(self, name)}


@dataclass(frozen=True, kw_only=True)
class LedgerHeads:
    """Hashes of the last lines of the run's and the project's ledger when a checkpoint was written; empty without
    one."""

    ledger: str = ""
    project: str = ""


PARTS = {
    "format": "the version of dpfed that began it",
    "configuration": "its configuration",
    "start": "the model that it starts from (also another version of torch or kind of processor makes another one)",
    "own_code": "the code of your own that it needs (--load)",
    "public_start": "the model that training on public samples gave before round 1 (start.safetensors)",
    "population": "its clients (the data, who holds them by data.partition and its seed and keys, or population.key)",
}
"""Description of the hashed part of a run for messages, by the name of the hash."""


def hash_of_tensors(tensors: Iterable[Tensor]) -> str:
    """Return the hash of the tensors with which the first round starts."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(json.dumps([str(tensor.dtype), list(tensor.shape)]).encode() + b"\n")
        found.update(_bytes_of(tensor))
    return found.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def binding_of(experiment: Experiment, configuration: str, key: bytes, public_start: Tensor | None = None) -> Binding:
    """Return the hashes of a run.

    configuration: hash of its config.toml; key: secret key of the fingerprint of its clients
    public_start:  broadcast after training on public samples, if the run starts from it
    """
    return Binding(
        configuration=configuration,
        population=population_fingerprint(experiment, key),
        start=start_hash_of_run(experiment),
        own_code=code_hash(experiment.own_code),
        public_start="" if public_start is None else hash_of_tensors([public_start]),
    )


def new_population_key(experiment: Experiment, project: ProjectLedger | None) -> bytes:
    """Return the key of a new run's population fingerprint: the project's key, or a new key.

    With simulated randomness a new key is derived from the seed, so that a repeated run has an equal key.
    """
    if project is not None:
        return project.key()
    simulated = experiment.method.randomness.name == "simulated"
    return experiment.seeds.generator("population.key").bytes(32) if simulated else regular_file.new_key()


def population_fingerprint(experiment: Experiment, key: bytes) -> str:
    """Return the fingerprint of the run's clients, keyed by the secret `key`."""
    return fingerprint(
        key,
        experiment.dataset,
        experiment.method.clients.partition,
        unit=experiment.privacy_target.unit if experiment.privacy_target is not None else "none",
        on_nodes=experiment.config.data.partition == "nodes",
    )


def start_hash_of_run(experiment: Experiment) -> str:
    """Return the hash of the initial model and of all constant tensors of the run."""
    frozen = frozen_network_of(experiment.readout)
    constants = [] if frozen is None else [frozen.constants]
    return hash_of_tensors(
        [experiment.start.broadcast, *constants, *experiment.model.fixed.values(), *experiment.model.constants.values()]
    )


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
    names = ("run", "population", "start", "own_code", "public_start")
    other = [name for name in names if facts.get(name) != now.get(name)]
    if other:
        words = " and ".join(PARTS["configuration" if name == "run" else name] for name in other)
        raise RunError(
            f"{path}: is the checkpoint of another run, or this run has changed since it began in {words}. Restore "
            "what the run began with, or start a new run."
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
    for name, tensor in sorted(tensors.items()):
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(_bytes_of(tensor))
    return found.hexdigest()


def _tensors_under(prefix: str, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): one.to(device) for name, one in tensors.items() if name.startswith(prefix)}
