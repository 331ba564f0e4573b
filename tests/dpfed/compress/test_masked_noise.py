"""FedMRN masks drawn from finished updates: probabilities, noise without zeros, errors against exact expectations.

Samples are seeded. Allowed are five standard deviations (a rate below 1e-6 with a fresh seed): 2% for the error of ten
vectors of d = 2^15, 6% for that of one mean, whose numerator and denominator have .8% each.
"""

from typing import get_args

import pytest
import torch
from reference.compressors import mean_error, relative_error

from dpfed import compress
from dpfed.compress import mask_schemes
from dpfed.compress.counter import client_seeds
from dpfed.compress.mask_schemes import mask_probabilities, random_noise

X = torch.randn(10, 1 << 15, generator=torch.Generator().manual_seed(0))
SAME = X[:1].expand(10, -1)
both = pytest.mark.parametrize("name", ["fedmrn", "fedmrns"])
noises = pytest.mark.parametrize("noise", get_args(mask_schemes.Noise))


# scheme, options; error of one, of a mean of ten independent clients, of ten identical ones, slope
TABLE = [
    ("fedmrn", {"alpha": 1.0}, 0.7506, 0.7506, 0.679, 0.185),
    ("fedmrn", {"alpha": 4.0}, 0.9641, 0.9641, 0.423, 0.400),
    ("fedmrns", {"alpha": 1.0}, 0.5958, 0.5958, 0.442, 0.369),
    ("fedmrns", {"alpha": 4.0}, 4.732, 4.732, 0.515, 0.802),
    ("fedmrns", {"alpha": 0.65, "noise": "bernoulli"}, 0.454, 0.454, 0.327, 0.484),
    ("fedmrn", {"alpha": 1.0, "shared_seed": 5}, 0.7506, 1.143, 0.736, 0.185),
    ("fedmrns", {"alpha": 1.0, "shared_seed": 5}, 0.5958, 0.594, 0.482, 0.369),
]


@pytest.mark.parametrize(("name", "options", "one", "ten", "same", "slope"), TABLE)
def test_errors(name, options, one, ten, same, slope):
    scheme = compress.get(name, **options)
    decoded = scheme.decode(scheme.encode(X, seed=1))
    assert relative_error(decoded, X) == pytest.approx(one, rel=0.02)
    assert mean_error(scheme, X) == pytest.approx(ten, rel=0.06)
    assert mean_error(scheme, SAME) == pytest.approx(same, rel=0.06)
    assert float((decoded * X).sum() / X.square().sum()) == pytest.approx(slope, abs=0.01)


def test_that_check_sees_faults():
    """The other masks, twice the noise, or one coin seed for all: outside what is allowed above."""
    binary, signed, wide = (compress.get(name, alpha=a) for name, a in [("fedmrn", 1), ("fedmrns", 1), ("fedmrns", 2)])
    assert mean_error(binary, X) != pytest.approx(0.5958, rel=0.06)
    assert mean_error(wide, X) != pytest.approx(0.5958, rel=0.06)
    assert mean_error(signed, SAME, seed=[5] * 10) != pytest.approx(0.442, rel=0.06)


@noises
def test_signed_masks_are_unbiased_inside_the_noise_and_binary_ones_on_its_side(noise):
    """E[n m] = u, exactly, from the probabilities."""
    n = random_noise(client_seeds(1, 1), noise, 1.0, 1000)
    u = n * torch.linspace(-1, 1, 1000)
    torch.testing.assert_close((2 * mask_probabilities(u, n, signed=True) - 1) * n, u, rtol=1e-5, atol=1e-6)
    inside = u / n >= 0
    torch.testing.assert_close((mask_probabilities(u, n, signed=False) * n)[inside], u[inside], rtol=1e-5, atol=1e-6)


