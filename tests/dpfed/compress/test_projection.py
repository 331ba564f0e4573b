"""FedScalar: the exact law of what is decoded, gain of projections and of own seeds, and a fixed number of bytes."""

import itertools

import pytest
import torch

from dpfed import compress
from dpfed.compress import rotation
from dpfed.errors import ConfigError

X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2.0, 0.5, 3.0])


def covariance(x, vectors):
    """Of one decoded vector: ||x||² I + x xᵀ, for signs minus 2 diag(x²)."""
    x = x.double()
    exact = x.square().sum() * torch.eye(len(x)) + torch.outer(x, x)
    return exact - 2 * torch.diag(x.square()) if vectors == "rademacher" else exact


def test_the_covariance_for_signs_by_enumeration():
    """All 2^4 sign vectors: mean x and the covariance above, exactly."""
    signs = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=4)), dtype=torch.float64)
    x = X[0].double()
    decoded = (signs @ x)[:, None] * signs
    torch.testing.assert_close(decoded.mean(dim=0), x)
    torch.testing.assert_close(torch.cov(decoded.T, correction=0), covariance(x, "rademacher"))


@pytest.mark.parametrize("vectors", ["rademacher", "gaussian"])
def test_the_mean_and_covariance_of_a_mean_of_three_clients(vectors):
    """10 000 means: each entry within 5.5 standard deviations (34 checks: rate 1e-6); the other law is far outside."""
    groups = 10_000
    scheme = compress.get("fedscalar", vectors=vectors)
    decoded = scheme.decode(scheme.encode(X.repeat(groups, 1), seed=5)).double().view(groups, 3, 4)
    means = decoded.mean(dim=1)
    centred = means - X.double().mean(dim=0)
    expected = sum(covariance(x, vectors) for x in X) / 9
    other = sum(covariance(x, "gaussian" if vectors == "rademacher" else "rademacher") for x in X) / 9
    spread = centred.std(dim=0) / groups**0.5
    assert bool((centred.mean(dim=0).abs() < 5.5 * spread).all())
    products = centred[:, :, None] * centred[:, None, :]
    spread = products.std(dim=0) / groups**0.5
    assert bool(((products.mean(dim=0) - expected).abs() < 5.5 * spread).all())
    assert bool(((products.mean(dim=0) - other).abs() > 5.5 * spread).any())


@pytest.mark.parametrize(("vectors", "factor"), [("rademacher", -1), ("gaussian", 1)])
@pytest.mark.parametrize("projections", [1, 8])
def test_the_error_falls_with_projections(vectors, factor, projections):
    """(d ± 1) / p at d = 9, mean of 20 000, within 6%: five standard deviations of about 1.2%."""
    x = torch.randn(9, generator=torch.Generator().manual_seed(1))
    scheme = compress.get("fedscalar", vectors=vectors, projections=projections)
    decoded = scheme.decode(scheme.encode(x.expand(20_000, -1), seed=2))
    error = float((decoded - x).square().sum() / x.square().sum()) / 20_000
    assert error == pytest.approx((9 + factor) / projections, rel=0.06)


def test_identical_clients_gain_from_own_seeds_only():
    """Ten identical clients, d = 50: a tenth of the error with own seeds, all of it with a shared one."""
    x = torch.ones(1, 50)
    own = compress.get("fedscalar")
    decoded = own.decode(own.encode(x.expand(20_000, -1), seed=1))
    groups = torch.stack([group.mean(dim=0) for group in decoded.split(10)])
    assert float((groups - x).square().sum(dim=1).mean()) / 50 == pytest.approx(4.9, rel=0.1)
    shared = [compress.get("fedscalar", shared_seed=seed) for seed in range(250)]
    errors = [float((one.mean(one.encode(x.expand(10, -1))) - x).square().sum()) / 50 for one in shared]
    assert sum(errors) / 250 == pytest.approx(49, rel=0.5)


@pytest.mark.parametrize("options", [{}, {"vectors": "gaussian"}, {"projections": 3}, {"shared_seed": 4}])
def test_bytes_means_and_pieces(options, monkeypatch):
    """The same in any pieces, through bytes, and as a mean; the length does not depend on d."""
    scheme = compress.get("fedscalar", **options)
    x = torch.randn(5, 70_001, generator=torch.Generator().manual_seed(3))
    payloads = scheme.encode(x, seed=7)
    parsed = [compress.from_bytes(payload.to_bytes()) for payload in payloads]
    assert list(payloads) == parsed
    decoded = scheme.decode(parsed)
    largest = float(decoded.abs().max())
    torch.testing.assert_close(scheme.mean(parsed), decoded.mean(dim=0), rtol=0, atol=1e-5 * largest)
    monkeypatch.setattr(rotation, "_AT_ONCE", 1)
    torch.testing.assert_close(scheme.decode(parsed), decoded, rtol=1e-5, atol=1e-6 * largest)
    again = scheme.encode(x, seed=7).fields["scalars"]
    torch.testing.assert_close(again, payloads.fields["scalars"], rtol=1e-4, atol=1e-2)
    assert len(payloads[0].to_bytes()) == len(scheme.encode(x[:, :3], seed=7)[0].to_bytes())


def test_a_zero_vector_one_coordinate_and_large_ones():
    scheme = compress.get("fedscalar")
    x = torch.tensor([[0.0], [3.0], [-1e30], [1e-40]])
    assert scheme.decode(scheme.encode(x, seed=1)).equal(x)
    with pytest.raises(ConfigError, match=r"client 1 .*scalars"):
        scheme.encode(torch.full((2, 1000), 3e38) * torch.tensor([[0.0], [1.0]]), seed=1)
