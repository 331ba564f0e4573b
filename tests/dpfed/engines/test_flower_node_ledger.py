"""Ledgers of nodes that run an app of `dpfed deploy`: in this process, and as two SuperNodes that are killed."""

from collections import Counter

import pytest
from refusals import refused

from accounting import Ledger
from accounting.errors import AccountingError
from accounting.gaussian import smallest_epsilon
from dpfed.config.tables import parse
from dpfed.engines.node_ledger import NodeLedger
from dpfed.errors import DpfedError
from dpfed.runs.experiment import build
from dpfed.runs.loop import Run

from .served import lines, serve_run

pytest.importorskip("flwr", reason="flwr is not installed: make test-flower")

SECURE = ("run.randomness=secure", "federation.clients=4", "federation.cohort=2", "federation.rounds=3")
NOISE = {"clip_norm": 0.5, "noise_multiplier": 4.0, "noise": "discrete-gaussian"}
SHARES = {**NOISE, "placement": "clients", "adjacency": "zero-out"}
RECORDS = ("local.record.clip_norm=1.0", "local.record.noise_multiplier=4.0", "local.record.noise=discrete-gaussian")
DELTA = 1e-5


class Ended(Exception):
    """End of the server, in a round whose uploads have been sent."""


@pytest.fixture
def nodes(grid, tmp_path):
    """`nodes(tables, {client: epsilon})`: nodes of this process, each with a ledger; errors are answers."""

    class Nodes(grid):
        def __init__(self, tables, budgets, ends_in=None):
            super().__init__(tables)
            self.ends_in, self.sent, self.refused = ends_in, [], []
            for node, client in self.clients.items():
                path = str(tmp_path / f"{client}" / "node.jsonl")
                own = {"ledger": path, "epsilon": budgets[client], "delta": DELTA} if client in budgets else {}
                self.contexts[node].node_config |= own

        def _good(self, message, context):
            from flwr.app import Error, Message

            client = context.node_config["partition-id"]
            try:
                reply = self.app(message, context)
            except (DpfedError, AccountingError) as error:
                self.refused.append((client, message.metadata.message_type, str(error)))
                return Message(Error(code=1, reason=str(error)), reply_to=message)
            if message.metadata.message_type == "train":
                upload = reply.content["upload"]
                self.sent.append((client, upload["round"], upload["payload"]))
                if self.ends_in == len(self.sent):
                    raise Ended
            return reply

    return Nodes


def charged(tmp_path, client, name="node.jsonl"):
    return [one.round for one in Ledger.read(tmp_path / f"{client}" / name).releases]


def enough_for(rounds):
    """Budget for this number of unsampled rounds of noise 4, and the filter's reserve."""
    return smallest_epsilon(0.99 * DELTA, mu=rounds**0.5 / 4) * 1.05


def test_answered_rounds_are_charged_without_amplification(tmp_path, tables, nodes):
    chosen = tables("dp-fedavg", *SECURE, privacy=NOISE)
    here = nodes(chosen, dict.fromkeys(range(4), enough_for(3)) | {1: enough_for(1)})
    serve_run(here, chosen, tmp_path / "run")
    assert [one.round for one in Ledger.read(tmp_path / "run" / "ledger.jsonl").releases] == [0, 1, 2]
    sent = Counter(client for client, _, _ in here.sent)
    assert [len(charged(tmp_path, client)) for client in range(4) if sent[client]] == [sent[c] for c in sorted(sent)]
    assert sent[1] <= 1
    for line in Ledger.read(tmp_path / f"{max(sent)}" / "node.jsonl").releases:
        assert line.mechanism.to_dict()["kind"] == "discrete-gaussian", "without its sampling"
        assert line.detail["run"] == Ledger.read(tmp_path / "run" / "ledger.jsonl").identity


@pytest.mark.parametrize("kind", ["plain", "protocol"])
def test_noise_in_shares_is_charged_whole_or_refused_before_masks(tmp_path, tables, nodes, kind):
    more = (f"aggregation.kind={kind}", "federation.sampling=all", "federation.cohort=4", "aggregation.tolerance=0.5")
    chosen = tables("dp-fedavg", *SECURE, *more, privacy=SHARES | {"missing_shares": "charged"})
    here = nodes(chosen, {0: enough_for(2), 1: 2 * enough_for(3)})
    serve_run(here, chosen, tmp_path / "run")
    assert {client for client, _, _ in here.sent} == {1, 2, 3}
    assert {(client, step) for client, step, _ in here.refused} == {
        (0, "train" if kind == "plain" else "query.advertise")
    }
    assert all("before round 1" in why for _, _, why in here.refused)
    assert charged(tmp_path, 1) == [0, 1, 2]
    assert charged(tmp_path, 0) == []


