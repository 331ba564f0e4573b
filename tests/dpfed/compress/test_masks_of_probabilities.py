"""Masks of probabilities as schemes: round trips, their law, their error, what is refused."""

import pytest
import torch
from refusals import refused
from scipy.stats import norm

from dpfed.compress import from_bytes, get
from dpfed.errors import ConfigError


@pytest.mark.parametrize("name", ["fedpm", "fedmask"])
@pytest.mark.parametrize("dimension", [1, 7, 1025])
def test_bytes_bring_the_mask_back(name, dimension):
    scheme = get(name)
    x = torch.rand(3, dimension, generator=torch.Generator().manual_seed(0))
    payloads = scheme.encode(x, seed=7)
    received = [from_bytes(payload.to_bytes()) for payload in payloads]
    assert torch.equal(scheme.decode(received), scheme.decode(payloads))
    torch.testing.assert_close(scheme.mean(received), scheme.decode(payloads).mean(dim=0))


def test_coins_have_their_probabilities_and_the_ends_are_certain():
    """20,000 coins an entry; two-sided limit with a false-alarm rate of 1e-6 in all."""
    x = torch.tensor([[0.0, 0.25, 0.5, 0.9, 1.0]]).repeat(20_000, 1)
    mean = get("fedpm").mean(get("fedpm").encode(x, seed=1))
    limit = norm.isf(1e-6 / 10) * 0.5 / 20_000**0.5
    assert float((mean - x[0]).abs().max()) < limit
    assert (float(mean[0]), float(mean[4])) == (0.0, 1.0)
    assert float((mean - x[0].square()).abs().max()) > limit  # a coin of another law is seen


def test_error_of_one_and_of_ten_masks():
    """Mean theta (1 - theta) = 1/6 for uniform theta, a tenth for ten identical clients."""
    x = torch.rand(1, 100_000, generator=torch.Generator().manual_seed(2)).repeat(10, 1)
    decoded = get("fedpm").decode(get("fedpm").encode(x, seed=3))
    assert float((decoded[0] - x[0]).square().mean()) == pytest.approx(1 / 6, rel=0.02)
    assert float((decoded.mean(dim=0) - x[0]).square().mean()) == pytest.approx(1 / 60, rel=0.02)


def test_thresholds_and_sizes():
    x = torch.tensor([[0.49, 0.5, 0.51, 0.0]])
    assert get("fedmask").decode(get("fedmask").encode(x)).tolist() == [[0.0, 1.0, 1.0, 0.0]]
    rare = torch.full((1, 80_000), 0.01)
    size = get("fedpm").encode(rare, seed=0)[0].size()
    assert size.coded_bits / 80_000 == pytest.approx(0.081, rel=0.1)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused(wrong):
    x = torch.full((2, 3), 0.5)
    x[1, 2] = wrong
    for name in ("fedpm", "fedmask"):
        refused(ConfigError, "client 1", get(name).encode, x, seed=0)
