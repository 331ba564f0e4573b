"""Replay audits of code that is not dpfed's: plain numpy with marks, and Opacus without."""

import importlib
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPPerLayerOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from refusals import refused
from torch import nn
from torch.utils.data import DataLoader

from dpfed.audit import Pair, mechanism, outside, replay
from dpfed.audit.replays.findings import MAY_DIFFER, OPERATORS
from dpfed.audit.replays.pairs import NOT_FINITE
from dpfed.audit.replays.pytest_plugin import dp_replay  # noqa: F401 - the fixture, in an environment without its entry
from dpfed.errors import DpfedError

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing", "ignore:Secure RNG turned off")
torch.set_num_threads(1)
DRAWS = np.random.default_rng(5)
CLIENTS = [DRAWS.normal(size=(6, 4)) for _ in range(10)]
# 20 records: Opacus divides by 6, with 19 too.
RECORDS = [(DRAWS.normal(size=6).astype(np.float32), int(DRAWS.integers(2))) for _ in range(20)]
HALF = Pair(range(0, 10, 2), "far")
ONE = Pair((3,), "far")
LAST = Pair((9,), "removed")
ROOT = Path(__file__).parents[4]


# ---- plain numpy


def clipped(row):
    return row / max(1.0, np.linalg.norm(row))


def noisy(total):
    return total + np.random.normal(size=total.shape)  # noqa: NPY002 - a project's own


class Project:
    """Three rounds of a mean of clipped moves: sound."""

    def __init__(self):
        self.counts = np.zeros(4)

    def move(self, i, client, model):
        return client.mean(axis=0) - model

    def clip(self, i, row):
        return clipped(row)

    def noise(self, total):
        return mechanism(noisy, sensitivity=1.0)(total)

    def __call__(self, data, out):
        model, clients = np.zeros(4), data(CLIENTS)
        for _ in range(3):
            rows = [self.clip(i, self.move(i, client, model)) for i, client in enumerate(clients)]
            for i, row in enumerate(rows):
                outside("row", row, client=i)
            model = model + self.noise(np.sum(rows, axis=0)) / 10
        return model


class NoMechanism(Project):
    def noise(self, total):
        return noisy(total)


class RunningCounts(Project):
    def move(self, i, client, model):
        self.counts += client.sum(axis=0)
        return client.mean(axis=0) - model + 1e-3 * self.counts


@pytest.mark.parametrize(
    "pairs", [pytest.param(None, marks=pytest.mark.slow), [HALF, ONE, LAST], [Pair((3,), "negated")]]
)
def test_a_sound_project_passes(pairs):
    found = replay(Project(), pairs)
    assert found.verdict == "pass", found.as_text()
    others = {"one class": "nothing tested", "turned": "nothing tested", "zeroed": "refused", "nan": "not finite"}
    for one in found.evidence.pairs:  # there are no targets, and the mean of no samples is NaN
        assert one.outcome == others.get(one.pair.change, "pass")


def test_a_project_without_a_mechanism_is_refused():
    refused(DpfedError, "the first run reached no mechanism", lambda: replay(NoMechanism()))


def test_one_record_of_a_client_is_changed():
    x, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 1, 0])
    for given in ([{"x": x, "y": y}] * 3, [(torch.tensor(x), torch.tensor(y))] * 3, [list(zip(x, y, strict=True))] * 3):
        changed = {change: Pair((1,), change, record=2).changed(given) for change in ("far", "one class", "removed")}
        for change, clients in changed.items():
            assert clients[0] is given[0]
            one = clients[1] if isinstance(given[0], list) else None
            inputs, targets = (
                zip(*one, strict=True) if one else clients[1].values() if isinstance(clients[1], dict) else clients[1]
            )
            inputs, targets = np.array([np.asarray(row) for row in inputs]), np.array([int(row) for row in targets])
            expected = {
                "far": (np.vstack([x[:2], np.full((1, 3), -30.0), x[3:]]), y),
                "one class": (x, [0, 1, 0, 0]),
                "removed": (x[[0, 1, 3]], y[[0, 1, 3]]),
            }[change]
            np.testing.assert_array_equal(inputs, expected[0])
            np.testing.assert_array_equal(targets, expected[1])


def test_clients_that_nothing_is_computed_of_are_not_tested():
    found = replay(
        lambda data, out: Project()(lambda clients: data(clients)[:5] + CLIENTS[5:], out), [Pair((8,), "far")]
    )
    assert found.verdict == "inconclusive"
    assert found.evidence.pairs[0].outcome == "nothing tested"


