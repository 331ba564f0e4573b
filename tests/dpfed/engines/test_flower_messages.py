"""Flower messages from strangers, in both directions: read, or one documented error; nothing is sent to who lies."""

import math
import os
import random

import pytest
import torch
from refusals import refused

from dpfed.config.tables import parse
from dpfed.errors import ConfigError, DpfedError, WireError
from dpfed.runs.experiment import build

from .served import PRIVATE, SHARES, instruction, question

INPUTS = int(os.environ.get("DPFED_FUZZ_INPUTS", "3000"))
"""Of each kind of message."""
STRANGE = [
    *(0, 1, -1, 2**63 - 1, -(2**63), True, False, 0.0, -0.5, 1e308, math.inf, math.nan, "", "x" * 70_000),
    *(b"", bytes(24), b"\xff" * 2440, [], [1, 2], [0.5], ["a", "b"], [b"a"], [True]),
]


def mutated(content, chance):
    """Some of: entries lost, added, of another value or type; records renamed, added, of another kind."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    records = {name: dict(record) for name, record in content.config_records.items()}
    others = {}
    for _ in range(chance.randint(1, 3)):
        name = chance.choice([*records, "config"])
        entries = records.setdefault(name, {})
        match chance.randrange(9):
            case 0 if entries:
                entries.pop(chance.choice(list(entries)))
            case 1:
                entries[chance.choice(["", "note", "payload", "round"])] = chance.choice(STRANGE)
            case 2:
                records[chance.choice(["", "upload", "answer", "config", "introduction"])] = records.pop(name)
            case 3:
                others["arrays"] = ArrayRecord({"broadcast": Array("float32", (3,), "numpy.ndarray", b"\x93NUMPY")})
            case 4:
                others["metrics"] = MetricRecord({"loss": 1.0})
            case 5 if entries:
                key = chance.choice(list(entries))
                if isinstance(entries[key], bytes) and entries[key]:
                    forged = bytearray(entries[key])
                    forged[chance.randrange(len(forged))] ^= 1 << chance.randrange(8)
                    entries[key] = bytes(forged[: chance.choice([len(forged), chance.randrange(len(forged))])])
            case _ if entries:
                entries[chance.choice(list(entries))] = chance.choice(STRANGE)
    return RecordDict({name: ConfigRecord(entries) for name, entries in records.items()} | others)


def over_the_wire(content):
    """As it arrives: through Flower's own bytes and back."""
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Proto

    return recorddict_from_proto(Proto.FromString(recorddict_to_proto(content).SerializeToString()))


def message(content):
    from flwr.app import Message
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    return Message(over_the_wire(content), dst_node_id=1, message_type="train")


def readers(experiment):
    """By name: a good content, what reads it, and what must hold of what was read."""
    from flwr.app import ConfigRecord, RecordDict

    from dpfed.engines.flower import conversation

    start = experiment.start

    def fixed(one):
        return conversation.read_instruction(one, start=start, clip_moves=False, fingerprint="print")

    def adapted(one):
        return conversation.read_instruction(one, start=start, clip_moves=True, fingerprint="print")

    def sane(read):
        return (
            read.round >= 0
            and 0 < read.clip_norm < math.inf
            and read.broadcast.shape == start.broadcast.shape
            and bool(read.broadcast.isfinite().all())
        )

    known = {"fingerprint": "print", "solved": "{}"}
    asked = instruction(experiment, 3, **known, forwarded=b"abc")
    upload = conversation.UploadMessage(
        client=2, round=3, payload=b"payload", inside=True, outside=False, finite=True
    ).to_content()
    answer = RecordDict({"answer": ConfigRecord({"message": b"abc"})})
    introduction = RecordDict({"introduction": ConfigRecord({"client": 2, "fingerprint": "print"})})
    return {
        "instruction": (asked, fixed, lambda read: sane(read) and read.clip_norm == 0.5),
        "instruction, adaptive": (asked, adapted, sane),
        "upload": (
            upload,
            lambda one: conversation.read_upload(one, client=2, number=3, flags=True),
            lambda read: (read.client, read.round, type(read.inside)) == (2, 3, bool),
        ),
        "question": (
            question(experiment, **known, round=3, message=b"abc"),
            lambda one: conversation.read_question(one, "print"),
            lambda read: type(read[1]) is bytes,
        ),
        "answer": (answer, conversation.read_answer, lambda read: type(read) is bytes),
        "introduction": (
            introduction,
            lambda one: conversation.read_introduction(one, 20),
            lambda read: 0 <= read[0] < 20 and type(read[1]) is str,
        ),
    }


NAMES = ["instruction", "instruction, adaptive", "upload", "question", "answer", "introduction"]


@pytest.mark.parametrize("name", NAMES)
def test_what_strangers_say_is_read_or_refused(grid, tables, name):
    experiment = build(parse(tables("dp-fedavg", privacy=PRIVATE), source="test"))
    good, read, holds = readers(experiment)[name]
    assert holds(read(message(good)))
    chance, read_well, refused = random.Random(NAMES.index(name)), 0, 0
    for _ in range(INPUTS):
        forged = message(mutated(good, chance))
        try:
            assert holds(read(forged)), forged.content
            read_well += 1
        except (WireError, ConfigError) as error:
            assert 10 < len(str(error)) < 2000
            refused += 1
    assert refused > INPUTS / 2
    assert read_well > 0


def test_a_clip_norm_that_the_noise_is_not_for_and_weights_that_are_not_finite_are_refused(grid, tables):
    """A server that names a larger clip norm would have a longer row under the configuration's noise."""
    experiment = build(parse(tables("dp-fedavg", privacy=PRIVATE), source="test"))
    good, read, _ = readers(experiment)["instruction"]
    weights = torch.zeros_like(experiment.start.broadcast)
    weights[-1] = math.nan
    bad = [("clip-norm", given, r"must be 0\.5") for given in (0.6, 0.4, math.inf, math.nan)]
    for key, given, words in [*bad, ("broadcast", weights.numpy().tobytes(), "not finite")]:
        entries = dict(good["config"])
        good["config"][key] = given
        refused(WireError, words, lambda: read(message(good)))
        good["config"][key] = entries[key]


@pytest.mark.parametrize("kind", ["train", "query.advertise", "query.share", "query.unmask"])
def test_a_node_that_is_asked_nonsense_sends_nothing(grid, tables, kind):
    """The whole app: whatever is not an instruction raises one of the package's errors, and no upload leaves."""
    from flwr.app import Message

    chosen = tables("dp-fedavg", "aggregation.kind=protocol", "federation.sampling=fixed", privacy=SHARES)
    nodes, chance = grid(chosen), random.Random(7)
    content = (instruction if kind == "train" else question)(build(parse(chosen, source="test")))
    for _ in range(60):
        asked = Message(over_the_wire(mutated(content, chance)), dst_node_id=1000, message_type=kind)
        refused(DpfedError, "", nodes.app, asked, nodes.contexts[1000])
