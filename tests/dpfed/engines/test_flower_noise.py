"""Nodes train with the server's calibrated noise, and send nothing if it is less than they calibrate themselves."""

import pytest

from accounting import Ledger
from dpfed.config.tables import parse
from dpfed.errors import WireError
from dpfed.runs.experiment import build

from .served import instruction, lines, question

TARGET = {"epsilon": 20.0, "clip_norm": 0.5, "delta": 1e-2, "accountant": "rdp"}
SHARES = {**TARGET, "noise": "discrete-gaussian", "placement": "clients", "adjacency": "zero-out"}
COINS = {"epsilon": 20.0, "slots": 15, "delta": 1e-2, "accountant": "rdp"}
RECORDS = ("local.record.clip_norm=1.0", "local.record.epsilon=20.0", "local.record.accountant=rdp")
CASES = {
    "gaussian shares": ("dp-fedavg", ("federation.sampling=fixed",), {**TARGET, "placement": "clients"}),
    "dithered": ("dp-dithered", (), {**TARGET, "adjacency": "zero-out"}),
    "coins": ("fedpm", (), COINS),
    "coins in a secure sum": ("fedpm", ("aggregation.kind=protocol",), COINS),
    "integers in a secure sum": ("dp-fedavg", ("aggregation.kind=protocol",), SHARES),
    "records": ("fedavg", RECORDS, None),
}
SLOW = pytest.mark.slow


def moved(config, factor):
    """The experiment of a process whose calibration gives `factor` times the noise, or that part of the clip norm."""
    solved = build(config).privacy_target.solved
    scale = {"clip_norm": 1 / factor, "noise_multiplier": factor}
    return build(config.with_solved_noise({name: value * scale[name] for name, value in solved.items()}))


def served(nodes, experiment, out):
    from dpfed.engines.flower.server_app import serve_run

    serve_run(nodes, experiment, out, patience=0.5)
    return [(one["arrived"], one["cohort"]) for one in lines(out, "diagnostics.jsonl")]


@pytest.mark.parametrize("case", [one if one == "gaussian shares" else pytest.param(one, marks=SLOW) for one in CASES])
def test_nodes_read_the_noise_of_a_server_with_another_processor(tmp_path, grid, tables, case):
    method, settings, privacy = CASES[case]
    chosen = tables(method, *settings, privacy=privacy)
    for name, factor in (("less in the 13th digit", 1 - 1e-13), ("more", 1.1)):
        experiment = moved(parse(chosen, source="test"), factor)
        for arrived, cohort in served(grid(chosen), experiment, tmp_path / name):
            assert arrived >= cohort > 0
        assert Ledger.header_of(tmp_path / name / "ledger.jsonl").solved == experiment.privacy_target.solved


@pytest.mark.parametrize("case", [one if one == "records" else pytest.param(one, marks=SLOW) for one in CASES])
def test_less_noise_than_the_target_needs_gets_nothing_from_a_node(grid, tables, case):
    from flwr.app import Message

    from dpfed.engines.flower.conversation import solved_text

    method, settings, privacy = CASES[case]
    chosen = tables(method, *settings, privacy=privacy)
    config, nodes = parse(chosen, source="test"), grid(chosen)
    experiment = build(config)
    own = solved_text(experiment.privacy_target)
    texts = [solved_text(moved(config, factor).privacy_target) for factor in (1 - 1e-6, 0.5)]
    for text in [*texts, "{}", "", "[1]", own.replace(": ", ": -"), own.replace("}", ', "matrix": {}}'), "{" * 999]:
        for asked, kind in ((instruction, "train"), (question, "query.advertise")):
            message = Message(asked(experiment, solved=text), dst_node_id=1000, message_type=kind)
            with pytest.raises(WireError, match="must be at least what this node calibrates"):
                nodes.app(message, nodes.contexts[1000])
    assert not nodes.contexts[1000].state


@SLOW
def test_nodes_that_calibrate_for_themselves_are_found(tmp_path, grid, tables, monkeypatch):
    """Planted: the clip norm of coins differs in its 13th digit, so that no client takes part."""
    from dpfed.engines.flower import client_app

    method, settings, privacy = CASES["coins"]
    chosen = tables(method, *settings, privacy=privacy)
    monkeypatch.setattr(client_app, "_experiment_with_noise", lambda config, message: client_app._experiment_of(config))
    with pytest.raises(WireError, match="a clip norm of"):
        served(grid(chosen), moved(parse(chosen, source="test"), 1 - 1e-13), tmp_path / "run")
