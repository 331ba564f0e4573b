"""Small runs and single rounds, for tests."""

from dataclasses import replace

import pytest
import torch
from refusals import refused

from dpfed.config.tables import override, parse
from dpfed.errors import RunInterrupted
from dpfed.methods import catalogue
from dpfed.round import run_round
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.runs.folder import RunFolder
from dpfed.sources import TrainedClients
from dpfed.stages.chain import Stages

DIGITS = {
    "data": {"name": "digits"},
    "model": {"name": "mlp", "hidden": [8]},
    "federation": {"clients": 60, "cohort": 12, "rounds": 3},
    "local": {"learning_rate": 0.3, "epochs": 1, "batch_size": 10},
    "method": {"name": "dp-fedavg"},
    "privacy": {"noise_multiplier": 2.0, "clip_norm": 1.0},
}
"""A private run on all digits."""
SMALL = DIGITS | {
    "data": {"name": "digits", "train_samples": 240, "test_samples": 50},
    "model": {"name": "mlp", "hidden": [4]},
    "federation": {"clients": 24, "cohort": 8, "rounds": 2},
    "privacy": {"noise_multiplier": 1.0, "clip_norm": 1.0, "accountant": "rdp"},
}
"""A private run of a second or less."""


def tables(start=SMALL, **changed):
    """Tables of a run, some of them changed in part; None: without this table, or this key of it."""
    kept = {name: table for name, table in (start | changed).items() if table is not None}
    whole = {name: start.get(name, {}) | table for name, table in kept.items()}
    return {name: {key: one for key, one in table.items() if one is not None} for name, table in whole.items()}


def configured(*settings, start=SMALL, **changed):
    """`configured("table.key=value", ..., table={"key": value}, other=None)` -> Config."""
    return parse(override(tables(start, **changed), settings), source="test")


def preset(name, *settings):
    """`preset("qsgd-digits", "table.key=value", ...)` -> Config."""
    return parse(override(catalogue.preset_tables(name), settings), source="test")


class Book:
    """Remembers what was charged."""

    def __init__(self):
        self.releases = []

    def record(self, release):
        self.releases.append(release)


class Killed(BaseException):
    """Stands for kill -9."""


def killed_after(number):
    """`on_round` of a run that ends after this round."""

    def on_round(record):
        if record["round"] == number:
            raise Killed

    return on_round


def killed_run(config, folder, *, after):
    """Run the configuration until it is killed at the end of this round."""
    refused(Killed, "", lambda: federation.run(build(config), folder, on_round=killed_after(after)))


def stopped_run(experiment, folder, *, after, **more):
    """Run the experiment and stop it after this number of rounds."""
    calls, words = iter([False] * after), f"interrupted after round {after} of .*; all finished rounds are saved"
    refused(RunInterrupted, words, federation.run, experiment, folder, stop=lambda: next(calls, True), **more)
    assert not (folder / "summary.json").exists()


def killed_before_checkpoint(experiment, folder, number, **more):
    """Run the experiment until it is killed between the charge of this round and its checkpoint."""
    real = RunFolder.save_checkpoint

    def save(self, saved):
        if saved.state.round == number:
            raise Killed
        real(self, saved)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunFolder, "save_checkpoint", save)
        refused(Killed, "", federation.run, experiment, folder, **more)


def with_updates(experiment, updates):
    """The experiment's method with local training replaced by given updates [clients, d]."""

    class Updates:
        labels = experiment.method.clients.labels

        def train(self, weights, clients, *, number, seeds, failed=None):
            return updates[clients].clone()

        def release(self, clients, *, number):
            return None

    return replace(experiment.method, clients=Updates())


def random_updates(experiment, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(experiment.config.federation.clients, experiment.model.size, generator=generator)


def watched_round(state, method, *, seeds, ledger, cohort=None, observer=None):
    """Return the state after a round of simulated clients, and what the operator keeps of it."""
    done = run_round(
        state, method, TrainedClients(seeds=seeds), seeds=seeds, ledger=ledger, cohort=cohort, observer=observer
    )
    return done.state, done.record


def only_state(state, method, **more):
    return watched_round(state, method, **more)[0]


def with_before(stages, kind, stage):
    """The chain with one more stage, before the stage of this kind."""
    return Stages(*(each for one in stages for each in ((stage, one) if isinstance(one, kind) else (one,))))


def with_after(stages, kind, stage):
    """The chain with one more stage, after the stage of this kind."""
    return Stages(*(each for one in stages for each in ((one, stage) if isinstance(one, kind) else (one,))))
