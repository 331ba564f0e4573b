"""DRIVE and EDEN against their theory: error, gain of averaging, bias; and the edges.

Samples are seeded. Allowed are five standard deviations (rate below 1e-6 with a fresh seed): 2.5% for the error of ten
vectors of d = 2^14, 8% for that of one mean, whose numerator and denominator have 1.1% each.
"""

from itertools import pairwise

import pytest
import torch
from reference.compressors import mean_error, relative_error
from refusals import refused
from scipy.stats import norm

from dpfed import compress
from dpfed.compress.rotated_levels import POSITIVE_CENTROIDS
from dpfed.errors import ConfigError, WireError

pytestmark = pytest.mark.slow_but_one_in(3)

CLIENTS, DIMENSION = 10, 1 << 14
X = torch.randn(CLIENTS, DIMENSION, generator=torch.Generator().manual_seed(0))
SAME = X[:1].expand(CLIENTS, -1)

# scheme, options, error of one vector and of a mean of independent ones, of a mean of ten identical ones, slope
TABLE = [
    ("drive", {}, 0.5708, 0.0571, 1.0),
    ("drive", {"scale": "min-mse"}, 0.3634, 0.155, 0.6366),
    ("eden", {"bits": 1}, 0.5708, 0.0571, 1.0),
    ("eden", {"bits": 2}, 0.1331, 0.01331, 1.0),
    ("eden", {"bits": 3}, 0.0358, 0.00358, 1.0),
    ("eden", {"bits": 4}, 0.00959, 0.000959, 1.0),
    ("eden", {"bits": 2, "scale": "min-mse"}, 0.1175, 0.0242, 0.8825),
    ("eden", {"bits": 0.5}, 2.1416, 0.21416, 1.0),
    ("eden", {"bits": 0.1}, 14.708, 1.4708, 1.0),
]
VARIANTS = [(name, options) for name, options, *_ in TABLE]
table = pytest.mark.parametrize(("name", "options", "one", "ten", "slope"), TABLE)
variants = pytest.mark.parametrize(("name", "options"), VARIANTS)


@table
def test_errors_are_those_of_the_theory(name, options, one, ten, slope):
    scheme = compress.get(name, **options)
    decoded = scheme.decode(scheme.encode(X, seed=1))
    assert relative_error(decoded, X) == pytest.approx(one, rel=0.025)
    assert mean_error(scheme, X) == pytest.approx(one, rel=0.08)
    assert mean_error(scheme, SAME) == pytest.approx(ten, rel=0.08)
    assert float((decoded * X).sum() / X.square().sum()) == pytest.approx(slope, rel=0.02)
    assert scheme.unbiased == (slope == 1)


def test_that_check_sees_faults():
    """The other scale, or one seed for all clients, is far outside what is allowed above."""
    drive, other = compress.get("drive"), compress.get("drive", scale="min-mse")
    assert mean_error(other, SAME) != pytest.approx(0.0571, rel=0.08)
    assert mean_error(drive, SAME, seed=[5] * CLIENTS) == pytest.approx(0.5708, rel=0.08)


@pytest.mark.parametrize(("kind", "one_round"), [("pair", 0.2), ("harmonic", 0.08), ("lognormal", 0.0)])
def test_spiky_vectors_average_as_well(kind, one_round):
    """Ten identical clients, d = 1024, 100 times: .0571 within 2%; with one round the bias stays."""
    gaussian = torch.randn(1024, generator=torch.Generator().manual_seed(2))
    vector = {
        "pair": 1.0 * (torch.arange(1024) == 0) + 0.5 * (torch.arange(1024) == 1),
        "harmonic": 1 / torch.arange(1, 1025),
        "lognormal": (2 * gaussian).exp(),
    }[kind]
    errors = {}
    for rounds in (1, 2):
        drive = compress.get("drive", rounds=rounds)
        decoded = drive.decode(drive.encode(vector.expand(1000, -1), seed=4))
        errors[rounds] = sum(relative_error(group.mean(dim=0), vector) for group in decoded.split(10)) / 100
        assert drive.unbiased == (rounds == 2)
    assert errors[2] == pytest.approx(0.0571, rel=0.02)
    assert errors[1] > one_round


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_centroids_are_those_of_the_normal_law(bits):
    """Each level is the mean of N(0, 1) over its cell, to 1e-12."""
    levels = [-level for level in reversed(POSITIVE_CENTROIDS[bits])] + list(POSITIVE_CENTROIDS[bits])
    assert len(levels) == 2**bits
    edges = [-float("inf"), *[(a + b) / 2 for a, b in pairwise(levels)], float("inf")]
    for level, (low, high) in zip(levels, pairwise(edges), strict=True):
        # In the upper half through the survival function, where differences keep their digits.
        mass = norm.sf(low) - norm.sf(high) if low >= 0 else norm.cdf(high) - norm.cdf(low)
        assert level == pytest.approx((norm.pdf(low) - norm.pdf(high)) / mass, abs=1e-12)


