"""The whole protocol over Flower's messages: the sums of the protocol in process, and the server never holds a row."""

import json

import pytest
import torch
from safetensors.torch import load_file

from accounting import Aborted, Ledger
from dpfed import federation
from dpfed.build import build
from dpfed.config import parse
from dpfed.errors import WireError

SHARES = {
    "clip_norm": 0.5,
    "noise_multiplier": 2.0,
    "accountant": "rdp",
    "noise": "discrete-gaussian",
    "placement": "clients",
    "adjacency": "zero-out",
}
SECURE = ("aggregation.kind=protocol",)
CASES = {
    "shares": ("dp-fedavg", (), SHARES),
    "noise at the server": ("dp-fedavg", (), {**SHARES, "placement": "server"}),
    "not private": ("fedavg", ("aggregation.clip_norm=1.0",), None),
    "coins": ("fedpm", (), {"clip_norm": 0.5, "slots": 15, "accountant": "rdp"}),
    "symbols": ("fedmrns", ("method.shared=true",), None),
    "lost at every step": (
        "fed-smp-randk",
        (
            "method.keep=0.3",
            "federation.sampling=fixed",
            "federation.cohort=14",
            "aggregation.lost={advertise=1, share=1, upload=1, unmask=1, late=1}",
            "aggregation.threshold=0.6",
        ),
        SHARES,
    ),
}


def serve(grid, tables, out, **settings):
    from dpfed.engines.flower.server_app import serve

    return serve(grid, build(parse(tables, source="test")), out, patience=0.5, **settings)


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_protocol_over_messages_is_the_protocol_in_process(tmp_path, grid, tables, checked, case):
    """Integers add up exactly, so the models are the same bit for bit."""
    method, settings, privacy = CASES[case]
    chosen = tables(method, *SECURE, *settings, privacy=privacy)
    here = federation.run(build(checked(chosen)), tmp_path / "here")
    nodes = grid(chosen)
    there = serve(nodes, chosen, tmp_path / "there")
    for key in ("epsilon", "server_epsilon", "aborted_rounds", "rounds", "uplink_megabytes_total", "aggregation"):
        assert there.summary[key] == here.summary[key], key
    assert any("one process" in note or "this process" in note for note in here.summary["not_protected"])
    assert any("other hands" in note for note in there.summary["not_protected"])
    assert not any("process" in note for note in there.summary["not_protected"])
    rounds = [lines(tmp_path / one, "diagnostics.jsonl") for one in ("here", "there")]
    for before, after in zip(*rounds, strict=True):
        assert [after[key] for key in ("arrived", "participants", "divisor")] == [
            before[key] for key in ("arrived", "participants", "divisor")
        ]
    weights, others = (load_file(tmp_path / one / "model.safetensors") for one in ("here", "there"))
    assert all(torch.equal(others[name], values) for name, values in weights.items())
    for context in nodes.contexts.values():
        assert "dpfed.secure-sum" not in context.state or "lost" in case


def test_no_message_to_the_server_holds_a_row(tmp_path, grid, tables):
    """The same client, round and row: unmasked it is the same bytes twice, as the server gets it never."""
    import numpy as np

    from dpfed.ranks import Task
    from dpfed.round import open_uploads

    chosen = tables("dp-fedavg", *SECURE, privacy=SHARES)
    seen = []
    for name in ("one", "two"):
        nodes = grid(chosen)
        serve(nodes, chosen, tmp_path / name)
        seen.append({reply.content["upload"]["client"]: reply.content["upload"] for reply in nodes.rounds[0][1]})
    plain = build(parse(tables("dp-fedavg", privacy=SHARES), source="test"))
    group = np.array(sorted(seen[0]))
    task = Task(state=plain.start, cohort=group, participants=group)
    uploading = open_uploads(task, plain.parts, seeds=plain.seeds)
    _, bare = uploading.messages(uploading.trained(group), group)
    assert uploading.messages(uploading.trained(group), group)[1] == bare
    for client, row in zip(group.tolist(), bare, strict=True):
        payloads = [one[client]["payload"] for one in seen]
        assert payloads[0] != payloads[1]
        assert all(row not in payload for payload in payloads)
        same = np.frombuffer(payloads[0][-len(row) :], np.uint8) == np.frombuffer(row, np.uint8)
        assert same.mean() < 0.05  # 1/256 of the bytes agree by chance


