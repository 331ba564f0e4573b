"""An exception on a node: its upload is that of an update that is not finite, and no error reply."""

import pytest
import torch

from dpfed.clients import loop
from dpfed.errors import TrainingFailed

from .served import SHARES, serve_run

KINDS = {
    "noise at the server": ("dp-fedavg", ("federation.sampling=all",), {"clip_norm": 1.0, "noise_multiplier": 2.0}),
    "coins": ("fedpm", ("federation.sampling=all", "federation.cohort=20"), None),
    "shares under the protocol": (
        "dp-fedavg", ("federation.sampling=all", "federation.cohort=20", "aggregation.kind=protocol"), SHARES,
    ),
}  # fmt: skip


@pytest.fixture
def broken(monkeypatch):
    """Make every step of one client's training call `instead`."""

    def put(client, instead):
        take = loop._PlainStep.take_step

        def taken(self, place, number, batch):
            if int(self._task.clients[place]) == client:
                instead(self._walk)
                return
            take(self, place, number, batch)

        monkeypatch.setattr(loop._PlainStep, "take_step", taken)

    return put


def diverge(walk):
    walk.weights.fill_(torch.nan)
    if hasattr(walk, "_scores"):
        walk._scores.fill_(torch.nan)


def fail(walk):
    raise LookupError("diagnosis 77")


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_that_raises_sends_what_a_node_that_diverges_sends(kind, grid, tables, tmp_path, broken, capfd):
    method, settings, privacy = KINDS[kind]
    given = tables(method, "federation.rounds=1", "local.strategy=loop", *settings, privacy=privacy)
    replies = []
    for instead in (diverge, fail):
        nodes = grid(given)
        broken(3, instead)
        serve_run(nodes, given, tmp_path / instead.__name__)
        sent = {reply.metadata.src_node_id: reply for _, some in nodes.rounds for reply in some}
        assert not any(reply.has_error() for reply in sent.values())
        if 997 in sent:
            replies.append(dict(sent[997].content.config_records["upload"]))
    assert len(replies) == 2
    if kind == "shares under the protocol":  # masked, with fresh keys
        replies = [{**one, "payload": len(one["payload"])} for one in replies]
    assert replies[0] == replies[1]
    assert "diagnosis" not in "".join(capfd.readouterr())


def test_samples_that_fail_to_load_in_a_round_are_an_update_that_is_not_finite(grid, tables, tmp_path):
    local = {"learning_rate": 0.3, "steps": 2, "batch_size": 10}
    given = tables("dp-fedavg", "data.partition=nodes", "federation.rounds=1", "federation.sampling=all", local=local,
                   privacy={"clip_norm": 1.0, "noise_multiplier": 2.0})  # fmt: skip
    asked = dict.fromkeys(range(20), 0)

    def load_data(context):
        client = int(context.node_config["partition-id"])
        asked[client] += 1
        if client == 3 and asked[client] > 1:
            raise LookupError("diagnosis 77")
        held = torch.rand(10, 1, 8, 8, generator=torch.Generator().manual_seed(client))
        return held.numpy(), (held[:, 0, 0, 0] > 0.5).long().numpy()

    nodes = grid(given, load_data=load_data)
    serve_run(nodes, given, tmp_path / "run")
    (replies,) = [some for _, some in nodes.rounds]
    told = {one.metadata.src_node_id: dict(one.content.config_records["upload"]) for one in replies}
    assert {node for node, upload in told.items() if not upload["finite"]} == {997}


def test_with_on_error_raise_a_node_fails_as_before(grid, tables, tmp_path, broken):
    given = tables("dp-fedavg", "federation.rounds=1", "run.on_error=raise", "local.strategy=loop",
                   "federation.sampling=all", privacy={"clip_norm": 1.0, "noise_multiplier": 2.0})  # fmt: skip
    broken(3, fail)
    with pytest.raises((LookupError, TrainingFailed)):
        serve_run(grid(given), given, tmp_path / "run")
