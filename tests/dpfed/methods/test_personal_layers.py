"""Layers that stay personal (local.personal): against a loop of torch, never in uploads, charged alike, and audited."""

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

import dpfed
from accounting.errors import AccountingError
from dpfed.errors import ConfigError, RunError
from dpfed.mechanisms.soundness import require_forgetful
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.server.rules import Averaging
from dpfed.stages.chain import NoMemory
from dpfed.stages.stage import Observer

from ...rounds import DIGITS, configured, killed_run

DRAW = torch.Generator().manual_seed(0)
CLIENTS = [(torch.randn(4, 6, generator=DRAW), torch.arange(4) % 3) for _ in range(5)]
PRIVATE = {"privacy.epsilon": None, "privacy.noise_multiplier": 1.0}


def config(method, *settings, private=("privacy.clip_norm=0.5", "privacy.noise_multiplier=2.0")):
    local = {"epochs": None, "steps": 2, "personal": ["3.*"]}
    return configured(*private, *settings, start=DIGITS, local=local, method={"name": method}, privacy=None)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))


def by_torch(rounds, rate=0.2):
    """Return the server's network and those of the clients, for full batches of all clients in every round."""
    server, heads = network(), [network()[2] for _ in CLIENTS]
    for _ in range(rounds):
        moved = []
        for (inputs, labels), head in zip(CLIENTS, heads, strict=True):
            own = network()
            own.load_state_dict(server.state_dict())
            stepper = torch.optim.SGD([*own[0].parameters(), *head.parameters()], lr=rate)
            for _ in range(2):
                stepper.zero_grad()
                cross_entropy(head(own[1](own[0](inputs))), labels).backward()
                stepper.step()
            moved.append(own[0])
        with torch.no_grad():
            for name, one in server[0].named_parameters():
                one.copy_(sum(dict(each.named_parameters())[name] for each in moved) / len(moved))
    return server, heads


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_rounds_are_those_of_torch(tmp_path, strategy):
    """A server that changed heads, or clients that began anew, would be 0.01 or more away."""
    data = dpfed.data.from_clients(CLIENTS, CLIENTS[0], classes=3)
    settings = {"federation.rounds": 3, "federation.cohort": 5, "federation.sampling": "all", "local.personal": ["2.*"]}
    settings |= {"local.steps": 2, "local.epochs": None, "local.batch_size": 4, "local.learning_rate": 0.2}
    settings |= {"local.strategy": strategy, "local.momentum": 0.0}
    done = dpfed.run("fedavg-digits", settings, data=data, model=network(), out=tmp_path / "run", progress=False)
    server, heads = by_torch(3)
    torch.testing.assert_close(dict(done.model.state_dict()), dict(server.state_dict()), rtol=1e-4, atol=1e-5)
    for client, head in enumerate(heads):
        found = done.personal_model(client)[2].state_dict()
        torch.testing.assert_close(dict(found), dict(head.state_dict()), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(heads[0].weight, heads[1].weight, atol=0.01)
    refused(RunError, "client 5 of 5", done.personal_model, 5)
    assert torch.equal(load_file(done.folder / "model.safetensors")["2.weight"], network()[2].weight)


class Widths(Observer):
    def __init__(self):
        self.seen = set()

    def added(self, rows, ids):
        self.seen.add(rows.shape[1])


@pytest.mark.parametrize("method", [("dp-fedavg",), ("fed-smp-randk", "method.k=100"), ("qsgd",)])
def test_personal_layers_are_not_in_uploads_and_the_charge_is_equal(method):
    """520 of 610 numbers are of the first layer, and only they can be sent or noised."""
    mine, shared = build(config(*method)), build(config(*method, "local.personal="))
    assert mine.privacy_target.mechanism == shared.privacy_target.mechanism
    sent = 100 if method[0] == "fed-smp-randk" else 520
    assert mine.method.stages.project.sent == sent
    now = mine.method.announce(mine.method.task(mine.start, torch.arange(3).numpy()), mine.seeds)
    rows = torch.zeros(2, 610)
    rows[:, 520:] = torch.nan
    assert torch.equal(mine.method.stages.project.client(rows, torch.arange(2).numpy(), now), torch.zeros(2, sent))
    back = mine.method.stages.project.server(torch.ones(sent), now)
    assert len(back) == 610
    assert not back[520:].any()


def test_a_run_resumes_with_them_and_the_next_run_of_a_project_begins_without(tmp_path):
    whole = federation.run(build(config("dp-fedavg")), tmp_path / "whole")
    killed_run(config("dp-fedavg"), tmp_path / "cut", after=2)
    resumed = federation.run(build(config("dp-fedavg")), tmp_path / "cut", resume=True)
    assert resumed.metrics == whole.metrics
    again = build(config("dp-fedavg"))
    assert not again.start.stages
    assert federation.run(again, tmp_path / "next").metrics == whole.metrics


@pytest.mark.parametrize(
    ("method", "settings", "words"),
    [
        ("dp-fedavg", ("federation.sampling=fixed",), "may replace another"),
        ("dp-fedavg", ("privacy.adjacency=replace-one",), "may replace another"),
        ("dp-fedavg", ("federation.cohort_cap=20",), "federation.cohort_cap and"),
        ("dp-fedavg", ("privacy.noise=discrete-gaussian",), "on a sum only"),
        ("dp-fedavg", ("privacy.placement=clients", "privacy.adjacency=zero-out"), "on a sum only"),
        ("dp-fedavg", ("audit.canaries=4",), "canaries"),
        ("dp-fedavg", ("local.proximal=1.0",), "pull personal layers"),
        ("dp-fedavg", ("local.personal=['4.*']",), "matches no trained parameter"),
        ("dp-fedavg", ("local.personal=['*']",), "nothing is sent"),
        ("fed-smp-topk", ("method.keep=0.1", "data.public=50"), "those of all layers"),
    ],
)
def test_elsewhere_they_are_refused(method, settings, words):
    refused((ConfigError, AccountingError), words, lambda: build(config(method, *settings)))


@pytest.mark.parametrize("method", ["fedpm", "fedmrn", "fedsparsify"])
def test_methods_without_updates_of_weights_are_refused(method):
    refused(ConfigError, "do not train weights alone", lambda: build(config(method, private=())))


def test_a_custom_stage_closes_the_memory():
    class Peeks:
        def client(self, rows, ids, now):
            return rows

        def server(self, total, now):
            return total

    experiment = build(config("dp-fedavg"))
    clients, stages = experiment.method.clients, experiment.method.stages
    assert clients.remembers_clients
    require_forgetful(stages, clients)
    custom = type(stages)(stages.project, Peeks(), *list(stages)[1:])
    assert isinstance(custom.memory({}), NoMemory)
    refused(ConfigError, "remembers", require_forgetful, custom, clients)


def publish_personal_layers():
    """The server adds the mean of all clients' personal layers to its model, as a plain average would."""
    step = Averaging.step

    def published(self, state, mean_move, *, count):
        after = step(self, state, mean_move, count=count)
        if "personal" in state.stages:
            after.broadcast[-len(state.stages["personal"][0]) :] += state.stages["personal"].mean(0)
        return after

    Averaging.step = published


@pytest.mark.parametrize(
    ("plant", "verdict"), [(publish_personal_layers, "fail"), pytest.param(None, "pass", marks=pytest.mark.slow)]
)
def test_a_server_that_publishes_them_is_found_by_the_replay(plant, verdict):
    small = {"federation.rounds": 3, "federation.clients": 40, "federation.cohort": 20, "data.train_samples": 320}
    small |= {"model.hidden": [8], "local.personal": ["3.*"], "local.epochs": None, "local.steps": 2} | PRIVATE
    small["privacy.accountant"] = "rdp"

    def call(data, out):
        if plant is not None:
            plant()
        reporting = {"run.evaluate_every": 1} if data.reporting else {}
        dpfed.run("dp-fedavg-digits", small | reporting, out=out, progress=False)

    found = dpfed.audit.replay(call)
    assert found.verdict == verdict, found.as_text()