@pytest.mark.parametrize("dimension", [1, 3, 64, 1000, 1025, 5000])
@pytest.mark.parametrize(("name", "options"), [("drive", {}), ("eden", {"bits": 3}), ("eden", {"bits": 2})])
def test_every_decoded_vector_has_the_right_length_along_x(name, options, dimension):
    """<x̂, x> = ||x||² for every seed, which is what makes the scale unbiased; exact up to rounding."""
    x = X[:4, :dimension]
    scheme = compress.get(name, **options)
    decoded = scheme.decode(scheme.encode(x, seed=9))
    torch.testing.assert_close((decoded * x).sum(dim=1), x.square().sum(dim=1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("options", [{"bits": 1}, {"bits": 2}, {"bits": 0.3}])
def test_one_coordinate_is_exact(options):
    scheme = compress.get("eden", **options)
    x = torch.tensor([[3.0], [-1e-20], [0.0], [1e30]])
    torch.testing.assert_close(scheme.decode(scheme.encode(x, seed=1)), x, rtol=1e-6, atol=0)


@variants
@pytest.mark.parametrize("size", [1e28, 1e-30, 1e-40])
def test_the_size_of_a_vector_does_not_matter(name, options, size):
    """Encoding c x is c times encoding x, up to the rounding of float32, also where squares overflow or vanish."""
    x = X[:2, :1000]
    scheme = compress.get(name, **options)
    plain, scaled = (scheme.decode(scheme.encode(v, seed=1)) for v in (x, x * size))
    tolerance = 1e-4 if size > 1e-38 else 1e-2
    close = (scaled.double() / size - plain).abs() < tolerance * plain.abs().max()
    assert float(close.double().mean()) > 0.99  # a value at the middle of two levels may go either way


def test_a_scale_above_all_floats_is_refused():
    with pytest.raises(ConfigError, match=r"client 1 .*scales"):
        compress.get("drive").encode(torch.stack([X[0, :64], torch.full((64,), 3.4e38)]), seed=1)


def test_equal_coordinates_and_more_clients_than_fit_at_once():
    drive = compress.get("drive")
    x = torch.full((5000, 64), 2.0)
    decoded = drive.decode(drive.encode(x, seed=1))
    assert float((decoded.mean(dim=0) - 2).norm() / 16) < 0.05
    torch.testing.assert_close(drive.mean(drive.encode(x, seed=1)), decoded.mean(dim=0), rtol=1e-5, atol=1e-5)


def test_drive_is_eden_with_one_bit():
    drive, eden = (compress.get(name) for name in ("drive", "eden"))
    torch.testing.assert_close(drive.decode(drive.encode(X, seed=1)), eden.decode(eden.encode(X, seed=1)))


@pytest.mark.parametrize(("dimension", "limit"), [(1, 1), (1025, 1025), (1 << 16, 1 << 16), (100_000, 100_100)])
def test_bits_on_the_wire(dimension, limit):
    """One bit a coordinate, 32 a block, and a header of about 32 bytes; not the next power of two."""
    size = compress.get("drive").encode(torch.ones(1, dimension), seed=1)[0].size()
    blocks = len(compress.get("drive").encode(torch.ones(1, dimension), seed=1).fields["scales"][0])
    assert size.bits <= limit + 32 * blocks + 8 * 32 + 16


def test_entropy_coding_pays_from_two_bits_on():
    sizes = {bits: compress.get("eden", bits=bits).encode(X[:1], seed=1)[0].size().bits for bits in (1, 2, 3, 4)}
    for bits, entropy in [(2, 1.911), (3, 2.825), (4, 3.765)]:
        assert sizes[bits] / DIMENSION == pytest.approx(entropy, abs=0.06)


def test_payloads_of_another_scheme_are_refused():
    refused(WireError, "", lambda: compress.get("drive").decode(compress.get("drive", rounds=3).encode(X, seed=1)))
