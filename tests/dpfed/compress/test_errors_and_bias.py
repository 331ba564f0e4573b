"""Sparsifiers, signs, levels: their error, bias and averaging against exact formulas, and faults that are caught.

One vector is compressed by TRIALS clients with their own randomness. Squared errors, products with x and errors of
means of ten are then independent, and their mean is compared with the exact value in its standard errors. |z| > 5 has
probability 6e-7 for one right number; about 70 are asked, so one choice of seeds in 20,000 gives a false alarm. The
seeds are fixed.
"""

import math

import pytest
import torch
from reference.compressors import exact_error

import dpfed.compress
from dpfed.compress import levels, sparse

TRIALS, TOGETHER, LIMIT = 2000, 10, 5.0
GAUSSIAN = torch.randn(60, generator=torch.Generator().manual_seed(2))
HEAVY = GAUSSIAN.exp() * torch.randn(60, generator=torch.Generator().manual_seed(3)).sign()

UNBIASED = {
    "randk": ("randk", {"keep": 0.2}),
    "stochastic-sign": ("stochastic-sign", {}),
    "stochastic-sign l2": ("stochastic-sign", {"bound": "l2"}),
    "stochastic-sign constant": ("stochastic-sign", {"bound": 20.0}),
    "terngrad": ("terngrad", {}),
    "qsgd": ("qsgd", {"levels": 3, "bucket": 16}),
    "qsgd linf": ("qsgd", {"levels": 2, "bucket": 7, "norm": "linf"}),
    "qsgd whole": ("qsgd", {"levels": 1, "bucket": None}),
}


def z_score(samples, exact):
    samples = samples.double()
    return abs(float((samples.mean() - exact) / (samples.std() / math.sqrt(len(samples)))))


def z_scores(scheme, x, seed=1):
    """How far error, slope, every coordinate's mean, and the error of means of ten are from what they should be."""
    decoded = scheme.decode(scheme.encode(x.expand(TRIALS, -1), seed=seed)).double()
    error = float(exact_error(scheme, x))
    x = x.double()
    off = decoded - x
    coordinates = off.mean(dim=0) / (off.std(dim=0) / math.sqrt(TRIALS) + 1e-30)
    tens = off.view(-1, TOGETHER, len(x)).mean(dim=1)
    return {
        "error": z_score(off.square().sum(dim=1), error),
        "slope": z_score(decoded @ x, float(x @ x)),
        "tens": z_score(tens.square().sum(dim=1), error / TOGETHER),
        # the largest of 60 |z| is above this by chance as often as one is above 5
        "coordinate": max(0.0, float(coordinates.abs().max()) - 0.8),
    }


@pytest.mark.parametrize("x", [GAUSSIAN, HEAVY], ids=["gaussian", "heavy"])
@pytest.mark.parametrize("setting", UNBIASED)
def test_unbiased_schemes(setting, x):
    name, options = UNBIASED[setting]
    scheme = dpfed.compress.get(name, **options)
    assert scheme.unbiased or options.get("bound") == 20.0
    assert max(z_scores(scheme, x).values()) < LIMIT


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("x", [GAUSSIAN, HEAVY], ids=["gaussian", "heavy"])
def test_a_shared_mask_is_unbiased_over_rounds_but_does_not_average(x):
    scheme = dpfed.compress.get("shared-randk", keep=0.2)
    rounds = torch.stack(
        [scheme.mean(scheme.encode(x.expand(TOGETHER, -1), seed=seed)) for seed in range(500)]
    ).double()
    error = float(exact_error(scheme, x))
    x = x.double()
    assert z_score((rounds - x).square().sum(dim=1), error) < LIMIT
    assert z_score(rounds @ x, float(x @ x)) < LIMIT


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dense", {}),
        ("topk", {"keep": 0.3}),
        ("signsgd", {}),
        ("signsgd", {"scale": "l2"}),
        ("fedsparsify", {"sparsity": 0.7}),
    ],
)
@pytest.mark.parametrize("x", [GAUSSIAN, HEAVY], ids=["gaussian", "heavy"])
def test_biased_schemes_have_their_exact_error(name, options, x):
    scheme = dpfed.compress.get(name, **options)
    error = float((scheme.decode(scheme.encode(x[None], seed=1))[0] - x).square().sum())
    assert error == pytest.approx(float(exact_error(scheme, x)), rel=1e-5, abs=1e-9)


COINS = levels.coins
SIGN = ("stochastic-sign", {})
TERNARY = ("terngrad", {})
RANDK = ("randk", {"keep": 0.2})
QSGD = ("qsgd", {"levels": 3})
LINF = ("qsgd", {"levels": 3, "bucket": 16, "norm": "linf"})


