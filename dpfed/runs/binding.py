"""Hashes of a run's configuration, clients, start and code in its files: files of another run are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from accounting.ledger import population_key
from accounting.ledger.project import ProjectLedger
from dpfed.config.own_code import code_hash
from dpfed.data.population import fingerprint
from dpfed.runs.experiment import Experiment
from dpfed.server.readout import network_of

FORMAT = "dpfed-run-2"
"""Version of the streams and steps of a run: a version of dpfed that would continue a run differently has another
one.
"""


@dataclass(frozen=True, kw_only=True)
class Binding:
    """Hashes that bind a run's files together. configuration: of config.toml as it was written. population:
    `dpfed.data.population.fingerprint`. start: of the broadcast, and of the frozen network if there is one. own_code:
    of the user's files; empty, and not recorded, if a run needs none."""

    configuration: str
    population: str
    start: str
    own_code: str = ""

    def to_header(self) -> dict[str, str]:
        """Return the entries for the ledger's header, beside its population."""
        own = {"own_code": self.own_code} if self.own_code else {}
        return {"format": FORMAT, "configuration": self.configuration, "start": self.start} | own


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The last hashes of the run's ledger and of its project's when a checkpoint was written; empty without one."""

    ledger: str = ""
    project: str = ""


PARTS = {
    "format": "the version of dpfed that began it",
    "configuration": "its configuration",
    "start": "the model that it starts from (also another version of torch or kind of processor makes another one)",
    "own_code": "the code of your own that it needs (--load)",
    "population": "its clients (the data, who holds them by data.partition and its seed and keys, or population.key)",
}
"""Description of each hash for messages."""


def configuration_hash(tables: Mapping[str, Any]) -> str:
    """Return the hash of config.toml without federation.rounds.

    The ledger has the length of a run, and a run can be prolonged (`dpfed.runs.resuming`).
    """
    federation = {key: value for key, value in tables.get("federation", {}).items() if key != "rounds"}
    tables = {**tables, "federation": federation}
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def start_hash(tensors: Iterable[Tensor]) -> str:
    """Return the hash of the tensors that rounds start from."""
    found = hashlib.sha256()
    for tensor in tensors:
        values = tensor.detach().cpu().contiguous()
        found.update(json.dumps([str(values.dtype), list(values.shape)]).encode() + b"\n")
        found.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def binding_of(experiment: Experiment, configuration: str, key: bytes) -> Binding:
    """Return the hashes of a run whose config.toml has this hash, under the key of its clients' fingerprint."""
    return Binding(
        configuration=configuration,
        population=population_of(experiment, key),
        start=start_of(experiment),
        own_code=code_hash(experiment.own_code),
    )


def new_key(experiment: Experiment, project: ProjectLedger | None) -> bytes:
    """Return the key of a new run: its project's key, or a new one.

    A key from the seed is, like noise from the seed, not for release, and is equal whenever the run is repeated.
    """
    if project is not None:
        return project.key()
    simulated = experiment.method.randomness.name == "simulated"
    return experiment.seeds.generator("population.key").bytes(32) if simulated else population_key.new_key()


def population_of(experiment: Experiment, key: bytes) -> str:
    """Return the fingerprint of the run's clients under this key."""
    return fingerprint(
        key,
        experiment.dataset,
        experiment.method.clients.partition,
        unit=experiment.privacy_target.unit if experiment.privacy_target is not None else "none",
        on_nodes=experiment.config.data.partition == "nodes",
    )


def start_of(experiment: Experiment) -> str:
    """Return the hash of the model and the constants that the run starts from."""
    frozen = network_of(experiment.readout)
    constants = [] if frozen is None else [frozen.constants]
    return start_hash(
        [experiment.start.broadcast, *constants, *experiment.model.fixed.values(), *experiment.model.constants.values()]
    )
