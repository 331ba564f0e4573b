"""The sensitivity bound holds for whatever comes in."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpfed import compress
from dpfed.runs.client_level.plan import ClippedUpload
from dpfed.seeds import Seeds
from dpfed.stages.clip import Clip, clip_rows, drop_not_finite
from dpfed.stages.encode import Encode

from ..announced import a_round

any_float32 = st.floats(width=32, allow_nan=True, allow_infinity=True)


def exact_norm(row: torch.Tensor) -> float:
    return math.sqrt(math.fsum(float(x) ** 2 for x in row))


@given(
    rows=st.lists(st.lists(any_float32, min_size=5, max_size=5), min_size=1, max_size=4),
    norm=st.floats(min_value=1e-6, max_value=1e6),
)
def test_no_row_is_ever_longer_than_the_bound(rows, norm):
    clipped = clip_rows(torch.tensor(rows, dtype=torch.float32), norm)
    for row in clipped.rows:
        assert exact_norm(row) <= norm


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_becomes_zero_and_is_counted(bad):
    rows = torch.ones(3, 4)
    rows[1, 2] = bad
    for result in (clip_rows(rows.clone(), 10.0), drop_not_finite(rows.clone())):
        assert result.not_finite == 1
        assert result.rows[1].eq(0).all()
        assert result.rows[0].eq(1).all()
        assert result.inside.tolist() == [True, False, True]


def test_short_rows_are_left_bit_for_bit():
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    assert clip_rows(rows.clone(), 100.0).rows.equal(rows)


def test_a_long_row_keeps_its_direction_and_nearly_the_bound():
    row = torch.tensor([[3.0, 4.0]])
    clipped = clip_rows(row.clone(), 1.0)
    np.testing.assert_allclose(clipped.rows[0], [0.6, 0.8], rtol=2e-6)
    assert clipped.inside.tolist() == [False]


def test_a_factor_below_the_normal_floats_keeps_the_bound():
    """One factor of 1e-41 would be a denormal float32, four digits short: found by the property test above."""
    row = torch.tensor([[0.0, 0.0, 0.0, 5.949164980561642e34, 5.949167456441721e34]])
    assert exact_norm(clip_rows(row, 1e-6).rows[0]) <= 1e-6


def test_zero_stays_zero():
    clipped = clip_rows(torch.zeros(2, 3), 1.0)
    assert clipped.rows.eq(0).all()
    assert not (clipped.inside | clipped.outside).any()  # a client without samples is not counted


def test_a_bound_without_room_for_rounding_would_be_exceeded():
    """The planted fault: plain float32 scaling breaks the bound for some rows, so the room is needed."""
    rows = torch.randn(2000, 50, generator=torch.Generator().manual_seed(2)) * 10
    plain = rows * (1.0 / rows.norm(dim=1, keepdim=True))
    assert any(exact_norm(row) > 1.0 for row in plain)
    assert all(exact_norm(row) <= 1.0 for row in clip_rows(rows, 1.0).rows)


@pytest.mark.parametrize("neighbour", [1.0, 1e20, 1e30, 1e37, 1e-45, 0.0, float("inf"), float("nan")])
def test_a_clipped_row_depends_on_its_own_row_alone_in_bits(neighbour):
    rows = torch.randn(6, 101, generator=torch.Generator().manual_seed(3))
    alone = clip_rows(rows.clone(), 1e-3).rows
    rows[2] *= neighbour
    together = clip_rows(rows, 1e-3).rows
    assert torch.equal(torch.cat([together[:2], together[3:]]), torch.cat([alone[:2], alone[3:]]))


def test_an_upload_that_is_clipped_by_node_and_loop_is_counted_once():
    encode = Encode(scheme=compress.get("qsgd"), seeds=Seeds(root=0), sizes_secret=True)
    rows, now = torch.ones(3, 50), a_round(torch.zeros(50))
    rows[0], rows[2, 3] = 1e-3, float("nan")
    Clip().client(ClippedUpload(encode=encode).client(rows, np.arange(3), now), np.arange(3), now)
    assert (now.tally.counted, now.tally.not_finite) == (2, 1)
