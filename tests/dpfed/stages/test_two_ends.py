"""Wires: what clients send, each for itself, arrives from a group; entries that a scheme leaves out travel beside."""

import numpy as np
import pytest
import torch
from refusals import refused

from dpfed import compress
from dpfed.compress.levels import Dense
from dpfed.errors import WireError
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages.encode import Encode

from ...rounds import DIGITS, configured
from ..announced import a_round, announced, arrive, messages, read

GROUP = np.array([3, 7, 11])
CODES = {
    "floats": ("fedavg", ()),
    "levels": ("qsgd", ()),
    "rotation": ("drive", ()),
    "own mask": ("fedavg-randk", ("method.keep=0.1",)),
    "coins": ("fedpm", ()),
    "summed coins": ("fedpm", ("aggregation.kind=protocol",)),
    "models": ("fedsparsify", ()),
    "integers": ("fedavg", ("aggregation.kind=protocol", "aggregation.clip_norm=1.0")),
    "shared noise": ("fedmrns", ("aggregation.kind=protocol", "method.shared=true")),
    "public bound": ("stochastic-sign", ("aggregation.kind=protocol", "method.options.bound=0.05")),
}


def stages_and_rows(case):
    method, settings = CODES[case]
    experiment = build(
        configured(
            *settings,
            start=DIGITS,
            federation={"clients": 20, "cohort": 8, "rounds": 2},
            method={"name": method},
            privacy=None,
        )
    )
    origin = experiment.start.broadcast
    moves = 0.02 * torch.randn(3, len(origin), generator=torch.Generator().manual_seed(3))
    return experiment.method.stages, moves, announced(experiment, number=1)


@pytest.mark.parametrize("case", sorted(CODES))
def test_alone_is_as_together(case):
    """Nothing depends on who else is in a group: neither randomness nor what is decoded."""
    stages, rows, now = stages_and_rows(case)
    together, counted = arrive(stages, rows.clone(), GROUP, now)
    alone = [messages(stages, rows[i : i + 1].clone(), GROUP[i : i + 1], now)[0] for i in range(3)]
    arrived, _ = read(stages, alone, GROUP, now)
    assert torch.equal(arrived.to(together.dtype), together)
    assert counted.uplink_bytes in (None, sum(map(len, alone)))
    fixed = stages.fixed_bits
    if fixed is not None:
        assert all(0 <= len(message) - fixed / 8 < 8 for message in alone)


def test_the_fixed_size_of_an_upload_has_room_for_its_exempt_entries():
    """A longer message than the fixed size would not be padded, and its length would be seen."""
    stage = Encode(scheme=Dense(bits=16), seeds=Seeds(root=1), dense=torch.tensor([1, 4]), sizes_secret=True)
    _, rows, now = stages_and_rows("levels")
    sent = stage.messages(rows[:, :9].clone(), GROUP, now)
    assert [8 * len(message) for message in sent] == 3 * [stage.fixed_bits(9)]


@pytest.mark.parametrize("case", ["summed coins", "shared noise", "public bound"])
def test_entries_that_no_client_could_send_are_refused(case):
    """A ring has room for the sum of all; one client's entry is an integer of its own small alphabet."""
    from dpfed.compress.fixed_point import ring_to_bytes

    stages, _, now = stages_and_rows(case)
    entries = torch.zeros(1, stages.width, dtype=torch.int64)
    entries[0, 5] = 2
    refused(WireError, r"[Dd]rop the client", lambda: read(stages, ring_to_bytes(entries, stages.bits), GROUP[:1], now))


@pytest.mark.parametrize("case", sorted(set(CODES) - {"coins"}))  # a range coder makes some mask of any words
def test_messages_of_a_wrong_length_are_refused(case):
    stages, rows, now = stages_and_rows(case)
    (message,) = messages(stages, rows[:1], GROUP[:1], now)
    for wrong in (b"", message[:-1], message + b"\0", b"\7" * 9):
        refused(WireError, "", read, stages, [wrong], GROUP[:1], now)


def test_a_row_that_cannot_be_sent_is_one_byte_and_counts_as_zeros():
    stages, rows, now = stages_and_rows("levels")
    rows[0] = float("nan")
    rows[1] = 0.0
    sent = messages(stages, rows, GROUP, now)
    arrived, counted = read(stages, sent, GROUP, now)
    assert [len(message) for message in sent[:2]] == [1, 1]
    assert counted.not_finite == 1
    assert not arrived[:2].any()
    assert arrived[2].any()


SIZE = 12
EXEMPT = {
    "first": [0],
    "last": [11],
    "both ends": [0, 11],
    "side by side": [3, 4, 5],
    "out of order": [9, 2, 0, 10],
    "every other": [0, 2, 4, 6, 8, 10],
    "all but one": [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11],
}


@pytest.mark.parametrize("exempt", EXEMPT.values(), ids=EXEMPT)
@pytest.mark.parametrize("scheme", [compress.get("signsgd"), compress.get("topk", k=1)], ids=lambda one: one.name)
def test_exempt_entries_arrive_as_they_are_and_the_others_as_the_scheme_makes_them(scheme, exempt):
    """Cases by index and by mask; the second client sends zeros, so that fewer rows are decoded than there are."""
    rows = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(1))
    rows[1] = 0.0
    others = [place for place in range(SIZE) if place not in exempt]
    expected = rows.clone()
    expected[:, others] = scheme.decode(scheme.encode(rows[:, others], seed=[0, 0, 0]))
    expected[1] = 0.0
    encode = Encode(scheme=scheme, seeds=Seeds(root=0), dense=torch.tensor(exempt))
    now, clients = a_round(torch.zeros(SIZE)), np.arange(3)
    assert torch.equal(encode.client(rows, clients, now), expected)
    counted = now.tally.uplink_bytes
    messages = encode.messages(rows, clients, now)
    assert torch.equal(encode.read(messages, clients, now), expected)
    assert counted == sum(map(len, messages))
