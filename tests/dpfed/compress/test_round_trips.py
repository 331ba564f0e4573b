"""Every scheme: through bytes and back, whatever the shape; edge cases; what is measured is what is sent."""

import dataclasses
import hashlib
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.compressors import SETTINGS, make
from refusals import refused

import dpfed.compress
from dpfed.errors import ConfigError, WireError

pytestmark = pytest.mark.slow_but_one_in(3)

ALL = pytest.mark.parametrize("setting", SETTINGS)
LINEAR = [
    "dense", "dense half", "shared-randk", "shared-topk", "stochastic-sign constant", "fedmrns shared",
    "fedscalar shared",
]  # fmt: skip


def vectors(clients, dimension, seed=0):
    return torch.randn(clients, dimension, generator=torch.Generator().manual_seed(seed))


def through_bytes(payloads):
    return [dpfed.compress.from_bytes(payload.to_bytes()) for payload in payloads]


def check(scheme, x, seed):
    payloads = scheme.encode(x, seed=seed)
    parsed = through_bytes(payloads)
    assert parsed == list(payloads)
    decoded = scheme.decode(payloads)
    assert decoded.shape == x.shape
    assert decoded.dtype == torch.float32
    assert torch.equal(scheme.decode(parsed), decoded)
    assert torch.isfinite(decoded).all()
    torch.testing.assert_close(
        scheme.decode(parsed[-1:])[0], decoded[-1], rtol=1e-5, atol=1e-5
    )  # alone as among others
    mean = scheme.mean(parsed)
    assert torch.equal(mean, scheme.mean(payloads))
    if not getattr(scheme, "majority", False):
        torch.testing.assert_close(mean, decoded.mean(dim=0), rtol=1e-4, atol=1e-5 * float(decoded.abs().max()))
    return payloads


def test_all_schemes_are_here():
    of_probabilities = {"fedpm", "fedmask"}  # test_masks_of_probabilities.py
    assert {name for name, _ in SETTINGS.values()} | of_probabilities == set(dpfed.compress.names())


@pytest.mark.slow_but_one_in(3)
@settings(max_examples=5)
@given(st.data())
@ALL
def test_through_bytes(setting, data):
    dimension = data.draw(st.integers(1, 70) | st.sampled_from([128, 511, 513, 1025]))
    check(make(setting), vectors(data.draw(st.integers(1, 4)), dimension), data.draw(st.integers(-(2**63), 2**64 - 1)))


@ALL
def test_a_large_one(setting):
    check(make(setting), vectors(1, 100_003), 11)


@ALL
@pytest.mark.parametrize("dimension", [1, 7, 513])
def test_the_zero_vector(setting, dimension):
    scheme = make(setting)
    x = torch.cat([torch.zeros(1, dimension), vectors(1, dimension)])
    decoded = scheme.decode(through_bytes(scheme.encode(x, seed=3)))
    assert torch.isfinite(decoded).all()
    if scheme.name == "stochastic-sign" and scheme.bound == 6.0:
        assert (decoded[0].abs() == 6).all()
    elif scheme.name != "fedmrns":
        assert (decoded[0] == 0).all()


@ALL
@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e10, 3e29])
def test_extreme_sizes(setting, size):
    """Finite, not blown up, and still in proportion."""
    scheme = make(setting)
    x = vectors(2, 40).clamp(-3, 3) * size
    if setting == "dense half" and size > 1:
        refused(ConfigError, "client 0 ", scheme.encode, x, seed=1)
        return
    decoded = scheme.decode(through_bytes(scheme.encode(x, seed=1)))
    assert torch.isfinite(decoded).all()
    if scheme.name not in ("stochastic-sign", "fedmrn", "fedmrns"):
        assert float(decoded.abs().max()) <= 400 * size


@ALL
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_not_finite_is_refused_by_name(setting, wrong):
    x = vectors(4, 9)
    x[2, 5] = wrong
    refused(ConfigError, "client 2 ", lambda: make(setting).encode(x, seed=1))


@ALL
def test_other_clients_randomness_differs(setting):
    """Identical updates with hashed seeds: random schemes send different things, the others the same."""
    scheme = make(setting)
    first, second = through_bytes(scheme.encode(vectors(1, 200).expand(2, 200), seed=5))
    again = scheme.encode(vectors(1, 200).expand(2, 200), seed=5)
    assert [first, second] == list(again)
    alike = ("dense", "topk", "shared-topk", "shared-randk", "signsgd", "fedsparsify")
    shared = scheme.name in alike or setting == "fedscalar shared"
    assert (first == second) == shared


@ALL
def test_encode_leaves_its_argument_alone(setting):
    scheme, x = make(setting), vectors(2, 50)
    before = x.clone()
    payloads = scheme.encode(x, seed=1)
    decoded = scheme.decode(payloads)
    assert torch.equal(x, before)
    scheme.decode(payloads).zero_()
    scheme.mean(payloads).zero_()
    assert torch.equal(scheme.decode(payloads), decoded)


