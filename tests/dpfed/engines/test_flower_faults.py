"""Nodes that fail, lie, stutter or keep silent are clients lost, and charged as such; rounds end as in process."""

import random
from dataclasses import replace

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file

from accounting import Aborted, Ledger
from accounting.errors import LedgerError
from accounting.ledger.project import ProjectLedger
from dpfed.aggregation.messages import ProtocolStep
from dpfed.config.tables import parse
from dpfed.errors import ConfigError, RunError, RunInterrupted, WireError
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build

from .served import PRIVATE, SHARES, instruction, lines, serve_run


def changed(**values):
    """A reply with other entries in its upload."""

    def fault(good, message):
        from flwr.app import ConfigRecord

        entries = dict(good.content["upload"]) | values
        good.content["upload"] = ConfigRecord({key: value for key, value in entries.items() if value is not None})
        return [good]

    return fault


def fails(good, message):
    from flwr.app import Error, Message

    return [Message(Error(code=1, reason="out of memory"), reply_to=message)]


def too_long(good, message):
    """Bytes that parse, of a row ten times as long as the clip norm."""
    from dpfed import compress

    payload = compress.from_bytes(good.content["upload"]["payload"])
    longer = 10 * compress.get("dense").decode([payload]) + 1.0
    content = next(iter(compress.get("dense").encode(longer, seed=0))).to_bytes()
    return changed(payload=content)(good, message)


def empty(good, message):
    from flwr.app import Message, RecordDict

    return [Message(RecordDict(), reply_to=message)]


FAULTS = {
    "fails": fails,
    "is silent": lambda good, message: [],
    "answers twice": lambda good, message: [good, good],
    "garbage": changed(payload=random.Random(1).randbytes(2000)),
    "nothing": changed(payload=b""),
    "cut short": lambda good, message: changed(payload=good.content["upload"]["payload"][:-7])(good, message),
    "another type": changed(payload=[1, 2, 3]),
    "another client": changed(client=3),
    "another round": changed(round=7),
    "an entry more": changed(note="hello"),
    "an entry less": changed(payload=None),
    "a number for a flag": changed(inside=1),
    "no record": empty,
    "too long": too_long,
}


@pytest.mark.parametrize("case", sorted(FAULTS))
def test_a_bad_answer_is_a_client_lost(tmp_path, grid, tables, checked, same_run, case):
    """As in process with this client lost in every round: weights, ledger, who arrived."""
    chosen = tables("dp-fedavg", "federation.sampling=fixed", privacy=PRIVATE)
    experiment = build(checked(chosen))
    client = int(experiment.method.sampler.sample(experiment.method.randomness, 0)[2])

    class Lost:
        def draw(self, participants, number):
            return {client: ProtocolStep.UPLOAD} if client in participants else {}

    lost = replace(experiment, method=replace(experiment.method, dropouts=Lost()))
    federation.run(lost, tmp_path / "here")
    outcome = serve_run(grid(chosen, faults={client: FAULTS[case]}), chosen, tmp_path / "there")
    same_run(tmp_path / "here", tmp_path / "there")
    assert lines(tmp_path / "there", "diagnostics.jsonl")[0]["arrived"] == 7
    assert outcome.summary["aborted_rounds"] == 0


@pytest.mark.parametrize("row", [[2**27] * 1024, [2**31 - 1] * 3, [3, 4, 1], [-5, 1]])
def test_integers_beyond_the_bound_are_refused_also_where_their_squares_overflow(grid, row):
    """1024 squares of 2^27 are 2^64, zero in 64 bits."""
    from dpfed.engines.flower.inbox import require_bounded_norm

    require_bounded_norm(torch.tensor([[3, -4, 0]]), 25)
    with pytest.raises(WireError, match="longer than a clipped row"):
        require_bounded_norm(torch.tensor([row]), 25)


