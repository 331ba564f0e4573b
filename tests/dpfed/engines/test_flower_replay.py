"""Replay audits of Flower apps with Flower's own differentially private strategies and mods, in one process."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfed import run
from dpfed.audit import FlowerNodes, Pair, replay
from dpfed.stages.clip import Clip

from ..audit.replays.planted import PLANTED, TWINS
from ..audit.replays.test_patterns import require_stated_verdict

pytest.importorskip("flwr", reason="flwr is not installed: pip install -c constraints-flower.txt -e '.[flower]'")
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import ServerApp
from flwr.serverapp import strategy as strategies
from flwr.simulation import run_simulation

pytestmark = pytest.mark.filterwarnings("ignore")
CLIENTS = 6
DRAWS = np.random.default_rng(2)
PARTITIONS = [(DRAWS.normal(size=(7, 4)), DRAWS.normal(size=7)) for _ in range(CLIENTS)]
LOCAL = {"sensitivity": 0.5, "epsilon": 4.0, "delta": 1e-5}


class App:
    """Three rounds of linear regression, central noise, clipped by the server: sound."""

    wrapper, settings, mods, rounds = "ServerSideFixed", {"clipping_norm": 0.5}, [], 3

    def move(self, client, inputs, targets, weights):
        return -0.1 * inputs.T @ (inputs @ weights - targets) / len(inputs)

    def examples(self, client):
        return 1

    def strategy(self):
        inner = strategies.FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        if self.wrapper is None:
            return inner
        wrapper = getattr(strategies, f"DifferentialPrivacy{self.wrapper}Clipping")
        return self.changed(wrapper)(inner, noise_multiplier=1.0, num_sampled_clients=CLIENTS, **self.settings)

    def changed(self, wrapper):
        return wrapper

    def __call__(self, data, out):
        partitions, app = data(PARTITIONS), ClientApp(mods=self.mods)

        @app.train()
        def train(message, context):
            client = context.node_config["partition-id"]
            (weights,) = message.content["arrays"].to_numpy_ndarrays()
            moved = weights + self.move(client, *partitions[client], weights)
            metrics = MetricRecord({"num-examples": self.examples(client), "loss": float(moved[0])})
            return Message(RecordDict({"arrays": ArrayRecord([moved]), "metrics": metrics}), reply_to=message)

        done = self.strategy().start(
            grid=FlowerNodes(app, CLIENTS), initial_arrays=ArrayRecord([np.ones(4)]), num_rounds=self.rounds
        )
        return done.arrays.to_numpy_ndarrays()


class ClientFixed(App):
    wrapper, mods = "ClientSideFixed", [fixedclipping_mod]


class Adaptive(App):
    """Sound while the clip norm grows, as it does where few updates are clipped."""

    wrapper = "ServerSideAdaptive"
    settings = {"initial_clipping_norm": 5.0, "clipped_count_stddev": 1.0, "target_clipped_quantile": 1.0}  # noqa: RUF012


class ClientAdaptive(Adaptive):
    wrapper, mods = "ClientSideAdaptive", [adaptiveclipping_mod]


class Local(App):
    wrapper, mods = None, [LocalDpMod(clipping_norm=0.5, **LOCAL)]


class ModForgotten(App):
    wrapper = "ClientSideFixed"


class NoiseLeftOut(App):
    settings = {"clipping_norm": 0.5}  # noqa: RUF012

    def changed(self, wrapper):
        class Quiet(wrapper):
            def _add_noise_to_aggregated_arrays(self, aggregated_arrays):
                return aggregated_arrays

        return Quiet


class NormNotAnnounced(App):
    """The clip norm follows the updates, unnoised."""

    def changed(self, wrapper):
        class Following(wrapper):
            def aggregate_train(self, server_round, replies):
                replies = list(replies)
                done = super().aggregate_train(server_round, replies)
                self.clipping_norm = 0.5 + float(replies[0].content["metrics"]["loss"])
                return done

        return Following


class UnequalExamples(App):
    def examples(self, client):
        return 20 if client == 2 else 1


class RunningMean(App):
    def __init__(self):
        self.seen = np.zeros(4)

    def move(self, client, inputs, targets, weights):
        self.seen = 0.9 * self.seen + 0.1 * inputs.mean(axis=0)
        return super().move(client, inputs - self.seen, targets, weights)


class DataSeed(App):
    def move(self, client, inputs, targets, weights):
        np.random.seed(int(abs(inputs).sum() * 1e3) % 2**31)  # noqa: NPY002
        return super().move(client, inputs, targets, weights)


class ReturnsMetrics(App):
    def __call__(self, data, out):
        return super().__call__(data, out), float(np.mean([x.mean() for x, _ in data(PARTITIONS)]))


class LocalNotBounded(App):
    """The noise is for a sensitivity below the clip norm."""

    wrapper, mods = None, [LocalDpMod(clipping_norm=5.0, **LOCAL)]


class ShrinkingNorm(Adaptive):
    """Flower 1.41: noise is drawn for the next clip norm, where rows were clipped to the last one."""

    settings = Adaptive.settings | {"initial_clipping_norm": 0.1, "target_clipped_quantile": 0.0, "clip_norm_lr": 1.0}


@pytest.mark.parametrize("app", [App, ClientFixed, Adaptive, ClientAdaptive, Local])
def test_sound_apps_pass(app):
    found = replay(app())
    assert found.verdict == "pass", found.as_text()
    tested = [one for one in found.evidence.pairs if one.outcome == "pass" and one.pair.clients]
    assert len(tested) >= 4
    assert all(one.findings.mechanisms >= 3 and one.findings.altered_values for one in tested)


@pytest.mark.parametrize(
    ("app", "words"),
    [
        (ModForgotten, "clipped updates in Flower: is beyond its bound"),
        (NoiseLeftOut, "adds no noise"),
        (NormNotAnnounced, "clip norm that Flower announces: differs"),
        (UnequalExamples, "is not the sum of the updates over num_sampled_clients"),
        (RunningMean, "clients or records were changed"),
        (DataSeed, "its noise differs"),
        (ReturnsMetrics, "result of the call, 1"),
        (LocalNotBounded, "makes private in Flower: its input moves"),
        (ShrinkingNorm, "clipped updates in Flower: is beyond its bound"),
    ],
)
def test_planted_faults_are_found(app, words):
    found = replay(app())
    assert found.verdict == "fail"
    assert words in found.as_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [one for one in (*PLANTED, *TWINS) if one.host == "Flower app"], ids=lambda one: one.id
)
def test_a_fault_of_the_table_is_found_or_listed_as_not_found(fault):
    require_stated_verdict(fault)


def test_the_example_passes(tmp_path):
    file = Path(__file__).parents[3] / "examples" / "replay" / "test_flower.py"
    (tmp_path / "conftest.py").write_text("from dpfed.audit.replays.pytest_plugin import dp_replay\n")
    (tmp_path / "test_flower.py").write_text(file.read_text())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_clients_that_are_not_drawn_are_not_tested():
    """Flower draws half of the nodes from the global source: of two rounds those who were in neither are not tested."""

    class Half(App):
        rounds = 1

        def strategy(self):
            made = super().strategy()
            made.strategy.min_train_nodes, made.strategy.fraction_train = 3, 0.5
            made.num_sampled_clients = 3
            return made

    outcomes = [one.outcome for one in replay(Half(), [Pair((i,), "far") for i in range(CLIENTS)]).evidence.pairs]
    assert sorted(outcomes) == ["nothing tested"] * 3 + ["pass"] * 3


SMALL = {
    "federation.rounds": 2,
    "federation.clients": 12,
    "federation.cohort": 6,
    "data.train_samples": 96,
    "local.epochs": None,
    "local.steps": 2,
    "model.hidden": [8],
    "privacy.epsilon": None,
    "privacy.noise_multiplier": 1.0,
}
UPLOADS = {"privacy.release": "uploads", "privacy.adjacency": "zero-out"}


def simulated(settings, plant=lambda: None):
    def call(data, out):
        plant()
        reporting = {"run.evaluate_every": 1} if data.reporting else {}
        run("dp-fedavg-digits", SMALL | settings | reporting, engine="flower", out=out, progress=False)

    return call


def remembers_the_last_client():
    """A node's clip adds a hundredth of the row that the same process has clipped before."""
    before, kept = Clip.client, []

    def client(self, rows, ids, now):
        out = before(self, rows, ids, now)
        kept.append(out.clone())
        return out if len(kept) < 2 else 0.99 * out + 0.01 * kept[-2]

    Clip.client = client


