"""Nodes with samples of their own: the run in process on the same samples, and what is refused."""

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.numpy import save_file
from safetensors.torch import load_file

from dpfed.cli import status
from dpfed.config.tables import override
from dpfed.errors import ConfigError, DataError, RunError
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from .served import PRIVATE, SHARES, serve_run

METHODS = {
    "private": ("dp-fedavg", (), PRIVATE),
    "shares under the protocol": ("dp-fedavg", ("aggregation.kind=protocol",), SHARES),
    "public mask": ("fed-smp-topk", ("method.keep=0.1", "data.public=50"), PRIVATE),
    "equal weights": ("fedavg", (), None),
    "masks": ("fedpm", (), None),
    "progressive noise": ("fedmrn", (), None),
}


@pytest.fixture
def with_steps(tables):
    """Tables with steps instead of epochs; 1000 samples, so that 20 clients of an iid partition have 50 each."""

    def made(method, *settings, **more):
        local = {"learning_rate": 0.3, "steps": 4, "batch_size": 10}
        return tables(method, "data.train_samples=1000", *settings, local=local, **more)

    return made


def on_nodes(tables):
    return override(tables, ["data.partition=nodes"])


def share_of(experiment):
    """What the partition in process gives to the client that a node is."""
    local = experiment.method.clients

    def load_data(context):
        rows = local.partition.of(context.node_config["partition-id"])
        return local.inputs[rows].numpy(), local.labels[rows].numpy()

    return load_data


@pytest.mark.parametrize("case", sorted(METHODS))
def test_nodes_with_the_same_samples_do_what_one_process_does(tmp_path, grid, with_steps, checked, same_run, case):
    method, settings, privacy = METHODS[case]
    if case == "public mask":
        settings = (*settings, "data.train_samples=1050")  # 50 of them are public
    chosen = with_steps(method, *settings, privacy=privacy)
    experiment = build(checked(chosen))
    federation.run(experiment, tmp_path / "here")
    nodes = grid(on_nodes(chosen), load_data=share_of(experiment))
    serve_run(nodes, on_nodes(chosen), tmp_path / "there")
    counted = () if privacy else ("divisor",)  # nodes do not say how many samples they have
    same_run(tmp_path / "here", tmp_path / "there", but=counted)
    weights, start = load_file(tmp_path / "there" / "model.safetensors"), experiment.start.broadcast
    layout = zip(experiment.model.layout, weights.values(), strict=False)
    assert any(not torch.equal(values.flatten(), start[block.start : block.stop]) for block, values in layout)


def test_no_message_tells_how_many_samples_a_node_has(tmp_path, grid, with_steps, checked):
    """Two worlds in which one node has 50 samples or 2: every message is of the same length and the same entries."""
    chosen = on_nodes(with_steps("dp-fedavg", "federation.sampling=all", "federation.cohort=20", privacy=PRIVATE))
    whole = share_of(build(checked(override(chosen, ["data.partition=iid"]))))
    forms = []
    for kept in (50, 2):

        def load_data(context, kept=kept):
            inputs, labels = whole(context)
            return (inputs[:kept], labels[:kept]) if context.node_config["partition-id"] == 3 else (inputs, labels)

        nodes = grid(chosen, load_data=load_data)
        serve_run(nodes, chosen, tmp_path / str(kept))
        forms.append(
            sorted(
                (one.content["upload"]["client"], len(one.content["upload"]["payload"]), *sorted(one.content["upload"]))
                for _, replies in nodes.rounds
                for one in replies
            )
        )
    assert forms[0] == forms[1]


