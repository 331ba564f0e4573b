"""Hashes of a run's configuration, clients, initial model and code, by which files of another run are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from accounting.ledger import regular_file
from accounting.ledger.project import ProjectLedger
from dpfed.config.own_code import code_hash
from dpfed.data.population import fingerprint
from dpfed.runs.experiment import Experiment
from dpfed.server.rules import frozen_network_of

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
        values = tensor.detach().cpu().contiguous()
        found.update(json.dumps([str(values.dtype), list(values.shape)]).encode() + b"\n")
        found.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


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