def test_records_are_charged_for_every_upload(tmp_path, tables, nodes):
    chosen = tables("fedavg", *SECURE, *RECORDS, "federation.sampling=all", "federation.cohort=4")
    experiment = build(parse(chosen, source="test"))
    here = nodes(chosen, {0: 50.0})
    serve_run(here, chosen, tmp_path / "run")
    assert charged(tmp_path, 0, "node.jsonl.records") == [0, 1, 2]
    assert not (tmp_path / "0" / "node.jsonl").exists(), "no promise about the client"
    own = Ledger.read(tmp_path / "0" / "node.jsonl.records").releases
    server = Ledger.read(tmp_path / "run" / "ledger.jsonl").releases
    for one, all_clients in zip(own, server, strict=True):
        (steps,) = [step for step in all_clients.steps if 0 in step.clients]
        assert (one.steps[0].mechanism, one.steps[0].count) == (steps.mechanism, steps.count)
    assert experiment.privacy_target.unit == "record"


@pytest.mark.parametrize(
    ("more", "privacy", "word"),
    [(("run.randomness=simulated",), NOISE, "cannot be repeated"), ((), None, "cannot be repeated")],
)
def test_an_app_without_charges_of_rounds_is_refused_at_the_introduction(tmp_path, tables, nodes, more, privacy, word):
    chosen = tables("dp-fedavg" if privacy else "fedavg", *SECURE, *more, privacy=privacy)
    here = nodes(chosen, {0: 9.0})
    serve_run(here, chosen, tmp_path / "run")
    assert {(client, step) for client, step, _ in here.refused} == {(0, "query")}
    assert word in here.refused[0][2]
    assert 0 not in {client for client, _, _ in here.sent}


def test_a_resumed_round_sends_the_stored_upload_and_is_charged_once(tmp_path, tables, nodes):
    """The server ends in round 2 after three of four uploads; nodes start anew, too."""
    more = ("federation.sampling=all", "federation.cohort=4")
    chosen, budgets = tables("dp-fedavg", *SECURE, *more, privacy=NOISE), dict.fromkeys(range(4), enough_for(3))
    first = nodes(chosen, budgets, ends_in=7)
    refused(Ended, "", serve_run, first, chosen, tmp_path / "run")
    again = nodes(chosen, budgets)
    serve_run(again, chosen, tmp_path / "run", resume=True)
    assert [one.round for one in Ledger.read(tmp_path / "run" / "ledger.jsonl").releases] == [0, 1, 2]
    uploads = {(client, number): payload for client, number, payload in first.sent}
    repeated = [(client, number) for client, number, _ in again.sent if (client, number) in uploads]
    assert len(repeated) == 3
    assert all(
        uploads[client, number] == payload
        for client, number, payload in again.sent
        if number == 1 and (client, 1) in uploads
    )
    assert [charged(tmp_path, client) for client in range(4)] == [[0, 1, 2]] * 4
    assert [one["arrived"] for one in lines(tmp_path / "run", "diagnostics.jsonl")] == [4, 4, 4]


def test_a_round_that_the_server_charges_again_is_charged_again(tmp_path, tables, nodes, monkeypatch):
    """The server ends between the charge of round 2 and its checkpoint: its ledger has that round twice."""
    chosen = tables("dp-fedavg", *SECURE, "federation.sampling=all", "federation.cohort=4", privacy=NOISE)
    save = Run._save_round

    def ended(self, done, seconds):
        if done.state.round == 2:
            raise Ended
        save(self, done, seconds)

    monkeypatch.setattr(Run, "_save_round", ended)
    refused(Ended, "", serve_run, nodes(chosen, {0: enough_for(4)}), chosen, tmp_path / "run")
    monkeypatch.undo()
    serve_run(nodes(chosen, {0: enough_for(4)}), chosen, tmp_path / "run", resume=True)
    assert [one.round for one in Ledger.read(tmp_path / "run" / "ledger.jsonl").releases] == [0, 1, 1, 2]
    assert charged(tmp_path, 0) == [0, 1, 2, 3]


def test_a_node_restored_from_an_older_copy_sends_nothing(tmp_path, tables, nodes):
    chosen = tables("dp-fedavg", *SECURE, "federation.sampling=all", "federation.cohort=4", privacy=NOISE)
    folder = tmp_path / "0"

    class Restored(nodes):
        def _good(self, message, context):
            reply = super()._good(message, context)
            if context.node_config["partition-id"] == 0 and message.metadata.message_type == "train":
                if len(self.sent) <= 4:
                    self.copies = {file.name: file.read_bytes() for file in folder.iterdir()}
                elif len(self.sent) <= 8:
                    for name, content in self.copies.items():
                        (folder / name).write_bytes(content)
            return reply

    here = Restored(chosen, {0: enough_for(3)})
    serve_run(here, chosen, tmp_path / "run")
    assert [number for client, number, _ in here.sent if client == 0] == [0, 1]
    assert "copied, or restored" in here.refused[0][2]


def test_the_operator_sees_what_is_left(tmp_path, tables, nodes, capsys):
    from dpfed.cli import status

    chosen = tables("dp-fedavg", *SECURE, "federation.sampling=all", "federation.cohort=4", privacy=NOISE)
    serve_run(nodes(chosen, {0: enough_for(4)}), chosen, tmp_path / "run")
    file = tmp_path / "0" / "node.jsonl"
    report = NodeLedger(file, epsilon=enough_for(4), delta=DELTA).report()["client"]
    assert report["units_left"] == 1
    assert status(["ledger", "show", str(file)]) == 0
    assert "1 of 4 units left" in " ".join(capsys.readouterr().out.split())
