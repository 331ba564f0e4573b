"""What each sparsifier, sign, quantiser and pruning does on vectors whose answer is known by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference.compressors import exact_error
from refusals import refused

import dpfed.compress
from dpfed.compress.levels import clamp_coordinates
from dpfed.compress.payload import encode_with_feedback
from dpfed.compress.sparse import cubic_sparsity
from dpfed.errors import ConfigError


def decoded(name, x, seed=1, **options):
    scheme = dpfed.compress.get(name, **options)
    return scheme.decode(scheme.encode(torch.tensor(x), seed=seed)).tolist()


def mean(name, x, **options):
    scheme = dpfed.compress.get(name, **options)
    return scheme.mean(scheme.encode(torch.tensor(x), seed=1)).tolist()


def test_topk():
    assert decoded("topk", [[1.0, -3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]], k=2) == [[0, -3, 3, 0], [0, 0, 0, 0]]
    assert decoded("topk", [[1.0, 1.0, -1.0]], k=2) == [[1, 1, 0]]
    assert decoded("topk", [[5.0]]) == [[5]]
    assert mean("topk", [[1.0, 0.0], [0.0, 3.0]], k=1) == [0.5, 1.5]


def test_randk_keeps_k_coordinates_times_d_over_k():
    x = [[1.0, 2.0, 3.0, 4.0, 5.0]] * 300
    rows = torch.tensor(decoded("randk", x, k=2))
    assert ((rows != 0).sum(dim=1) == 2).all()
    assert set(rows.unique().tolist()) == {0, 2.5, 5, 7.5, 10, 12.5}
    assert len({tuple(row) for row in rows.tolist()}) == 10
    assert set(torch.tensor(decoded("randk", x, k=2, scaled=False)).unique().tolist()) == {0, 1, 2, 3, 4, 5}
    assert decoded("randk", x[:1], k=5) == x[:1]


def test_a_shared_mask_is_one_mask():
    rows = torch.tensor(decoded("shared-randk", [[1.0] * 50] * 9, k=5, seed=2))
    assert (rows == rows[0]).all()
    assert sorted(rows[0].unique().tolist()) == [0, 10]
    assert decoded("shared-randk", [[1.0] * 50] * 9, k=5, seed=3) != rows.tolist()


def test_public_coordinates():
    x = [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]
    indices = torch.tensor([2, 0])
    assert decoded("shared-topk", x, indices=indices) == [[1, 0, 3, 0], [5, 0, 7, 0]]
    assert mean("shared-topk", x, indices=indices.int()) == [3, 0, 5, 0]


def test_public_coordinates_do_not_travel_but_are_checked():
    x = torch.ones(1, 4)
    scheme, other = (dpfed.compress.get("shared-topk", indices=torch.tensor(one)) for one in ([0, 2], [0, 3]))
    payload = dpfed.compress.from_bytes(scheme.encode(x)[0].to_bytes())
    assert scheme.decode([payload]).tolist() == [[1, 0, 1, 0]]
    refused(ValueError, "this decoder is", other.decode, [payload])
    refused(ConfigError, "public coordinates", payload.scheme.decode, [payload])


@pytest.mark.parametrize(
    "indices", [[], [1, 1], [-1, 2], [0.5], [[1]], [True]], ids=["none", "twice", "negative", "floats", "2d", "bool"]
)
def test_refused_public_coordinates(indices):
    refused(ConfigError, "indices", dpfed.compress.get, "shared-topk", indices=torch.tensor(indices))


def test_public_coordinates_beyond_d():
    with pytest.raises(ConfigError, match="do not fit into d=4"):
        dpfed.compress.get("shared-topk", indices=torch.tensor([1, 4])).encode(torch.ones(1, 4))


def test_signs():
    assert decoded("signsgd", [[1.0, -3.0, 0.0, -0.0]]) == [[1, -1, 1, 1]]
    torch.testing.assert_close(
        torch.tensor(decoded("signsgd", [[3.0, -4.0]], scale="l2")), torch.tensor([[12.5**0.5, -(12.5**0.5)]])
    )


def test_a_majority_votes_and_ties_are_plus():
    x = [[1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, -1.0]]
    assert mean("signsgd", x, majority=True) == [1, -1, 1, -1]
    assert mean("signsgd", [[1.0, -1.0], [-9.0, 1.0], [-1.0, -1.0]], majority=True) == pytest.approx([-7 / 3, -7 / 3])
    assert mean("stochastic-sign", [[1.0, -1.0]] * 3, majority=True) == [1, -1]
    assert mean("stochastic-sign", [[9.0, -9.0]] * 3, bound=2.0, majority=True) == [2, -2]
    assert mean("signsgd", [[1.0]] * 200 + [[-1.0]] * 100, majority=True) == [1]  # more than a byte counts


def test_a_bound_clamps():
    assert decoded("stochastic-sign", [[7.0, -7.0, 2.0]] * 50, bound=2.0) == [[2, -2, 2]] * 50


def test_terngrad():
    rows = torch.tensor(decoded("terngrad", [[2.0, -1.0, 0.0]] * 100))
    assert (rows[:, 0] == 2).all()
    assert set(rows[:, 1].tolist()) == {-2, 0}
    assert (rows[:, 2] == 0).all()


def test_clipping_a_constant_leaves_it():
    assert decoded("terngrad", [[3.0], [-2.0]], clip=2.5) == [[3], [-2]]
    x = torch.tensor([[10.0] + [0.0] * 99])
    assert clamp_coordinates(x, 2.5)[0, 0] == 2.5


def test_levels_that_need_no_rounding_are_exact():
    x = [[1.0, -0.5, 0.25, 0.0, 8.0, -8.0, 2.0]]
    assert decoded("qsgd", x, levels=4, bucket=4, norm="linf") == x
    assert decoded("qsgd", [[3.0, 0.0]], levels=1) == [[3, 0]]
    assert decoded("qsgd", [[0.0, 0.0, 1.0]], bucket=2) == [[0, 0, 1]]


def test_one_level_of_the_largest_is_terngrad_in_law():
    """Same values and the same exact error."""
    x = torch.randn(30)
    qsgd = dpfed.compress.get("qsgd", levels=1, bucket=None, norm="linf")
    assert float(exact_error(qsgd, x)) == pytest.approx(float(exact_error(dpfed.compress.get("terngrad"), x)))


@given(st.integers(1, 300), st.integers(0, 99))
def test_exactly_the_asked_share_is_zeroed(dimension, percent):
    x = torch.rand(2, dimension, generator=torch.Generator().manual_seed(dimension)) + 1
    rows = dpfed.compress.get("fedsparsify", sparsity=percent / 100)
    zeros = (rows.decode(rows.encode(x)) == 0).sum(dim=1)
    assert zeros.tolist() == [percent * dimension // 100] * 2


def test_a_decimal_fraction_is_meant():
    """0.29 · 100 is 28.999999999999996 in doubles; 29 are zeroed, and 29 are kept by the sparsifiers."""
    assert dpfed.compress.get("fedsparsify", sparsity=0.29).layout(100)["values"].count == 71
    assert [dpfed.compress.get(name, keep=0.29).layout(100)["values"].count for name in ("topk", "randk")] == [29, 29]


def test_ties_are_pruned_from_the_end():
    assert decoded("fedsparsify", [[1.0, -1.0, 1.0, 1.0]], sparsity=0.5) == [[1, -1, 0, 0]]


def test_the_cubic_schedule():
    shares = [cubic_sparsity(round, initial=0.2, final=0.9, rounds=20) for round in range(40)]
    assert shares[0] == 0.2
    assert shares[20:] == [0.9] * 20
    assert shares[10] == pytest.approx(0.9 - 0.7 / 8)
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("topk", {"keep": 0.0}, "fraction in"),
        ("topk", {"k": 0}, "at least 1"),
        ("randk", {"keep": 1.5}, "fraction in"),
        ("randk", {"scaled": 1}, "true or false"),
        ("shared-topk", {}, "public coordinates"),
        ("shared-topk", {"indices": torch.tensor([1]), "k": 2}, "not of the given indices"),
        ("signsgd", {"scale": "linf"}, "'l1' or 'l2'"),
        ("stochastic-sign", {"bound": 0.0}, "bound"),
        ("stochastic-sign", {"bound": math.inf}, "bound"),
        ("stochastic-sign", {"bound": "l1"}, "'l2' or 'linf' or a number"),
        ("terngrad", {"clip": -1.0}, "clip"),
        ("terngrad", {"clip": math.nan}, "clip"),
        ("qsgd", {"levels": 0}, "levels"),
        ("qsgd", {"bucket": 0}, "bucket"),
        ("qsgd", {"bucket": 2.5}, "an integer or none"),
        ("fedsparsify", {"sparsity": 1.0}, "sparsity"),
        ("dens", {}, "Did you mean 'dense'"),
        ("dense", {"bit": 16}, r"options \(bits\)"),
        ("dense", {"bits": "16"}, "must be an integer"),
        ("dense", {"bits": 8}, "16 or 32"),
        ("drive", {"scale": "best"}, "unbiased"),
        ("drive", {"rounds": 0}, "rounds=0"),
        ("drive", {"block": 3}, "block=3"),
        *[("eden", {"bits": bits}, f"bits={bits}") for bits in (5, 1.5, 0, math.nan)],
        ("fedscalar", {"vectors": "cauchy"}, "rademacher"),
        ("fedscalar", {"projections": 0}, "projections=0"),
        ("fedscalar", {"shared_seed": 2**64}, "64 bits"),
        ("fedscalar", {"shared_seed": 1.5}, "shared_seed"),
        *[(name, {"noise": "cauchy"}, "uniform") for name in ("fedmrn", "fedmrns")],
        *[(name, {"alpha": one}, "alpha") for name in ("fedmrn", "fedmrns") for one in (0.0, -1.0, math.nan, math.inf)],
        *[(name, {"shared_seed": -(2**64)}, "64 bits") for name in ("fedmrn", "fedmrns")],
    ],
)
def test_refused_options(name, options, words):
    refused(ConfigError, words, dpfed.compress.get, name, **options)


@pytest.mark.parametrize("name", ["topk", "randk", "shared-randk"])
def test_more_than_there_are(name):
    refused(ConfigError, "at most d=4", lambda: dpfed.compress.get(name, k=5).encode(torch.ones(1, 4), seed=1))


@pytest.mark.parametrize(("name", "options"), [("topk", {"k": 1}), ("signsgd", {}), ("fedsparsify", {"sparsity": 0.9})])
def test_error_feedback_sends_everything_in_the_long_run(name, options):
    """Σ decoded = Σ x - e, exactly; and e stays bounded, so that the mean over rounds becomes x."""
    scheme = dpfed.compress.get(name, **options)
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(1))
    error, total = torch.zeros(3, 10), torch.zeros(3, 10)
    for round in range(400):
        payloads, error = encode_with_feedback(scheme, x, error, seed=round)
        total += scheme.decode(payloads)
    torch.testing.assert_close(total + error, 400 * x, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(total / 400, x, rtol=0, atol=0.15)


def test_error_feedback_of_another_shape():
    with pytest.raises(ConfigError, match="zeros in the first round"):
        encode_with_feedback(dpfed.compress.get("topk"), torch.ones(2, 3), torch.zeros(3), seed=1)
