"""Sums come out exactly, or not at all: every pattern of dropouts, both graphs, every ring, both ways of masking."""

import numpy as np
import pytest
from reference.secure_rounds import draw_rows, summed
from refusals import refused

from dpfed.aggregation.messages import ProtocolStep, agree_on_terms
from dpfed.aggregation.protocol import MaskedSum, ProtocolSum
from dpfed.errors import ConfigError, SecureSumAborted

KINDS = pytest.mark.parametrize("kind", [ProtocolSum, MaskedSum], ids=["protocol", "masked"])
IN_SUM = (None, ProtocolStep.UNMASK)


def expected(ids, rows, lost, bits):
    """Whose rows are in the sum, and the sum, in Python's integers."""
    inside = [place for place, client in enumerate(ids) if lost.get(int(client)) in IN_SUM]
    total = [sum(int(rows[place, column]) for place in inside) % (1 << bits) for column in range(rows.shape[1])]
    return sorted(int(ids[place]) for place in inside), total


def check(result, ids, rows, lost, bits):
    included, total = expected(ids, rows, lost, bits)
    assert result.included_clients.tolist() == included
    assert result.total.dtype == np.uint32
    assert result.total.tolist() == total


@pytest.mark.slow_but_one_in(4)
@KINDS
@pytest.mark.parametrize("neighbours", [None, 6])
@pytest.mark.parametrize("bits", [8, 16, 17, 32])
def test_masks_longer_than_a_chunk(kind, neighbours, bits):
    ids = np.arange(12) * 5 + 1
    rows = draw_rows(12, 300_007, bits)
    lost = {1: ProtocolStep.UPLOAD, 16: ProtocolStep.LATE, 31: ProtocolStep.UNMASK}
    result = summed(kind, ids, rows, lost, bits=bits, neighbours=neighbours, threshold=0.51)
    total = rows[[place for place in range(12) if place not in (0, 3)]].sum(axis=0, dtype=np.uint64) % (1 << bits)
    np.testing.assert_array_equal(result.total, total)


@KINDS
def test_a_row_that_never_comes_is_a_dropout(kind):
    ids = np.arange(5)
    rows = draw_rows(5, 4, 10)
    one = kind(agree_on_terms(ids, size=4, bits=10, threshold=0.6, graph_seed=0), dropouts={})
    one.add(ids[:4], rows[:4])
    check(one.close(), ids, rows, {4: ProtocolStep.UPLOAD}, 10)


@KINDS
@pytest.mark.parametrize("count", [0, 1])
def test_nobody_to_hide_among(kind, count):
    with pytest.raises(SecureSumAborted, match=f"{count} of {count} clients answered, 2 are needed"):
        summed(kind, np.arange(count), draw_rows(count, 3, 8), {})


@KINDS
def test_rows_that_cannot_be(kind):
    ids = np.arange(5)
    one = kind(agree_on_terms(ids, size=4, bits=10, threshold=0.6, graph_seed=0), dropouts={})
    rows = draw_rows(5, 4, 10)
    one.add(ids[:2], rows[:2])
    for clients, wrong in [(ids[:1], rows[:1]), (ids[:1] + 9, rows[:1]), (ids[2:], rows[2:, :3]), (ids, rows + 0.5)]:
        refused(ConfigError, "", one.add, clients, wrong)


@pytest.mark.parametrize(
    "terms",
    [
        {"bits": 0},
        {"bits": 33},
        {"threshold": 0.5},
        {"threshold": 1.01},
        {"size": 0},
        {"neighbours": 3},
        {"neighbours": 0},
        {"neighbours": 2},
        {"clients": np.array([1, 1])},
        {"clients": np.array([-1, 1])},
    ],
    ids=str,
)
def test_terms_that_cannot_be(terms):
    right = {"clients": np.arange(8), "size": 3, "bits": 8, "threshold": 0.6, "graph_seed": 0}
    refused(ConfigError, "", agree_on_terms, **right | terms)