def not_clipped():
    Clip.client = lambda self, rows, ids, now: rows


@pytest.mark.parametrize("settings", [{}, UPLOADS])
def test_a_run_in_the_simulation_passes(settings):
    found = replay(simulated(settings))
    assert found.verdict == "pass", found.as_text()
    assert sum(one.findings.rows > 0 for one in found.evidence.pairs) >= 12


@pytest.mark.parametrize(
    ("plant", "words"), [(remembers_the_last_client, "row after Clip"), (not_clipped, "is beyond its bound")]
)
def test_a_fault_of_a_simulated_node_is_found(plant, words):
    found = replay(simulated({}, plant))
    assert found.verdict == "fail"
    assert words in found.as_text()


def test_an_app_in_the_simulation_of_flower_is_seen():
    """`run_simulation` of Flower: its nodes are in the audit's process, so that two apps that share a state fail."""

    class Simulated(App):
        def __call__(self, data, out):
            partitions, app, server, done = data(PARTITIONS), ClientApp(), ServerApp(), []

            @app.train()
            def train(message, context):
                (weights,) = message.content["arrays"].to_numpy_ndarrays()
                client = context.node_config["partition-id"]
                moved = weights + self.move(client, *partitions[client], weights)
                content = {"arrays": ArrayRecord([moved]), "metrics": MetricRecord({"num-examples": 1})}
                return Message(RecordDict(content), reply_to=message)

            @server.main()
            def main(grid, context):
                start = ArrayRecord([np.ones(4)])
                done.append(self.strategy().start(grid=grid, initial_arrays=start, num_rounds=2))

            run_simulation(server_app=server, client_app=app, num_supernodes=CLIENTS)
            return done[0].arrays.to_numpy_ndarrays()

    found = replay(Simulated())
    assert found.verdict == "pass", found.as_text()
    assert all(one.findings.mechanisms >= 2 for one in found.evidence.pairs)
