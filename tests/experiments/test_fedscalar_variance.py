"""The variance of FedScalar's step: the closed form beside exact enumeration, exact quadrature, and the compressor."""

from __future__ import annotations

import itertools
from types import ModuleType

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scripts import script

from dpfed import compress


@pytest.fixture(scope="module")
def run() -> ModuleType:
    return script("experiments/fedscalar/run.py")


def updates(clients: int, dimension: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(clients, dimension, generator=generator) * torch.tensor([1.0, 3.0, 0.2])[:clients, None]


def exact_trace(x: NDArray[np.float64], points: list[tuple[NDArray[np.float64], float]]) -> float:
    """sum_n (E |<x_n, v> v|^2 - |x_n|^2) / N^2 over the directions (v, probability)."""
    second = sum(p * ((x @ v) ** 2) * (v @ v) for v, p in points)
    return float((second - (x**2).sum(axis=1)).sum() / len(x) ** 2)


def signs(dimension: int) -> list[tuple[NDArray[np.float64], float]]:
    return [(np.array(v, dtype=float), 0.5**dimension) for v in itertools.product((-1, 1), repeat=dimension)]


def gaussian_nodes(dimension: int) -> list[tuple[NDArray[np.float64], float]]:
    """Gauss-Hermite with 3 nodes a coordinate: exact for polynomials of degree 5 in each, so for these of degree 4."""
    one = [(-np.sqrt(3), 1 / 6), (0.0, 2 / 3), (np.sqrt(3), 1 / 6)]
    return [
        (np.array([v for v, _ in point]), float(np.prod([p for _, p in point])))
        for point in itertools.product(one, repeat=dimension)
    ]


@pytest.mark.parametrize("dimension", [1, 2, 5])
def test_the_closed_form_is_exact(run: ModuleType, dimension: int) -> None:
    x = updates(3, dimension)
    exact = x.double().numpy()
    assert run.covariance_trace(x, "rademacher") == pytest.approx(exact_trace(exact, signs(dimension)), abs=1e-9)
    assert run.covariance_trace(x, "gaussian") == pytest.approx(exact_trace(exact, gaussian_nodes(dimension)), rel=1e-9)


def test_the_gain_of_signs_is_two_over_d_plus_one(run: ModuleType) -> None:
    x = updates(3, 259)
    ratio = run.covariance_trace(x, "rademacher") / run.covariance_trace(x, "gaussian")
    assert 1 - ratio == pytest.approx(2 / 260, rel=1e-9)


@pytest.mark.parametrize("vectors", ["gaussian", "rademacher"])
def test_the_compressor_has_that_variance_and_not_the_paper_s(run: ModuleType, vectors: str) -> None:
    """20,000 rounds of 3 clients; within 6 standard errors (false alarm below 1e-8 by the normal law)."""
    x, rounds = updates(3, 4), 20_000
    scheme = compress.get("fedscalar", vectors=vectors)
    decoded = scheme.decode(scheme.encode(x.repeat(rounds, 1), seed=11)).view(rounds, 3, 4).mean(dim=1)
    errors = (decoded - x.mean(dim=0)).double().square().sum(dim=1)
    standard_error = float(errors.std()) / rounds**0.5
    assert abs(float(errors.mean()) - run.covariance_trace(x, vectors)) < 6 * standard_error
    squares, mean = float(x.double().square().sum()) / 9, x.mean(dim=0).double()
    terms = 4 if vectors == "gaussian" else 2
    of_the_paper = 2 * squares + terms * 4 * squares - float(mean @ mean)  # trace of (A.22) and (A.23), d = 4
    assert abs(float(errors.mean()) - of_the_paper) > 20 * standard_error