def half_the_largest(self, x):
    return x.abs().amax(dim=1, keepdim=True) / 2


def norms_of_the_first(self, norms, d):
    return norms.repeat(1, 16)[:, :d].maximum(norms.amax(dim=1, keepdim=True))


# scheme, what is replaced, by what, the scores that are too far off
FAULTS = {
    "the same coins for all": (
        SIGN,
        levels,
        "coins",
        lambda p, s, *rest: COINS(p, 0 * s, *rest),
        "slope tens coordinate",
    ),
    "d/k forgotten": (RANDK, sparse.RandK, "_scale_values", lambda _, values, size: values, "slope"),
    "d/k twice": (RANDK, sparse.RandK, "_scale_values", lambda _, values, size: 25 * values, "error slope tens"),
    "a probability of x/B": (
        SIGN,
        levels,
        "coins",
        lambda p, *rest: COINS((2 * p - 1).abs(), *rest),
        "slope coordinate",
    ),
    "half the bound": (SIGN, levels.StochasticSign, "_client_bounds", half_the_largest, "error slope"),
    "always down": (QSGD, levels, "coins", lambda p, *rest: p < 0, "slope coordinate"),
    "to the nearest": (QSGD, levels, "coins", lambda p, *rest: p > 0.5, "error coordinate"),
    "two in a hundred too many": (TERNARY, levels, "coins", lambda p, *rest: COINS(1.05 * p, *rest), "slope"),
    "the first of a bucket": (LINF, levels.Qsgd, "_spread_buckets", norms_of_the_first, "error"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault, monkeypatch):
    (name, options), place, attribute, wrong, seen = FAULTS[fault]
    monkeypatch.setattr(place, attribute, wrong)
    scores = z_scores(dpfed.compress.get(name, **options), GAUSSIAN)
    assert set(seen.split()) <= {what for what, score in scores.items() if not score < LIMIT}, scores


TABLE = {
    # known values for Gaussian x at d = 2^16: scheme, options, error of one, of ten clients, slope
    "topk 1%": ("topk", {"keep": 0.01}, 0.916, 0.915, 0.085),
    "topk 3%": ("topk", {"keep": 0.03}, 0.806, 0.805, 0.194),
    "randk 1%": ("randk", {"keep": 0.01}, 99, 99, 1),
    "randk 1% unscaled": ("randk", {"keep": 0.01, "scaled": False}, 0.990, 0.990, 0.010),
    "shared-randk 1%": ("shared-randk", {"keep": 0.01}, 99, 99, 1),
    "signsgd": ("signsgd", {}, 1 - 2 / math.pi, 0.364, 0.637),
    "signsgd l2": ("signsgd", {"scale": "l2"}, 2 - 2 * math.sqrt(2 / math.pi), 0.404, 0.798),
    "qsgd 16": ("qsgd", {}, 0.333, 0.335, 1),
    "qsgd 7 linf": ("qsgd", {"levels": 7, "norm": "linf"}, 0.0364, 0.0363, 1),
    "qsgd 256 whole": ("qsgd", {"levels": 256, "bucket": None}, 0.167, 0.166, 1),
    "terngrad clipped": ("terngrad", {"clip": 2.5}, 1.010, 1.006, 0.987),
    "fedsparsify": ("fedsparsify", {}, 0.806, 0.805, 0.194),
}


@pytest.mark.parametrize("row", TABLE)
def test_the_errors_of_gaussian_updates(row):
    """Error of one client, of the mean of ten, and slope at d = 2^16, within five standard errors.

    The error of one and the slope average 10 d coordinates, of which rand-k keeps 6,550; the mean of ten has d of its
    own, and a shared mask 655.
    """
    name, options, one, ten, slope = TABLE[row]
    x = torch.randn(10, 1 << 16, generator=torch.Generator().manual_seed(4))
    scheme = dpfed.compress.get(name, **options)
    payloads = scheme.encode(x, seed=6)
    decoded, mean = scheme.decode(payloads), x.mean(dim=0)
    kept = 6550 if "rand" in name else 10 * 2**16
    kept_of_ten = {"randk": 6550, "shared-randk": 655}.get(name, 2**16 / 2)
    error = float((decoded - x).square().sum() / x.square().sum())
    error_of_ten = float((scheme.mean(payloads) - mean).square().sum() / mean.square().sum())
    assert error == pytest.approx(one, rel=5 * math.sqrt(2 / kept))
    assert error_of_ten == pytest.approx(ten, rel=5 * math.sqrt(2 / kept_of_ten))
    assert float((decoded * x).sum() / x.square().sum()) == pytest.approx(slope, rel=5 * math.sqrt(2 / kept))