def test_too_few_shares_of_noise_end_the_round_without_a_result(tmp_path, grid, tables):
    """No release, no charge, the model stays; the ledger says so."""
    chosen = tables("dp-fedavg", "aggregation.tolerance=0.1", privacy=SHARES)
    nodes = grid(chosen, faults=dict.fromkeys(range(10), fails))
    outcome = serve_run(nodes, chosen, tmp_path / "run")
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert ledger.releases == []
    assert all(isinstance(entry, Aborted) for entry in ledger.entries)
    assert len(ledger.entries) == outcome.summary["aborted_rounds"] == 2
    assert outcome.summary["epsilon"] == 0.0
    experiment = build(parse(chosen, source="test"))
    start, weights = experiment.start.broadcast, load_file(tmp_path / "run" / "model.safetensors")
    for block in experiment.model.layout:
        assert torch.equal(weights[block.name].flatten(), start[block.start : block.stop])


def test_missing_shares_are_charged_with_what_arrived(tmp_path, grid, tables):
    shares = {**PRIVATE, "placement": "clients", "missing_shares": "charged"}
    chosen = tables(
        "dp-fedavg", "federation.sampling=all", "federation.cohort=20", "aggregation.tolerance=0.2", privacy=shares
    )
    serve_run(grid(chosen, faults={4: fails, 9: fails}), chosen, tmp_path / "run")
    for release in Ledger.read(tmp_path / "run" / "ledger.jsonl").releases:
        assert release.detail["shares"] == 18
        assert release.mechanism.noise_multiplier == pytest.approx(2.0 * (18 / 20) ** 0.5)


def dying(grid, *, answered):
    """Nodes whose server ends at its first request to train, before or after it is answered."""

    class Dies(grid):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            ends = messages[0].metadata.message_type == "train"
            replies = super().send_and_receive(messages, timeout=timeout) if answered or not ends else []
            if ends:
                raise KeyboardInterrupt
            return replies

    return Dies


@pytest.mark.parametrize(
    ("privacy", "charged"), [({**PRIVATE, "release": "uploads"}, 1), (PRIVATE, 0)], ids=["every upload", "the sum"]
)
def test_uploads_that_tell_by_themselves_are_charged_before_anybody_is_asked(tmp_path, grid, tables, privacy, charged):
    chosen = tables("dp-fedavg", privacy=privacy)
    refused(KeyboardInterrupt, "", serve_run, dying(grid, answered=False)(chosen), chosen, tmp_path / "run")
    assert len(Ledger.read(tmp_path / "run" / "ledger.jsonl").releases) == charged


@pytest.mark.parametrize(("randomness", "charged"), [("secure", 3), ("simulated", 2)])
def test_a_round_that_was_cut_off_stays_charged_if_its_coins_are_drawn_anew(
    tmp_path, grid, tables, randomness, charged
):
    """Uploads may have been seen before the server died; nodes asked again toss again, unless from the seed."""
    coins = {"clip_norm": 0.5, "accountant": "rdp", "release": "uploads"}
    chosen = tables("fedpm", f"run.randomness={randomness}", privacy=coins)
    refused(KeyboardInterrupt, "", serve_run, dying(grid, answered=True)(chosen), chosen, tmp_path / "run")
    first = Ledger.read(tmp_path / "run" / "ledger.jsonl").releases
    assert [one.round for one in first] == [0]
    serve_run(grid(chosen), chosen, tmp_path / "run", resume=True)
    releases = Ledger.read(tmp_path / "run" / "ledger.jsonl").releases
    assert releases[0] == first[0]
    assert [one.round for one in releases] == sorted([0] * (charged - 1) + [1])


def test_a_project_is_for_its_own_clients(tmp_path, grid, tables):
    """Data divided anew under one budget."""
    project = ProjectLedger.create(tmp_path / "p.jsonl", clients=20, epsilon=50.0, delta=1e-3)
    for name, seed in (("first", "run.seed=0"), ("second", "run.seed=1")):
        chosen = tables("dp-fedavg", seed, privacy=PRIVATE)
        serve_run(grid(chosen), chosen, tmp_path / name, project=project)
    chosen = tables("dp-fedavg", "data.partition_seed=1", privacy=PRIVATE)
    with pytest.raises(LedgerError, match="is for the clients of fingerprint"):
        serve_run(grid(chosen), chosen, tmp_path / "third", project=project)