@pytest.mark.parametrize("kind", ["garbage", "fails", "another client's"])
def test_a_bad_upload_is_a_client_lost_and_its_masks_come_off(tmp_path, grid, tables, kind):
    def fault(good, message):
        from flwr.app import ConfigRecord, Error, Message

        if kind == "fails":
            return [Message(Error(code=1, reason="gone"), reply_to=message)]
        entries = dict(good.content["upload"])
        content = b"x" * 900 if kind == "garbage" else entries["payload"][:21] + bytes(8) + entries["payload"][29:]
        good.content["upload"] = ConfigRecord({**entries, "payload": content})
        return [good]

    settings = (*SECURE, "federation.sampling=all", "federation.cohort=20", "aggregation.tolerance=0.2")
    chosen = tables("dp-fedavg", *settings, privacy=SHARES)
    outcome = serve(grid(chosen, faults={7: fault, 11: fault}), chosen, tmp_path / "run")
    assert [one["arrived"] for one in lines(tmp_path / "run", "diagnostics.jsonl")] == [18, 18]
    assert outcome.summary["aborted_rounds"] == 0
    assert outcome.summary["test_accuracy"] is not None
    # A mask left in the sum would be a move of half the ring in every coordinate.
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert len(ledger.releases) == 2
    moved = load_file(tmp_path / "run" / "model.safetensors")
    start = build(parse(chosen, source="test"))
    for block in start.model.layout:
        before = start.start.broadcast[block.start : block.stop]
        assert float((moved[block.name].flatten() - before).abs().max()) < 2.0


def test_too_few_uploads_end_the_round_before_anything_is_unmasked(tmp_path, grid, tables):
    asked = []

    class Watched(grid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            asked.extend(message.metadata.message_type for message in messages)
            return super().send_and_receive(messages, timeout=timeout)

    settings = (*SECURE, "federation.sampling=all", "federation.cohort=20", "aggregation.tolerance=0.1")
    chosen = tables("dp-fedavg", *settings, privacy=SHARES)
    nodes = Watched(chosen, faults=dict.fromkeys(range(5), lambda good, message: []))
    outcome = serve(nodes, chosen, tmp_path / "run")
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert ledger.releases == []
    assert all(isinstance(entry, Aborted) for entry in ledger.entries)
    assert outcome.summary["aborted_rounds"] == 2
    assert "query.share" in asked
    assert "query.unmask" not in asked


def test_a_client_uploads_once_a_round_and_unmasks_once(grid, tables):
    """Whatever a server asks for again: fresh noise on the same row, or the other secret of a neighbour."""
    from flwr.app import ConfigRecord, Message, RecordDict

    chosen = tables("dp-fedavg", *SECURE, privacy=SHARES)
    nodes = grid(chosen)
    sent = []
    real = nodes.send_and_receive

    def spy(messages, *, timeout=None):
        messages = list(messages)
        sent.extend(messages)
        return real(messages, timeout=timeout)

    nodes.send_and_receive = spy
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        serve(nodes, chosen, Path(folder) / "run")
    train = next(message for message in sent if message.metadata.message_type == "train")
    unmask = next(message for message in sent if message.metadata.message_type == "query.unmask")
    with pytest.raises(WireError, match="asked for round 0 of 2 after round 1"):
        nodes.app(train, nodes.contexts[train.metadata.dst_node_id])
    with pytest.raises(WireError, match="in no secure sum"):
        nodes.app(unmask, nodes.contexts[unmask.metadata.dst_node_id])
    asked = {**unmask.content["config"], "fingerprint": "other"}
    other = Message(RecordDict({"config": ConfigRecord(asked)}), dst_node_id=999, message_type="query.unmask")
    with pytest.raises(ValueError, match="not the server's"):
        nodes.app(other, nodes.contexts[999])
