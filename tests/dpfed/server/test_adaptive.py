"""FedAdam, FedYogi, FedAdagrad and moving averages of models, against a few lines of numpy, and in runs."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dpfed.audit.run import audit_run
from dpfed.errors import ConfigError
from dpfed.models.flat import FlatModel
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.server.rules import AdaptiveRule, Averaging, MovingAverage, ServerState


def by_numpy(kind, start, moves, *, rate, beta1, beta2, tau):
    """Reddi et al. 2021, Algorithm 2, line by line, in float64."""
    x, m, v = start.astype(float), np.zeros_like(start, float), np.full_like(start, tau**2, dtype=float)
    for delta in moves:
        m = beta1 * m + (1 - beta1) * delta
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "yogi":
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        x = x + rate * m / (np.sqrt(v) + tau)
        yield x


@pytest.mark.parametrize("kind", ["adagrad", "adam", "yogi"])
def test_rules_are_those_of_the_paper(kind):
    generator = np.random.default_rng(0)
    start, moves = generator.normal(size=6), generator.normal(size=(8, 6)) * [1, 1, 0.1, 1e-3, 0, 5]
    settings = {"beta1": 0.8, "beta2": 0.95, "tau": 0.01}
    rule = AdaptiveRule(kind=kind, learning_rate=0.1, **settings)
    state = ServerState(round=0, broadcast=torch.from_numpy(start), clip_norm=1.0)
    for move, expected in zip(moves, by_numpy(kind, start, moves, rate=0.1, **settings), strict=True):
        state = rule.step(state, torch.from_numpy(move), count=3)
        np.testing.assert_allclose(state.broadcast.numpy(), expected, rtol=1e-12)
    assert state.round == 8
    others = {"adagrad", "adam", "yogi"} - {kind}
    for other in others:  # the test tells them apart
        assert not np.allclose(list(by_numpy(other, start, moves, rate=0.1, **settings))[-1], expected, rtol=1e-3)


def test_running_statistics_are_averaged_by_adaptive_rules_too():
    rule = AdaptiveRule(kind="adam", learning_rate=0.1, beta1=0.9, beta2=0.99, tau=0.1, averaged=torch.tensor([1]))
    after = rule.step(ServerState(round=0, broadcast=torch.ones(3), clip_norm=1.0), torch.full((3,), 0.3), count=1)
    assert float(after.broadcast[1]) == pytest.approx(1.3)
    assert float(after.broadcast[0]) != pytest.approx(1.3)


def test_a_moving_average_follows_the_models_and_leaves_them_alone():
    rule, decay = Averaging(momentum=0.5), 0.8
    plain = average = ServerState(round=0, broadcast=torch.zeros(2), clip_norm=1.0)
    expected = None
    for move in ([1.0, -2.0], [3.0, 0.5], [-1.0, 0.0]):
        plain = rule.step(plain, torch.tensor(move), count=1)
        average = MovingAverage(rule=rule, decay=decay).step(average, torch.tensor(move), count=1)
        assert torch.equal(plain.broadcast, average.broadcast)
        new = plain.broadcast.numpy()
        expected = new if expected is None else decay * expected + (1 - decay) * new
        np.testing.assert_allclose(average.memory["average"].numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (["server.rule=adam", "method.name=fedpm"], "would leave the range of probabilities"),
        (["server.average=0.9", "method.name=fedsparsify", "method.options.sparsity=0.5"], "is not sparse"),
        (["server.beta1=0.5"], "is for adam, yogi, adagrad"),
        (["server.rule=adam", "server.momentum=0.5"], "is for step"),
        (["server.rule=adagrad", "server.beta2=0.5"], "is for adam, yogi"),
        (["server.average=1.0"], "average"),
        (["server.rule=adamw"], "rule"),
    ],
)
def test_what_means_nothing_is_refused(tiny_config, settings, complaint):
    other = any(one.startswith("method.name") for one in settings)
    with pytest.raises(ConfigError, match=complaint):
        build(tiny_config(*settings, without=["privacy"] if other else []))


RULES = {
    "adam": ["server.rule=adam", "server.learning_rate=0.05"],
    "yogi averaged": ["server.rule=yogi", "server.learning_rate=0.05", "server.average=0.7"],
    "adagrad": ["server.rule=adagrad", "server.learning_rate=0.05"],
    "momentum averaged": ["server.momentum=0.5", "server.average=0.7"],
}


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("name", list(RULES))
def test_runs_are_resumed_to_the_bit_cost_nothing_more_and_pass_their_audit(tiny_config, tmp_path, name):
    config = tiny_config(*RULES[name], "federation.rounds=4", "data.validation=100")
    whole = federation.run(build(config), tmp_path / "whole")
    with pytest.raises(Exception, match="interrupted"):
        federation.run(build(config), tmp_path / "parts", stop=iter([False, False, True]).__next__)
    parts = federation.run(build(config), tmp_path / "parts", resume=True)
    assert parts.metrics == whole.metrics
    assert parts.summary["model_sha256"] == whole.summary["model_sha256"]
    plain = federation.run(build(tiny_config("federation.rounds=4", "data.validation=100")), tmp_path / "plain")
    assert plain.summary["epsilon"] == whole.summary["epsilon"]
    found = audit_run(tmp_path / "whole")
    assert found.verdict != "fail", [check for check in found.checks if check.passed is False]


def test_the_average_is_what_is_tested_and_saved_and_the_last_model_stands_beside_it(tiny_config, tmp_path):
    experiment = build(tiny_config("server.average=0.7", "server.learning_rate=2.0"))
    done = federation.run(experiment, tmp_path / "run")
    kept = load_file(tmp_path / "run" / "checkpoint.safetensors")
    saved = load_file(tmp_path / "run" / "model.safetensors")

    def accuracy(weights):
        outputs = experiment.model.forward(weights, torch.from_numpy(experiment.dataset.test_inputs))
        return float((outputs.argmax(dim=1) == torch.from_numpy(experiment.dataset.test_labels)).double().mean())

    flat = torch.cat([saved[block.name].reshape(-1) for block in experiment.model.layout])
    assert torch.equal(flat, kept["memory.average"])
    assert done.summary["test_accuracy"] == pytest.approx(accuracy(kept["memory.average"]))
    assert done.summary["last_test_accuracy"] == pytest.approx(accuracy(kept["broadcast"]))
    assert done.summary["test_accuracy"] != done.summary["last_test_accuracy"]
    assert all({"last_test_accuracy", "last_test_loss"} <= line.keys() for line in done.metrics)


def failing(folder):
    return [check.detail for check in audit_run(folder).checks if check.passed is False]


def rewritten(folder, change):
    """The checkpoint with other tensors, its digest made anew, as a careful forger would."""
    from safetensors import safe_open

    from dpfed.runs import binding

    path = folder / "checkpoint.safetensors"
    with safe_open(path, framework="pt") as file:
        specification = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors)
    kept = {name: value for name, value in specification.items() if name != "digest"}
    save_file(tensors, path, metadata=kept | {"digest": binding._content_digest(kept, tensors)})


@pytest.mark.parametrize("name", ["average", "first"])
def test_an_audit_finds_a_memory_that_is_not_of_the_releases(tiny_config, tmp_path, name):
    """Planted: what was averaged, or followed, had something more in it."""
    config = tiny_config("server.rule=adam", "server.learning_rate=0.05", "server.average=0.7")
    federation.run(build(config), tmp_path / "run")
    assert not failing(tmp_path / "run")

    def change(tensors):
        tensors[f"memory.{name}"] += 0.05 * torch.sign(tensors[f"memory.{name}"])

    rewritten(tmp_path / "run", change)
    assert any(
        f"its {name!r} does not follow from the rounds' releases" in detail for detail in failing(tmp_path / "run")
    )


def test_an_average_of_masks_is_a_mask(tiny_config, tmp_path):
    config = tiny_config("method.name=fedpm", "server.average=0.5", "local.learning_rate=1.0", without=["privacy"])
    experiment = build(config)
    assert isinstance(experiment.model, FlatModel)
    done = federation.run(experiment, tmp_path / "run")
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(len(torch.unique(one.abs())) <= 2 for one in weights.values())
    assert (tmp_path / "run" / "model.mask.safetensors").exists()
    assert done.summary["last_test_accuracy"] is not None