# ---- Opacus


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.seen = nn.Linear(6, 5), nn.Linear(5, 2), torch.zeros(2)

    def forward(self, x):
        return self.head(self.body(x).tanh())


def loss(net, outputs, y):
    return nn.functional.cross_entropy(outputs, y)


class Sgd:
    """Four steps of DP-SGD with Opacus' optimizer, batches drawn at random: sound."""

    optimizer, settings, net, loss = DPOptimizer, {}, Net, staticmethod(loss)

    def batch(self, x):
        return x

    def before_step(self, x, optimizer):
        pass

    def __call__(self, data, out):
        records = data(RECORDS)
        x = torch.tensor(np.stack([one for one, _ in records]))
        y = torch.tensor([int(label) for _, label in records])
        net = self.net()
        model = GradSampleModule(net)
        given = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 8} | self.settings
        optimizer = self.optimizer(torch.optim.Adam(model.parameters(), lr=0.1), **given)
        for _ in range(4):
            drawn = torch.rand(len(x)) < 0.7
            optimizer.zero_grad()
            self.loss(net, model(self.batch(x[drawn])), y[drawn]).backward()
            self.before_step(x[drawn], optimizer)
            optimizer.step()
        return net.state_dict()


class PerLayer(Sgd):
    optimizer, settings = DPPerLayerOptimizer, {"max_grad_norm": [0.5] * 4}


class AdaClip(Sgd):
    optimizer = AdaClipDPOptimizer
    settings = {  # noqa: RUF012
        "target_unclipped_quantile": 0.5,
        "clipbound_learning_rate": 0.2,
        "max_clipbound": 10.0,
        "min_clipbound": 0.01,
        "unclipped_num_std": 2.0,
    }


class Engine(Sgd):
    """The whole of Opacus: Poisson batches, in two physical batches each, per-sample gradients or ghost clipping."""

    mode, physical, records, batch_size = "hooks", 6, RECORDS, 8

    def __call__(self, data, out):
        records, net = data(self.records), self.net()
        loader = DataLoader([(torch.tensor(x), int(y)) for x, y in records], batch_size=self.batch_size)
        criterion = nn.CrossEntropyLoss()
        made = PrivacyEngine().make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            criterion=criterion,
            grad_sample_mode=self.mode,
        )
        model, optimizer, loader = made[0], made[1], made[-1]
        criterion = made[2] if self.mode == "ghost" else criterion
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=self.physical, optimizer=optimizer
        ) as small:
            for x, y in [*small, *small]:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
        return net


class Ghost(Engine):
    mode, physical = "ghost", 100


class Quiet(DPOptimizer):
    def add_noise(self):
        for one in self.params:
            one.grad = one.summed_grad.clone()


class QuietHead(DPOptimizer):
    def add_noise(self):
        super().add_noise()
        self.params[-1].grad = self.params[-1].summed_grad.clone()


class Generous(DPOptimizer):
    """The record at place 2 of a batch is not clipped."""

    def clip_and_accumulate(self):
        rows = torch.cat([one.reshape(len(one), -1) for one in self.grad_samples], dim=1)
        factors = (self.max_grad_norm / (rows.norm(dim=1) + 1e-6)).clamp(max=1.0)
        factors[2:3] = 1.0
        for one in self.params:
            one.summed_grad = torch.einsum("i,i...", factors, one.grad_sample)


class Unclipped(DPOptimizer):
    def clip_and_accumulate(self):
        for one in self.params:
            one.summed_grad = one.grad_sample.sum(dim=0)


class OneBatchNorm(DPOptimizer):
    """One factor for all records, from the mean of their norms."""

    def clip_and_accumulate(self):
        rows = torch.cat([one.reshape(len(one), -1) for one in self.grad_samples], dim=1)
        for one in self.params:
            one.summed_grad = one.grad_sample.sum(dim=0) * (0.5 / rows.norm(dim=1).mean()).clamp(max=1.0)


class BatchMean(Sgd):
    def batch(self, x):
        return x - x.mean(dim=0)


class Counted(Sgd):
    """A loss whose weights follow the labels of all batches until now."""

    @staticmethod
    def loss(net, outputs, y):
        net.seen += torch.bincount(y, minlength=2)
        return nn.functional.cross_entropy(outputs, y, weight=1 + net.seen / net.seen.sum())


class DataSeed(Sgd):
    def before_step(self, x, optimizer):
        torch.manual_seed(int(x.abs().sum() * 1e3))


