"""Dropouts over both graphs, against the rule written down by itself; and one client too few at every step."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.secure_rounds import draw_rows, summed
from refusals import refused

from dpfed.aggregation.cryptography import complete_graph, random_circle
from dpfed.aggregation.messages import ProtocolStep, agree_on_terms
from dpfed.aggregation.protocol import MaskedSum, ProtocolSum
from dpfed.errors import SecureSumAborted
from tests.dpfed.aggregation.test_graph import reached

KINDS = pytest.mark.parametrize("kind", [ProtocolSum, MaskedSum], ids=["protocol", "masked"])
REACHES = {
    None: 4,
    ProtocolStep.UNMASK: 3,
    ProtocolStep.UPLOAD: 2,
    ProtocolStep.LATE: 2,
    ProtocolStep.SHARE: 1,
    ProtocolStep.ADVERTISE: 0,
}


def play(kind, ids, rows, lost, **terms):
    return summed(kind, ids, rows, lost, **{"seed": 7, "group": len(ids) // 2, **terms})


def rows_of(count, bits):
    return draw_rows(count, 5, bits, seed=count)


def sum_exists(graph, ids, lost, threshold):
    """The rule: enough of all and of everybody's neighbourhood after each step, and the survivors in one piece."""
    alive = [{int(one) for one in ids if REACHES[lost.get(int(one))] > step} for step in range(4)]

    def enough(count, of):
        return count > of / 2 and count >= round(threshold * of, 9)

    def around(one, among):
        near = graph.neighbours(one)
        return enough(len(among & {one, *near}), len(near) + 1)

    if not all(enough(len(some), len(ids)) and len(some) > 1 for some in alive):
        return False
    needed = [one for one in alive[1] if one in alive[2] or alive[2] & set(graph.neighbours(one))]
    if not all(around(one, alive[0]) for one in alive[0]) or not all(around(one, alive[1]) for one in alive[1]):
        return False
    if not all(around(one, alive[2]) and around(one, alive[3]) for one in needed):
        return False
    return reached(graph, alive[2])


@KINDS
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_exact_or_over_by_the_rule(kind, data):
    """Neighbours of a client are all others, or 4 or 6 of them."""
    count = data.draw(st.integers(2, 14))
    ids = np.array(data.draw(st.lists(st.integers(0, 1 << 40), min_size=count, max_size=count, unique=True)))
    neighbours = data.draw(st.sampled_from([None, 4, 6] if count > 5 else [None]))
    graph = complete_graph(ids) if neighbours is None else random_circle(ids, neighbours, 7)
    steps = data.draw(st.lists(st.sampled_from([*[None] * 5, *ProtocolStep]), min_size=count, max_size=count))
    lost = {int(one): step for one, step in zip(ids, steps, strict=True) if step}
    bits, threshold = data.draw(st.integers(1, 32)), data.draw(st.sampled_from([0.51, 0.6, 2 / 3, 0.7, 0.9, 1.0]))
    rows = rows_of(count, bits)
    terms = {"bits": bits, "threshold": threshold, "neighbours": neighbours}
    if sum_exists(graph, ids, lost, threshold):
        result = play(kind, ids, rows, lost, **terms)
        inside = [place for place, one in enumerate(ids) if REACHES[lost.get(int(one))] > 2]
        assert result.included_clients.tolist() == sorted(ids[inside].tolist())
        assert result.total.tolist() == (rows[inside].sum(axis=0, dtype=np.uint64) % (1 << bits)).tolist()
    else:
        refused(SecureSumAborted, r"answered.* needed", play, kind, ids, rows, lost, **terms)


@KINDS
@pytest.mark.parametrize(
    ("step", "ended"), [(step, "upload" if step is ProtocolStep.LATE else step.value) for step in ProtocolStep]
)
@pytest.mark.parametrize(("count", "threshold"), [(5, 0.6), (7, 0.51), (10, 0.8)])
def test_one_client_too_few_at_each_step(kind, step, ended, count, threshold):
    ids, rows = np.arange(count), rows_of(count, 17)
    needed = max(math.ceil(threshold * count - 1e-9), count // 2 + 1)
    play(kind, ids, rows, dict.fromkeys(range(count - needed), step), threshold=threshold)
    with pytest.raises(
        SecureSumAborted, match=f"at step {ended}: {needed - 1} of {count} clients answered, {needed} are"
    ):
        play(kind, ids, rows, dict.fromkeys(range(count - needed + 1), step), threshold=threshold)


@KINDS
def test_one_neighbour_too_few(kind):
    """12 clients, 4 neighbours each: three of five must stay around everybody, though eight of all would be enough."""
    ids, rows = np.arange(12), rows_of(12, 17)
    near = random_circle(ids, 4, 7).neighbours(5)
    play(kind, ids, rows, dict.fromkeys(near[:2], ProtocolStep.UNMASK), neighbours=4)
    with pytest.raises(
        SecureSumAborted, match=r"at step unmask: of 5 holders of shares of client \d+ 2 answered, 3 are needed"
    ):
        play(kind, ids, rows, dict.fromkeys(near[:3], ProtocolStep.UNMASK), neighbours=4)


@KINDS
def test_a_sum_in_two_parts_is_not_given(kind):
    """A ring of 14 with 3 lost at two places each: enough are left, but their two arcs would be summed apart."""
    ids, rows = np.arange(14), rows_of(14, 17)
    graph = random_circle(ids, 4, 7)
    lost = {graph.circle[place]: ProtocolStep.UPLOAD for place in (0, 1, 7, 8)}
    refused(SecureSumAborted, "no masks connect", play, kind, ids, rows, lost, neighbours=4, threshold=0.51)
    alone = {one: step for one, step in lost.items() if one != graph.circle[8]}
    assert len(play(kind, ids, rows, alone, neighbours=4, threshold=0.51).included_clients) == 11


@KINDS
def test_a_client_that_shared_its_keys_and_left_must_be_recovered(kind):
    """Its masks are in its neighbours' rows. Two of its five holders of shares are left where three are needed."""
    ids = np.arange(7) * 11
    circle = agree_on_terms(ids, size=5, bits=1, threshold=0.51, neighbours=4, graph_seed=7).graph.circle
    lost = {circle[2]: ProtocolStep.UPLOAD, circle[3]: ProtocolStep.ADVERTISE, circle[4]: ProtocolStep.ADVERTISE}
    with pytest.raises(
        SecureSumAborted, match=f"of 5 holders of shares of client {circle[2]} 2 answered, 3 are needed"
    ):
        play(kind, ids, rows_of(7, 1), lost, bits=1, threshold=0.51, neighbours=4)