@pytest.mark.parametrize(
    ("settings", "more", "words"),
    [
        ((), {"local": {"learning_rate": 0.3, "epochs": 1, "batch_size": 10}}, "local.steps"),
        (
            ("local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0"),
            {"local": {"learning_rate": 0.3, "steps": 4, "batch_size": 10}},
            "does not know",
        ),
        (("data.alpha=0.3",), {}, "data.alpha"),
    ],
    ids=["epochs", "records", "alpha"],
)
def test_what_would_need_the_sizes_is_refused_before_an_app_is_written(tmp_path, capsys, tables, settings, more, words):
    import tomli_w

    chosen = tables("fedavg", "data.partition=nodes", *settings, **more)
    (tmp_path / "run.toml").write_text(tomli_w.dumps(chosen))
    assert status(["deploy", str(tmp_path / "run.toml"), "--out", str(tmp_path / "app")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "app").exists()


def test_the_hook_is_written_and_named(tmp_path, capsys, with_steps):
    import tomli_w

    (tmp_path / "run.toml").write_text(tomli_w.dumps(on_nodes(with_steps("dp-fedavg", privacy=PRIVATE))))
    assert status(["deploy", str(tmp_path / "run.toml"), "--out", str(tmp_path / "app")]) == 0
    assert "load_data in" in capsys.readouterr().out
    module = (tmp_path / "app" / "dpfed_app" / "client_app.py").read_text()
    compile(module, "client_app.py", "exec")
    assert "def load_data(context" in module
    assert "load_data=load_data" in module


def test_in_one_process_there_are_no_nodes(tmp_path, with_steps, checked):
    experiment = build(checked(on_nodes(with_steps("dp-fedavg", privacy=PRIVATE))))
    refused(ConfigError, "dpfed deploy", federation.run, experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_neither_in_the_simulation_of_dpfed_run(tmp_path, grid, with_steps, checked):
    pytest.importorskip("ray", reason="ray is not installed: pip install -c constraints-flower.txt -e '.[flower]'")
    from dpfed.engines.flower.simulation import simulate

    with pytest.raises(ConfigError, match="dpfed deploy"):
        simulate(build(checked(on_nodes(with_steps("dp-fedavg", privacy=PRIVATE)))), tmp_path / "run")


def test_own_samples_where_they_belong_and_only_there(grid, with_steps):
    refused(ConfigError, "load_data missing", lambda: grid(on_nodes(with_steps("fedavg"))))
    refused(ConfigError, "load_data given", lambda: grid(with_steps("fedavg"), load_data=lambda context: None))


GOOD = np.zeros((3, 64), np.float32), np.array([0, 9, 4])
BAD = {
    "a label too large": (GOOD[0], np.array([0, 10, 4]), "not among the 10 declared classes"),
    "a label too few": (GOOD[0], GOOD[1][:2], "one label per sample"),
    "labels that are no integers": (GOOD[0], np.array([0.0, 1.0, 2.0]), "integers"),
    "another shape": (np.zeros((3, 63)), GOOD[1], "63"),
    "not a number": (np.full((3, 64), np.nan), GOOD[1], "NaN"),
    "nothing": (GOOD[0][:0], GOOD[1][:0], "at least one"),
    "words": (np.full((3, 64), "a"), GOOD[1], "numbers"),
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_node_whose_samples_cannot_be_used_is_refused_before_any_round(tmp_path, grid, with_steps, checked, case):
    from dpfed.engines.flower.own_data import with_own_samples

    inputs, labels, words = BAD[case]
    chosen = on_nodes(with_steps("dp-fedavg", privacy=PRIVATE))
    shape = build(checked(chosen)).dataset.input_shape
    if inputs.shape[1:] == (64,):
        inputs = inputs.reshape(-1, *shape)
    refused(DataError, words, lambda: with_own_samples(build(checked(chosen)), 3, (inputs, labels)))
    nodes = grid(chosen, load_data=lambda context: (inputs, labels))
    refused(RunError, "no node has joined", serve_run, nodes, chosen, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_file_that_the_node_is_started_with(tmp_path, grid, with_steps):
    from flwr.app import Context, RecordDict

    from dpfed.engines.flower.own_data import samples_of_file

    def node(path):
        return Context(run_id=1, node_id=1, node_config={"data": path}, state=RecordDict(), run_config={})

    path = tmp_path / "mine.safetensors"
    save_file({"inputs": GOOD[0], "labels": GOOD[1]}, path)
    inputs, labels = samples_of_file(node(str(path)))
    assert np.array_equal(inputs, GOOD[0])
    assert np.array_equal(labels, GOOD[1])
    refused(ConfigError, "absolute path", lambda: samples_of_file(node("mine.safetensors")))
    refused(DataError, "cannot be read", lambda: samples_of_file(node(str(tmp_path / "none.safetensors"))))
    save_file({"inputs": GOOD[0]}, path)
    refused(DataError, "holds inputs; must hold", lambda: samples_of_file(node(str(path))))
