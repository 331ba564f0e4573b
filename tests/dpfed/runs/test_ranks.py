"""Two processes on one run, started by torchrun over loopback: the same cohorts, noise and ledger as one process."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from dpfed.aggregation import ranks
from dpfed.aggregation.messages import ProtocolStep
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError
from dpfed.methods import catalogue
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.server.rules import ServerState

COMMON = (
    "model.hidden=[8]", "federation.clients=60", "federation.cohort=15", "federation.rounds=3",
    "privacy.noise_multiplier=1.0", "local.epochs=1",
)  # fmt: skip
RUNS = {
    "fed-smp-randk-digits": ("privacy.adaptive.quantile=0.5", "federation.sampling=balls-and-bins"),
    "dp-fedavg-digits": (
        "privacy.noise=discrete-gaussian", "privacy.placement=clients", "privacy.adjacency=zero-out",
        "aggregation.dropout=0.1", "audit.canaries=6", f"privacy.delta={60**-1.1}",
    ),
    "fedavg-digits": ("federation.sampling=all", "federation.cohort=60"),
}  # fmt: skip


def settings_of(preset):
    common = [one for one in COMMON if "privacy" not in one] if preset == "fedavg-digits" else COMMON
    return [*common, *RUNS[preset]]


def by_torchrun(preset, out):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "dpfed"]
    settings = [word for one in settings_of(preset) for word in ("--set", one)]
    command = [*launch, "run", preset, "--out", str(out), "--json", *settings]
    how = {"capture_output": True, "text": True, "env": {**os.environ, "OMP_NUM_THREADS": "1"}, "timeout": 240}
    done = subprocess.run(command, check=False, **how)
    if done.returncode and "SIGABRT" in done.stderr:  # torch's processes lose each other on a busy machine, seldom
        shutil.rmtree(out, ignore_errors=True)
        done = subprocess.run(command, check=False, **how)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("preset", RUNS)
def test_two_processes_are_one_run(tmp_path, preset):
    config = parse(override(catalogue.preset_tables(preset), settings_of(preset)), source=preset)
    alone = federation.run(build(config), tmp_path / "one").summary
    both = by_torchrun(preset, tmp_path / "two")
    assert (alone["processes"], both["processes"]) == (1, 2)
    if preset != "fedavg-digits":
        ledgers = [(tmp_path / name / "ledger.jsonl").read_text().splitlines() for name in ("one", "two")]
        assert [len(one) for one in ledgers] == [4, 4]
        mechanisms = [[json.loads(line)["mechanism"] for line in one[1:]] for one in ledgers]
        assert mechanisms[0] == mechanisms[1]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    for name, expected in weights[0].items():
        np.testing.assert_allclose(weights[1][name], expected, rtol=1e-4, atol=2e-5)
    for fact in ("cohort", "clipped", "participants", "arrived"):
        specification = [
            [json.loads(line)[fact] for line in (tmp_path / name / "diagnostics.jsonl").read_text().splitlines()]
            for name in ("one", "two")
        ]
        assert specification[0] == specification[1]


def test_what_processes_cannot_share_is_refused(tiny_config):
    two = ranks.Ranks(0, 2)
    for settings, complaint in (
        (("aggregation.kind=masked",), "aggregation.kind='masked' with 2 processes"),
        (("method.name=fedsparsify", "method.purge=clients", "privacy.release=uploads"), "method.purge"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            build(tiny_config(*settings), two)


def test_every_client_is_one_ranks():
    clients = np.array([3, 5, 8, 13, 21])
    parts = [ranks.Ranks(index, 3).clients_of_rank(clients) for index in range(3)]
    assert sorted(np.concatenate(parts)) == clients.tolist()
    assert ranks.Ranks().clients_of_rank(clients).tolist() == clients.tolist()


@pytest.mark.parametrize("gone", [{}, {13: ProtocolStep.UPLOAD, 3: ProtocolStep.UNMASK, 21: ProtocolStep.LATE}])
def test_rank_0_alone_draws_who_drops_out(monkeypatch, gone):
    """Dropouts of a run with secure randomness differ from draw to draw, so that all ranks need those of one draw."""
    sent = []
    state = ServerState(round=4, broadcast=torch.ones(3), clip_norm=0.5)
    task = ranks.Task(state=state, cohort=np.arange(5), participants=np.array([3, 5, 8, 13, 21]), dropouts=gone)
    monkeypatch.setattr(ranks.Ranks, "_broadcast", staticmethod(lambda tensor: sent.append(tensor.clone())))
    ranks.Ranks(0, 2).send_task(task)
    received = iter(sent)
    monkeypatch.setattr(ranks.Ranks, "_broadcast", staticmethod(lambda tensor: next(received).reshape(tensor.shape)))
    told = next(ranks.Ranks(1, 2).received_tasks(state))
    assert told.dropouts == gone
    assert told.participants.tolist() == task.participants.tolist()
    assert torch.equal(told.state.broadcast, state.broadcast)