@ALL
def test_float64_and_strided_updates(setting):
    scheme, x = make(setting), vectors(50, 3)
    expected = [payload.to_bytes() for payload in scheme.encode(x.T.contiguous(), seed=1)]
    assert [payload.to_bytes() for payload in scheme.encode(x.T.double(), seed=1)] == expected


@ALL
def test_sizes_add_up(setting):
    for payload in make(setting).encode(vectors(2, 333), seed=1):
        assert payload.size().bits == 8 * payload.byte_count() == 8 * len(payload.to_bytes())


def test_linear_schemes_say_so():
    assert [setting for setting in SETTINGS if make(setting).linear] == LINEAR


@pytest.mark.parametrize("setting", LINEAR)
def test_the_sum_of_linear_payloads_decodes_to_the_sum(setting):
    scheme = make(setting)
    x = vectors(6, 40)
    part = next(iter(scheme.layout(40)))
    payloads = scheme.encode(x, seed=4)
    summed = payloads.fields[part].to(torch.float32).mean(dim=0, keepdim=True)
    together = dataclasses.replace(payloads, seeds=payloads.seeds[:1], fields={part: summed})
    torch.testing.assert_close(scheme.decode(together)[0], scheme.mean(payloads), rtol=1e-4, atol=1e-5)


def test_shared_seeds_must_agree():
    scheme = make("shared-randk")
    refused(ConfigError, "one seed", lambda: scheme.encode(vectors(2, 30), seed=[1, 2]))
    mixed = [scheme.encode(vectors(1, 30), seed=seed)[0] for seed in (1, 2)]
    for use in (scheme.decode, scheme.mean):
        refused(WireError, "different seeds", use, mixed)


@pytest.mark.parametrize(
    ("setting", "dimension", "content"),
    [
        ("dense", 1000, 4 * 1000),
        ("dense half", 1000, 2 * 1000),
        ("randk", 1000, 4 * 100),
        ("shared-randk", 1000, 4 * 100),
        ("shared-topk", 1000, 4),
        ("topk k", 1000, 1 + 2 + 4),  # ten bits, packed
        ("signsgd", 1001, 4 + 1 + 126),
        ("drive", 1025, 4 * 2 + 1 + 129),  # blocks of 1024 and 1
        ("fedscalar", 1000, 4),
        ("fedmrns shared", 1000, 1 + 125),
    ],
)
def test_measured_sizes(setting, dimension, content):
    scheme = make(setting)
    payload = scheme.encode(vectors(1, dimension), seed=1)[0]
    name_and_options = payload.size().header_bytes - 23
    assert name_and_options >= len(scheme.name)
    assert len(payload.to_bytes()) == 23 + name_and_options + content


@pytest.mark.parametrize(
    ("setting", "bits", "tolerance"),
    [
        ("terngrad", 0.876, 0.03),
        ("terngrad clipped", 1.215, 0.01),
        ("qsgd whole", 0.033, 0.006),
        ("topk", 3.2 + 0.47, 0.01),
    ],
)
def test_entropy_coded_bits_of_a_gaussian(setting, bits, tolerance):
    """Bits a coordinate at d = 2^16; what the largest coordinate happens to be moves terngrad's."""
    size = make(setting).encode(vectors(1, 1 << 16, seed=5), seed=1)[0].size()
    assert (size.raw_bits + size.coded_bits) / 2**16 == pytest.approx(
        bits, abs=tolerance * 4 if bits < 1 else tolerance
    )


GOLDEN = {
    "dense": (4028, "8cf6266d1051c704"),
    "topk": (511, "9a62b2bb54c5c5f4"),
    "randk": (440, "f84369cc99d40845"),
    "shared-randk": (447, "afb92720b62d094a"),
    "signsgd": (160, "8df458a830a9c2d8"),
    "stochastic-sign": (168, "d082e314202c7e12"),
    "terngrad": (176, "f933ff4c7e7f706c"),
    "qsgd": (316, "3ec701661789b228"),
    "qsgd whole": (90, "b6eae1329a583ba2"),
    "qsgd linf": (1833, "dc99f38e7e2c2a57"),
    "qsgd fine": (1300, "dcd26e21316c0d32"),
    "fedsparsify": (190, "e0d255e0928bb598"),
}


@pytest.mark.parametrize("setting", GOLDEN)
def test_the_format_is_frozen(setting):
    """Bytes that another version, machine or release of the entropy coder must make and read alike."""
    x = (torch.arange(1000) * 7919 % 1009 - 504.0)[None] ** 3
    content = make(setting).encode(x, seed=1)[0].to_bytes()
    assert (len(content), hashlib.sha256(content).hexdigest()[:16]) == GOLDEN[setting]