@noises
def test_no_noise_is_zero(noise, monkeypatch):
    """Not even where the stream gives exactly what would be zero."""
    drawn = random_noise(client_seeds(1, 4), noise, 1e-2, 100_000)
    assert float(drawn.abs().min()) >= 2.0**-24 * 1e-2 * 0.999
    spread = {"uniform": 3**-0.5, "gaussian": 1.0, "bernoulli": 1.0}[noise] * 1e-2
    assert float(drawn.std()) == pytest.approx(spread, rel=0.02)
    assert abs(float(drawn.mean())) < 5 * spread / 400_000**0.5
    for name in ("uniform", "normal"):
        middle = 0.5 if name == "uniform" else 0.0
        monkeypatch.setattr(
            mask_schemes.counter, name, lambda seeds, purpose, count, start=0, middle=middle: torch.full((1, 3), middle)
        )
    n = random_noise(client_seeds(1, 1), noise, 1.0, 3)
    for signed in (False, True):
        chance = mask_probabilities(torch.tensor([0.0, 1.0, -1.0]), n, signed=signed)
        assert bool(torch.isfinite(chance).all())


@both
@noises
@pytest.mark.parametrize("shared_seed", [None, 9])
def test_bytes_means_and_pieces(name, noise, shared_seed, monkeypatch):
    scheme = compress.get(name, noise=noise, shared_seed=shared_seed, alpha=0.5)
    x = X[:4, :5001]
    payloads = scheme.encode(x, seed=7)
    parsed = [compress.from_bytes(payload.to_bytes()) for payload in payloads]
    assert list(payloads) == parsed
    assert len({payload.seed for payload in parsed}) == (1 if shared_seed else 4)
    decoded = scheme.decode(parsed)
    torch.testing.assert_close(scheme.mean(parsed), decoded.mean(dim=0))
    monkeypatch.setattr(mask_schemes, "_AT_ONCE", 1)
    assert scheme.encode(x, seed=7).fields["mask"].equal(payloads.fields["mask"])
    assert scheme.decode(parsed).equal(decoded)
    assert scheme.decode(parsed[2:3])[0].equal(decoded[2])


@both
@noises
@pytest.mark.parametrize("shared_seed", [None, 3])
def test_remembered_noise_is_what_a_stranger_draws(name, noise, shared_seed):
    """Encoder and decoder of one process draw once: the bits are those of a decoder that starts from the bytes alone,
    and nobody writes to what is remembered."""
    scheme = compress.get(name, noise=noise, alpha=1.0, shared_seed=shared_seed)
    mask_schemes._remembered_noise.cache_clear()
    payloads = scheme.encode(X[:3], seed=7)
    drawn = mask_schemes._remembered_noise.cache_info().misses
    here = scheme.decode(payloads)
    assert scheme.mean(payloads).isfinite().all()
    assert mask_schemes._remembered_noise.cache_info().misses == drawn > 0
    mask_schemes._remembered_noise.cache_clear()
    there = scheme.decode([compress.from_bytes(payload.to_bytes()) for payload in payloads])
    assert there.equal(here)
    own = client_seeds([3], 1) if shared_seed else payloads.seeds
    expected = random_noise(own, noise, 1.0, X.shape[1])
    masks = payloads.fields["mask"].float()
    assert here.equal((2 * masks - 1 if name == "fedmrns" else masks) * expected)


def test_what_is_remembered_is_bounded():
    mask_schemes._remembered_noise.cache_clear()
    scheme = compress.get("fedmrns")
    scheme.decode(scheme.encode(torch.zeros(40, 1 << 17), seed=1))
    assert mask_schemes._remembered_noise.cache_info().currsize * mask_schemes._AT_ONCE <= 1 << 22


def test_binary_masks_of_small_updates_cost_less_than_a_bit():
    """std(u) / alpha = .01, .1, 1: entropy .154, .556, .973 bits an entry."""
    for ratio, entropy in [(0.01, 0.154), (0.1, 0.556), (1.0, 0.973)]:
        scheme = compress.get("fedmrn", alpha=1 / ratio)
        size = scheme.encode(X[:1], seed=1)[0].size()
        assert size.coded_bits / X.shape[1] == pytest.approx(entropy, abs=0.02)