class DataGenerator(Sgd):
    def before_step(self, x, optimizer):
        optimizer.generator = torch.Generator().manual_seed(int(x.abs().sum() * 1e3))


class Running(Sgd):
    """A running mean of the inputs is saved with the model, as a batch norm's would be."""

    class net(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
            return super().forward(x)


def with_optimizer(kind):
    return type(kind.__name__, (Sgd,), {"optimizer": kind})


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("project", [Sgd, PerLayer, AdaClip, Engine, Ghost])
def test_sound_steps_of_opacus_pass(project):
    adaptive = project is AdaClip  # Opacus divides its count by the realised batch
    found = replay(project(), records_public=adaptive)
    assert found.verdict == "pass", found.as_text()
    tested = [one for one in found.evidence.pairs if one.pair.clients and one.pair.change not in NOT_FINITE]
    assert adaptive != any(one.pair.change == "removed" for one in tested)
    assert all(
        one.outcome == "pass" and one.findings.mechanisms >= 4 and one.findings.altered_values > 0 for one in tested
    )
    assert max(one.findings.largest_used_part for one in tested) > 0.2


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize(
    ("project", "words"),
    [
        (DataSeed, "its noise differs"),
        (with_optimizer(Quiet), "adds no noise"),
        (with_optimizer(QuietHead), "adds no noise to array 3"),
        (with_optimizer(Generous), "clipped gradients in Opacus: do not add up"),
        (with_optimizer(Unclipped), "clipped gradients in Opacus: is beyond its bound"),
        (BatchMean, "records were changed"),
        (with_optimizer(OneBatchNorm), "do not add up"),
        (Counted, "records were changed"),
        (DataGenerator, "its noise differs"),
        (Running, "result of the call, mean"),
    ],
)
def test_a_planted_fault_of_a_step_is_found_by_the_default_pairs(project, words):
    found = replay(project())
    assert found.verdict == "fail"
    assert words in found.as_text()


@pytest.mark.parametrize("default", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("count", "divisors"), [(64, "16.0 and 15.0"), (66, "")])
def test_the_divisor_of_opacus_fails_where_it_moves_with_the_number_of_records(count, divisors, default):
    """Opacus divides by int(n / steps): 16 and 15 for 64 and 63 records, 4 steps; 13 for 66 and 65 records, 5 steps.

    Issues 571 and 819 of Opacus.
    """
    records = [RECORDS[i % 20] for i in range(count)]
    loop = type("Loop", (Engine,), {"records": records, "batch_size": 16, "physical": 100})
    found = replay(loop(), None if default else [Pair((count - 1,), "removed")])
    assert found.verdict == ("fail" if divisors else "pass"), found.as_text()
    removed = [one for one in found.evidence.pairs if one.pair.change == "removed"]
    assert removed
    assert all(one.outcome == found.verdict for one in removed)
    words = f"removed. round 1: expected batch size in Opacus: differs ({divisors}) (test_anybody.py:"
    assert not divisors or words in str(found)


def test_hooks_are_of_the_runs_only():
    step = DPOptimizer.step
    assert replay(Sgd(), [ONE]).verdict == "pass"
    assert DPOptimizer.step is step


# ---- pytest


def test_the_fixture_fails_with_the_first_difference(dp_replay):  # noqa: F811
    assert dp_replay(Project(), pairs=[HALF]).verdict == "pass"
    with pytest.raises(pytest.fail.Exception, match=r"5 clients: far\. round 1, client 5: row: differs"):
        dp_replay(RunningCounts(), pairs=[Pair((0, 1, 2, 3, 4), "far")])


def test_the_plugin_is_an_entry_point_and_light():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name,) = project["entry-points"]["pytest11"].values()
    assert importlib.import_module(name).dp_replay is not None


def test_the_page_is_true(tmp_path, dp_replay):  # noqa: F811
    """Its project passes, does not without its noise, and its list is the code's."""
    page = (ROOT / "docs" / "replay.md").read_text()
    code = page.split("```python")[1].split("```")[0]
    named = {}
    exec(code, named)
    named["test_training_is_private"](dp_replay)
    exec(code.replace(" + np.random.normal(scale=1.0, size=total.shape)", " + 0"), named)
    refused(pytest.fail.Exception, "adds no noise", named["test_training_is_private"], dp_replay)
    assert [line[2:] for line in page.split("## What may differ")[1].splitlines() if line[:2] == "- "] == [*MAY_DIFFER]
    assert all(name in page for name in OPERATORS)