def test_a_run_that_is_asked_to_end_ends_after_its_round_and_goes_on(tmp_path, grid, tables):
    chosen = tables("dp-fedavg", "federation.rounds=4", privacy=PRIVATE)
    serve_run(grid(chosen), chosen, tmp_path / "whole")
    with pytest.raises(RunInterrupted, match="interrupted after round 2 of 4; all finished rounds are saved"):
        serve_run(grid(chosen), chosen, tmp_path / "run", stop=iter([False, False, True]).__next__)
    assert len(Ledger.read(tmp_path / "run/ledger.jsonl").releases) == 2
    serve_run(grid(chosen), chosen, tmp_path / "run", resume=True)
    assert (tmp_path / "run/ledger.jsonl").read_text() == (tmp_path / "whole/ledger.jsonl").read_text()
    assert (tmp_path / "run/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_nobody_is_asked_once_the_budget_is_spent(tmp_path, grid, tables):
    chosen = tables("dp-fedavg", "federation.rounds=4", privacy=PRIVATE)
    whole = serve_run(grid(chosen), chosen, tmp_path / "whole")
    chosen = tables("dp-fedavg", "federation.rounds=4", privacy={**PRIVATE, "epsilon": whole.metrics[1]["epsilon"]})
    nodes = grid(chosen)
    outcome = serve_run(nodes, chosen, tmp_path / "run")
    assert (outcome.summary["rounds"], outcome.summary["stopped_by"]) == (2, "budget")
    assert [len(asked) > 0 for asked, _ in nodes.rounds if asked] == [True, True]


def test_nodes_with_another_configuration_are_refused(tmp_path, grid, tables):
    chosen = tables("dp-fedavg", privacy=PRIVATE)
    with pytest.raises(RunError, match=r"no node has joined.*another configuration"):
        serve_run(grid(tables("dp-fedavg", privacy={**PRIVATE, "clip_norm": 5.0})), chosen, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_client_without_the_servers_configuration_sends_nothing(grid, tables, checked):
    """Also if the server is careless: the client looks for itself."""
    from flwr.app import Message

    chosen = tables("dp-fedavg", privacy=PRIVATE)
    nodes, asked = grid(chosen), instruction(build(checked(chosen)), clip_norm=50.0, fingerprint="other")
    message = Message(asked, dst_node_id=1000, message_type="train")
    refused(ConfigError, "not the server's", nodes.app, message, nodes.contexts[1000])


def test_clients_without_a_node_and_nodes_without_a_place(tmp_path, grid, tables):
    chosen = tables("dp-fedavg", "federation.sampling=all", "federation.cohort=20", privacy=PRIVATE)
    nodes = grid(chosen)
    nodes.contexts[999].node_config["partition-id"] = 0  # client 1's node takes client 0's name
    serve_run(nodes, chosen, tmp_path / "run")
    assert [one["arrived"] for one in lines(tmp_path / "run", "diagnostics.jsonl")] == [19, 19]
    nodes.contexts[998].node_config["partition-id"] = 20
    with pytest.raises(ConfigError, match="partition-id=20"):
        nodes.app(_question(998), nodes.contexts[998])


def test_a_node_started_again_waits_for_the_place_of_its_predecessor(tmp_path, grid, tables):
    """Flower knows only after a while that a node is gone; until then there are two of one client, and one counts."""
    from dpfed.engines.flower.directory import NodeDirectory
    from dpfed.engines.flower.settings import agreement_text

    chosen = tables("dp-fedavg", privacy=PRIVATE)
    nodes = grid(chosen)
    again = nodes.clients.pop(997)
    print_ = agreement_text(parse(chosen, source="test"))
    directory = NodeDirectory(nodes, clients=20, fingerprint=print_, patience=0.1)
    directory.wait_for_nodes(more_may_join=True)
    assert directory.node_of(3) is None
    nodes.clients[997] = again
    nodes.clients[5] = 3
    nodes.contexts[5] = nodes.contexts[997]
    directory.ask_new_nodes(timeout=1.0)
    first = directory.node_of(3)
    assert first in (5, 997)
    second = ({5, 997} - {first}).pop()
    directory.ask_new_nodes(timeout=1.0)
    assert directory.node_of(3) == first
    del nodes.clients[first]
    directory.ask_new_nodes(timeout=1.0)
    assert directory.node_of(3) == second


def _question(node):
    from flwr.app import ConfigRecord, Message, RecordDict

    return Message(RecordDict({"config": ConfigRecord()}), dst_node_id=node, message_type="query")


@pytest.mark.parametrize(
    ("method", "settings", "privacy"),
    [
        ("qsgd", (), PRIVATE),
        ("drive", (), PRIVATE),
        ("dp-fedavg", (), SHARES),
        ("fedpm", (), {"clip_norm": 0.5, "slots": 15, "delta": 1e-2, "accountant": "rdp"}),
    ],
    ids=["qsgd", "drive", "shares", "coins"],
)
def test_lengths_on_the_wire_tell_nothing_and_are_what_is_counted(tmp_path, grid, tables, method, settings, privacy):
    chosen = tables(method, *settings, privacy=privacy)
    nodes = grid(chosen)
    outcome = serve_run(nodes, chosen, tmp_path / "run")
    uploads = [reply.content["upload"] for _, replies in nodes.rounds for reply in replies]
    lengths = {len(one["payload"]) + len(one["padding"]) for one in uploads}
    assert len(lengths) == 1
    counted = outcome.summary["uplink_bytes_per_client_round"]
    assert 0 <= lengths.pop() - counted < 8  # bits of entries fill whole bytes, plane by plane


@pytest.mark.parametrize("privacy", [SHARES, {**PRIVATE, "release": "uploads"}], ids=["shares", "uploads"])
def test_what_the_noise_does_not_cover_stays_with_the_client(tmp_path, grid, tables, privacy):
    """Whether a row was inside the clip norm is not told with an upload that carries its own noise."""
    chosen = tables("dp-fedavg", privacy=privacy)
    nodes = grid(chosen)
    serve_run(nodes, chosen, tmp_path / "run")
    for _, replies in nodes.rounds:
        assert all(set(one.content["upload"]) == {"client", "round", "payload", "padding", "head"} for one in replies)
    for one in lines(tmp_path / "run", "diagnostics.jsonl"):
        assert [one[key] for key in ("clipped", "largest_norm", "noise", "noise_known")] == [None, None, None, False]


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(
    ("method", "privacy"),
    [
        ("dp-fedavg", PRIVATE),
        ("dp-fedavg", SHARES),
        ("qsgd", None),
        ("fedsparsify", None),
        ("fedpm", None),
        ("fedpm", {"clip_norm": 0.5, "slots": 15, "delta": 1e-2, "accountant": "rdp"}),
    ],
)
def test_forged_bytes_are_refused_or_are_a_row(tables, checked, method, privacy):
    """Flipped, cut and lengthened messages: WireError and nothing else, or finite rows of the agreed size."""
    import numpy as np

    from dpfed.aggregation.ranks import Task
    from dpfed.stages.chain import client_halves

    experiment = build(checked(tables(method, privacy=privacy)))
    stages, ids = experiment.method.stages, np.array([3])
    task = Task(state=experiment.start, cohort=ids, participants=ids)
    now = experiment.method.announce(task, experiment.seeds)
    ((_, rows),) = experiment.method.updates(ids, now, experiment.seeds, at_once=None)
    (good,) = stages.wire.messages(client_halves(stages.before_wire, rows, ids, now), ids, now)
    chance, refused = random.Random(5), 0
    for _ in range(200):
        forged = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            forged[chance.randrange(len(forged))] ^= 1 << chance.randrange(8)
        forged = forged[: chance.choice([len(forged), chance.randrange(len(forged))])] + chance.randbytes(
            chance.choice([0, 0, 5])
        )
        try:
            read = stages.wire.read([bytes(forged)], ids, now)
        except WireError:
            refused += 1
        else:
            arrived = client_halves(stages.after_wire, read, ids, now)
            assert arrived.shape == (1, stages.width)
            assert bool(arrived.double().isfinite().all())
    assert refused > 60


def test_what_is_not_built_is_refused(tmp_path, grid, tables):
    chosen = tables("dp-fedavg", "aggregation.kind=masked", privacy=SHARES)
    with pytest.raises(ConfigError, match="shortcut for one process"):
        serve_run(grid(tables("dp-fedavg", privacy=PRIVATE)), chosen, tmp_path / "run")
