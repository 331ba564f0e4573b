"""The whole protocol over Flower's messages: the sums of the protocol in process, and the server never holds a row."""

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

from accounting import Aborted, Ledger
from dpfed.audit.run import audit_run
from dpfed.config.tables import parse
from dpfed.errors import WireError
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from .served import SHARES, lines, serve_run

SECURE = ("aggregation.kind=protocol",)
CASES = {
    "shares": ("dp-fedavg", (), SHARES),
    "noise at the server": ("dp-fedavg", (), {**SHARES, "placement": "server"}),
    "not private": ("fedavg", ("aggregation.clip_norm=1.0", "local.strategy=loop"), None),
    "coins": ("fedpm", (), {"clip_norm": 0.5, "slots": 15, "delta": 1e-2, "accountant": "rdp"}),
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


@pytest.mark.parametrize("case", sorted(CASES))
def test_the_protocol_over_messages_is_the_protocol_in_process(tmp_path, grid, tables, checked, case):
    """Integers add up exactly, so the models are the same bit for bit."""
    method, settings, privacy = CASES[case]
    chosen = tables(method, *SECURE, *settings, privacy=privacy)
    here = federation.run(build(checked(chosen)), tmp_path / "here")
    nodes = grid(chosen)
    there = serve_run(nodes, chosen, tmp_path / "there")
    for key in ("epsilon", "server_epsilon", "aborted_rounds", "rounds", "uplink_megabytes_total", "aggregation"):
        assert there.summary[key] == here.summary[key], key
    assert any("one process" in note or "this process" in note for note in here.summary["not_protected"])
    assert any("other hands" in note for note in there.summary["not_protected"])
    assert not any("process" in note for note in there.summary["not_protected"])
    if privacy is not None:  # an honest run on nodes: nothing in its files speaks against it
        found = audit_run(tmp_path / "there", confidence=1 - 1e-6)
        assert [one for one in found.checks if one.passed is False] == []
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

    from dpfed.aggregation.ranks import Task
    from dpfed.stages.chain import client_halves

    chosen = tables("dp-fedavg", *SECURE, privacy=SHARES)
    seen = []
    for name in ("one", "two"):
        nodes = grid(chosen)
        serve_run(nodes, chosen, tmp_path / name)
        seen.append({reply.content["upload"]["client"]: reply.content["upload"] for reply in nodes.rounds[0][1]})
    plain = build(parse(tables("dp-fedavg", privacy=SHARES), source="test"))
    stages, ids = plain.method.stages, np.array(sorted(seen[0]))
    now = plain.method.announce(Task(state=plain.start, cohort=ids, participants=ids), plain.seeds)

    def messages():
        ((_, rows),) = plain.method.updates(ids, now, plain.seeds, at_once=None)
        return stages.wire.messages(client_halves(stages.before_wire, rows, ids, now), ids, now)

    bare = messages()
    assert messages() == bare
    for client, row in zip(ids.tolist(), bare, strict=True):
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
    outcome = serve_run(grid(chosen, faults={7: fault, 11: fault}), chosen, tmp_path / "run")
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
    settings = (*SECURE, "federation.sampling=all", "federation.cohort=20", "aggregation.tolerance=0.1")
    chosen = tables("dp-fedavg", *settings, privacy=SHARES)
    nodes = grid(chosen, faults=dict.fromkeys(range(5), lambda good, message: []))
    outcome = serve_run(nodes, chosen, tmp_path / "run")
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert ledger.releases == []
    assert all(isinstance(entry, Aborted) for entry in ledger.entries)
    assert outcome.summary["aborted_rounds"] == 2
    asked = {message.metadata.message_type for message in nodes.messages}
    assert "query.share" in asked
    assert "query.unmask" not in asked


def test_a_client_uploads_once_a_round_and_unmasks_once(tmp_path, grid, tables):
    """Whatever a server asks for again: fresh noise on the same row, or the other secret of a neighbour."""
    from flwr.app import ConfigRecord, Message, RecordDict

    chosen = tables("dp-fedavg", *SECURE, privacy=SHARES)
    nodes = grid(chosen)
    serve_run(nodes, chosen, tmp_path / "run")
    train, unmask = (
        next(message for message in nodes.messages if message.metadata.message_type == kind)
        for kind in ("train", "query.unmask")
    )
    context = nodes.contexts[train.metadata.dst_node_id]
    refused(WireError, "asked for round 0 of 2 after round 1", nodes.app, train, context)
    refused(WireError, "in no secure sum", nodes.app, unmask, nodes.contexts[unmask.metadata.dst_node_id])
    asked = {**unmask.content["config"], "fingerprint": "other"}
    other = Message(RecordDict({"config": ConfigRecord(asked)}), dst_node_id=999, message_type="query.unmask")
    refused(ValueError, "not the server's", nodes.app, other, nodes.contexts[999])


def masks_of_rounds(nodes, chosen, folder, monkeypatch):
    """By round: the seeds of the masks that its clients have put on their rows."""
    from dpfed.aggregation import client

    seeds, whole = {}, client.apply_masks

    def apply(words, masks):
        seeds.setdefault(len(nodes.rounds), []).extend(mask.seed for mask in masks)
        whole(words, masks)

    with monkeypatch.context() as patch:
        patch.setattr(client, "apply_masks", apply)
        serve_run(nodes, chosen, folder)
    return seeds


def reused(seeds, uploads=8):
    """How many seeds are missing from one for each client and pair in each round, all different."""
    expected = len(seeds) * (uploads + uploads * (uploads - 1) // 2)
    return expected - len({seed for of_round in seeds.values() for seed in of_round})


@pytest.mark.parametrize("fault", [None, "own seed", "keys and session"])
def test_masks_are_new_in_every_round(tmp_path, grid, tables, monkeypatch, fault):
    """And with one secret for all rounds, planted, they are found not to be."""
    from types import SimpleNamespace

    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    from dpfed.aggregation import client
    from dpfed.aggregation.messages import Agreement

    chosen = tables(
        "dp-fedavg", *SECURE, "federation.sampling=all", "federation.clients=8", "federation.rounds=3", privacy=SHARES
    )
    nodes = grid(chosen)
    if fault == "own seed":
        monkeypatch.setattr(client, "secrets", SimpleNamespace(token_bytes=lambda size: b"\x07" * size))
    if fault == "keys and session":
        made, plain = iter(range(10_000)), Agreement.__init__
        keys = SimpleNamespace(
            generate=lambda: X25519PrivateKey.from_private_bytes(bytes([1 + next(made) % 250]) * 32),
            from_private_bytes=X25519PrivateKey.from_private_bytes,
        )
        monkeypatch.setattr(client, "X25519PrivateKey", keys)
        monkeypatch.setattr(Agreement, "__init__", lambda self, **of: plain(self, **{**of, "session": bytes(16)}))
        real = nodes.send_and_receive

        def send(messages, *, timeout=None):
            """Every round's clients make their keys anew; here they make the same ones."""
            nonlocal made
            messages = list(messages)
            if messages and messages[0].metadata.message_type == "query.advertise":
                made = iter(range(10_000))
            return real(messages, timeout=timeout)

        nodes.send_and_receive = send
    seeds = masks_of_rounds(nodes, chosen, tmp_path / "run", monkeypatch)
    assert len(seeds) == 3
    assert (reused(seeds) > 0) == (fault is not None)


def test_a_client_that_ignores_its_bound_moves_a_sum_that_nobody_can_look_into(tmp_path, grid, tables, monkeypatch):
    """What SECURITY.md says of accuracy under the protocol; a bound that is checked would make this fail."""
    import numpy as np

    from dpfed.compress.fixed_point import pack_row, unpack_row
    from dpfed.engines.flower import client_app

    whole = client_app.send_masked_row

    def hostile(experiment, client, number, message, payload, context):
        if client == 3:
            bits = experiment.method.aggregation.bits
            words = unpack_row(memoryview(payload), experiment.method.stages.width, bits)
            moved = words.astype(np.uint32) + (1 << bits - 3)
            payload = pack_row((moved % (1 << bits)).astype(words.dtype), bits)
        return whole(experiment, client, number, message, payload, context)

    settings = (*SECURE, "federation.sampling=all", "federation.cohort=20", "federation.rounds=1")
    chosen = tables("dp-fedavg", *settings, privacy=SHARES)
    moved = []
    for name in ("honest", "hostile"):
        serve_run(grid(chosen), chosen, tmp_path / name)
        weights = load_file(tmp_path / name / "model.safetensors")
        moved.append(torch.cat([weights[key].flatten() for key in sorted(weights)]))
        monkeypatch.setattr(client_app, "send_masked_row", hostile)
    assert float((moved[1] - moved[0]).norm()) > 5 * SHARES["clip_norm"] / 20
