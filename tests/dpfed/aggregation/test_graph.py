"""Graphs against searches of them, and their risks against enumeration and simulation."""

import itertools
import math

import numpy as np
import pytest
from refusals import refused

from dpfed.aggregation.cryptography import Graph, complete_graph, default_neighbours, random_circle
from dpfed.errors import ConfigError
from tests.dpfed.aggregation.graph_risk import graph_risk


def reached(graph, survivors):
    """A search from one survivor over edges between survivors finds them all."""
    if not survivors:
        return True
    seen, todo = set(), [next(iter(survivors))]
    while todo:
        client = todo.pop()
        if client not in seen:
            seen.add(client)
            todo += [near for near in graph.neighbours(client) if near in survivors]
    return seen == set(survivors)


@pytest.mark.parametrize(("clients", "neighbours"), [(5, 4), (6, 4), (9, 4), (10, 6), (100, 20), (17, 16), (2, 2)])
def test_regular_and_mutual(clients, neighbours):
    graph = random_circle(np.arange(clients) * 7 + 2, neighbours, 3)
    for client in graph.circle:
        near = graph.neighbours(client)
        assert len(set(near)) == len(near) == min(neighbours, clients - 1)
        assert client not in near
        assert all(client in graph.neighbours(other) for other in near)
        assert graph.neighbourhood(client) == tuple(sorted((*near, client)))


def test_complete():
    for clients in range(8):
        graph = complete_graph(np.arange(clients))
        assert all(set(graph.neighbours(one)) == set(range(clients)) - {one} for one in range(clients))


def test_the_same_for_the_same_clients_and_seed():
    ids = np.arange(50)
    assert random_circle(ids, 10, 4) == random_circle(ids[::-1].copy(), 10, 4)
    assert random_circle(ids, 10, 4) != random_circle(ids, 10, 5)


@pytest.mark.parametrize(("clients", "reach"), [(7, 1), (8, 2), (9, 2), (8, 3), (7, 3), (6, 5)])
def test_connected_is_what_a_search_finds(clients, reach):
    graph = Graph(tuple(np.random.default_rng(1).permutation(clients).tolist()), reach)
    for count in range(clients + 1):
        for survivors in itertools.combinations(range(clients), count):
            assert graph.is_connected(set(survivors)) == reached(graph, set(survivors))


@pytest.mark.parametrize("neighbours", [-2, 0, 1, 3, 21, 4, 6])
def test_too_few_or_odd(neighbours):
    refused(ConfigError, f"neighbours={neighbours}", random_circle, np.arange(100), neighbours, 0)


@pytest.mark.parametrize(("clients", "neighbours"), [(2, 4), (10, 10), (100, 20), (1000, 30), (10_000, 40)])
def test_default_is_three_logarithms(clients, neighbours):
    assert default_neighbours(clients) == neighbours
    random_circle(np.arange(clients), neighbours, 0)


def worst(circle_size, reach, bad, gone, needed):
    """For one labelled circle: is somebody overheard, is it split, is it stuck? By definition."""
    graph = Graph(tuple(range(circle_size)), reach)
    honest, survivors = set(range(circle_size)) - bad, set(range(circle_size)) - gone
    overheard = any(len(bad & set(graph.neighbours(one))) >= needed for one in honest)
    stuck = any(len(survivors & set(graph.neighbourhood(one))) < needed for one in range(circle_size))
    return overheard, not reached(graph, honest & survivors), stuck


@pytest.mark.parametrize(
    ("clients", "neighbours", "bad", "gone"), [(9, 4, 2, 2), (10, 4, 3, 2), (9, 6, 0, 4), (8, 2, 2, 1)]
)
def test_risk_against_enumeration(clients, neighbours, bad, gone):
    """Every placing of corrupt and dropped clients: the split is exact, the other two are union bounds."""
    threshold = 0.6
    needed = math.ceil(threshold * (neighbours + 1) - 1e-9)
    counts, cases, single = np.zeros(3), 0, np.zeros(2)
    for corrupt in itertools.combinations(range(clients), bad):
        for dropped in itertools.combinations(sorted(set(range(clients)) - set(corrupt)), gone):
            counts += worst(clients, neighbours // 2, set(corrupt), set(dropped), needed)
            cases += 1
            graph = Graph(tuple(range(clients)), neighbours // 2)
            single[0] += sum(
                len(set(corrupt) & set(graph.neighbours(one))) >= needed for one in range(clients) if one not in corrupt
            )
            single[1] += sum(len(set(graph.neighbourhood(one)) - set(dropped)) < needed for one in range(clients))
    risk = graph_risk(
        clients=clients, neighbours=neighbours, threshold=threshold, corrupt=bad / clients, dropout=gone / clients
    )
    assert risk.split == pytest.approx(counts[1] / cases, abs=1e-12)
    assert risk.overheard == pytest.approx(min(1, single[0] / cases), abs=1e-12)
    assert risk.stuck == pytest.approx(min(1, single[1] / cases), abs=1e-12)
    assert (np.array([risk.overheard, risk.stuck]) >= counts[[0, 2]] / cases - 1e-12).all()


def test_risk_of_a_hundred_clients():
    terms = {"clients": 100, "threshold": 0.6, "corrupt": 0.1, "dropout": 0.1}
    risk, fewer, enough = (graph_risk(neighbours=count, **terms) for count in (20, 22, 24))
    assert risk.overheard == 0  # 13 are needed, 10 are corrupt
    assert risk.split < 7.4e-18  # as SECURITY.md says
    assert risk.stuck < 1.4e-4
    assert enough.overheard + enough.split <= 2**-40
    assert enough.stuck <= 2**-20 < fewer.stuck
