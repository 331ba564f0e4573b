"""Entries that a scheme leaves out travel beside it, wherever they lie in the vector."""

import numpy as np
import pytest
import torch

from dpfed import compress
from dpfed.seeds import Seeds
from dpfed.stages.encode import Encode

from ..announced import a_round

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
    """By index and mask; the second client sends zeros, so that fewer rows are decoded than there are."""
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
