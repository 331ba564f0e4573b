"""A second set of settings of others: no epsilon is below that of the worst reading, by closed forms and integration.

Truths are derived from what the library does (its code), not from this package: a Gaussian of sensitivity 2 C for
replace-one neighbours, or one Poisson round integrated numerically.
"""

import json
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpfed.explain.settings import explain

INF = math.inf


def explained(folder, settings):
    """Explain settings from a JSON file in this folder."""
    (folder / "settings.json").write_text(json.dumps(settings))
    return explain(str(folder / "settings.json"))


def gaussian(mu, delta=1e-5):
    """Epsilon of a Gaussian of sensitivity over noise mu: root of its privacy profile."""

    def excess(epsilon):
        late = norm.logcdf(-epsilon / mu - mu / 2) + epsilon
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(late) - delta

    return brentq(excess, 0, mu**2 / 2 + 10 * mu + 10)


def one_poisson_round(rate, noise, delta=1e-5):
    """Epsilon of one Poisson round for replace-one: N(0) with N(1), against N(0) with N(-1), by integration."""
    x = np.linspace(-40 * noise, 40 * noise, 400_001)

    def density(centre):
        return (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, centre, noise)

    def excess(epsilon):
        beyond = np.maximum(density(1.0) - math.exp(epsilon) * density(-1.0), 0)
        return np.trapezoid(beyond, x) - delta

    return brentq(excess, 0, 50)


def gaussian_of_all():
    """Epsilon of nine rounds of all 100 nodes, Flower's default, under the noise of a mean of ten."""
    return gaussian(3 * 10 / 100)


def poisson_rounds(rate, noise, rounds, delta=1e-5):
    """Epsilon of Poisson rounds for add-remove, no more than that of replace-one, by dp-accounting."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    return PLDAccountant().compose(step, rounds).get_epsilon(delta)


F = {
    "noise_multiplier": 50.0,
    "clipping_norm": 1.0,
    "num_sampled_clients": 10,
    "num_clients": 100,
    "num_server_rounds": 9,
}
M = 2 * 10 * 3 / 50
"""Settings of a mean of ten with weights up to 1: sensitivity 2 C, noise 50 C / 10, nine rounds."""
S = {"noise_multiplier": 50.0, "max_grad_norm": 1.0, "n": 100, "batch_size": 10}
P = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "n": 1000, "batch_size": 100, "steps": 1, "poisson_sampling": True}
T = {"noise_multiplier": 4.0, "clip": 0.5, "clients_per_round": 50, "num_clients": 1000, "num_rounds": 4}
A = {"noise_scale": 8.0, "clipping_bound": 1.0, "cohort_size": 50, "population": 100, "central_num_iterations": 10}
NO = {"noise_multiplier": None}

OTHERS = {
    "filter, two clip norms": (
        {"sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5, "clipping_norm": 1.0, "clip": 4.0},
        gaussian(2 * 4 / (2 * math.log(1.25e5)) ** 0.5)),
    "flower, min_fit_clients above the fraction": (F | {"fraction_fit": 0.05, "min_fit_clients": 10}, gaussian(M)),
    "flower, fraction 0": (F | {"fraction_fit": 0.0, "min_fit_clients": 10}, gaussian(M)),
    "flower, few available": (F | {"min_available_clients": 2, "fraction_fit": 0.1}, gaussian(M)),
    "flower, more drawn than the noise is for": (F | {"fraction_train": 0.5}, gaussian(M)),
    "flower, median": (F | {"strategy_class": "FedMedian"}, gaussian(M * 2**0.5)),
    "flower, krum": (F | {"strategy_class": "MultiKrum"}, gaussian(M)),
    "flower, trimmed mean": (F | {"strategy": "FedTrimmedAvg"}, gaussian(M * 10 / 6)),
    "flower, secure sums that round": (F | {"quantization_range": 2**22, "clipping_range": 8.0}, INF),
    "flower, secure sums": (F | {"secagg": True}, gaussian(M)),
    "flower, noise of an unknown number": (
        {"noise_multiplier": 1.0, "clipping_norm": 1.0, "fraction_train": 0.1, "num_clients": 100}, INF),
    "flower, its accountant, a fraction of unknown nodes": (
        F | {"accountant": True, "fraction_train": 0.1, "num_clients": None}, gaussian(M / 2)),
    "flower, its accountant refuses unequal weights": (F | {"accountant": True}, gaussian(2 * 3 / 50)),
    "filter, a noise multiplier beside its epsilon": (
        {"sensitivity": 1.0, "epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "noise_multiplier": 0.5}, gaussian(4.0)),
    "nvflare, percentile with noise beside it": ({"percentile": 10, "clip": 1.0, "noise_multiplier": 1.0}, INF),
    "opacus, a Poisson step": (P, lambda: one_poisson_round(0.1, 1.0)),
    "opacus, a delta below that of Poisson accounts": (P | {"delta": 1e-14}, gaussian(2.0, 1e-14)),
    "opacus, records of one or of all clients": (P | {"num_clients": 10}, gaussian(2.0)),
    "opacus, records of one or of all drawn clients": (P | {"clients_per_round": 10}, gaussian(2.0)),
    "opacus, on a node of Flower": (
        P | {"num_sampled_clients": 1, "steps": None, "local_epochs": 1, "num_rounds": 4}, gaussian(2 * 40**0.5)),
    "opacus, a sampler that weighs": (S | {"epochs": 3, "sampler": "WeightedRandomSampler"}, INF),
    "opacus, a clip norm that clips nothing": (P | {"max_grad_norm": -1}, INF),
    "opacus, four processes": (P | {"world_size": 4}, lambda: one_poisson_round(0.4, 1.0)),
    "opacus, the rate alone": (
        {"noise_multiplier": 1.2, "max_grad_norm": 1.0, "sample_rate": 0.01, "epochs": 5, "poisson_sampling": True},
        lambda: poisson_rounds(0.01, 1.2, 500),
    ),
    "opacus, its loader without the last batch": (
        P | {"n": 500, "batch_size": 256, "steps": None, "epochs": 1, "drop_last": True}, gaussian(2.0)),
    "opacus, its example script": (
        {"sigma": 8.0, "max_per_sample_grad_norm": 1.0, "batch_size": 25, "n": 100, "epochs": 4}, gaussian(2 * 4 / 8)),
    "opacus, an epsilon to be reached": (S | NO | {"target_epsilon": 3.0, "target_delta": 1e-5, "epochs": 3}, INF),
    "opacus, noise that decays": (S | {"noise_scheduler": "exponential", "noise_gamma": 0.99, "epochs": 3}, INF),
    "opacus, batches in a fixed order": (S | {"poisson_sampling": False, "epochs": 10}, gaussian(0.4)),
    "opacus, epochs and local epochs": (S | {"epochs": 5, "local_epochs": 2}, gaussian(2 * 10 / 50)),
    "opacus, steps below the epochs": (S | {"max_steps": 16, "epochs": 4}, gaussian(2 * 40**0.5 / 50)),
    "opacus, one step of each of 16 rounds": (
        {"noise_multiplier": 8.0, "max_grad_norm": 1.0, "rounds": 16, "local_steps": 1}, gaussian(1.0)),
    "opacus, epochs of unknown length": ({"noise_multiplier": 8.0, "max_grad_norm": 1.0, "epochs": 10}, INF),
    "transformers, their names": (
        {"noise_multiplier": 8.0, "per_sample_max_grad_norm": 0.1, "num_train_epochs": 4, "dataset_size": 100,
         "per_device_train_batch_size": 25},
        gaussian(2 * 4 / 8),
    ),
    "tf privacy, microbatches": (
        {"l2_norm_clip": 1.0, "noise_multiplier": 8.0, "num_microbatches": 5, "batch_size": 25, "n": 100, "epochs": 4},
        gaussian(2 * 5 * 4 / 8),
    ),
    "tff, two numbers of rounds": (T | {"total_rounds": 16}, gaussian(2 * 4 / 4)),
    "opacus, more steps in an epoch than batches": (S | {"epochs": 2, "steps_per_epoch": 50}, gaussian(2 * 10 / 50)),
    "opacus, two sizes of a batch": (S | {"epochs": 1, "train_batch_size": 50}, gaussian(2 * 10**0.5 / 50)),
    "jax_privacy, more steps in an epoch than batches": (
        {"noise_multiplier": 8.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_examples": 100, "num_epochs": 2,
         "steps_per_epoch": 50}, gaussian(2 * 10 / 8)),
    "tff, weights, as a word": (T | {"weighted": "true", "noise_multiplier": 90.0}, gaussian(2 * 100 / 90)),
    "tff, random coordinates": (T | {"compression": "randk"}, INF),
    "a script, units drawn again": (T | {"sampling": "with_replacement"}, INF),
    "opacus, a clip norm beside those of layers": (
        {"sigma": 1.0, "max_grad_norm": [0.5, 0.5], "clip_norm": 5.0, "steps": 1}, gaussian(2 * 5 * 2**0.5)),
    "tff, turned off": (T | {"enable_dp": False}, INF),
    "opacus, turned off by its example's flag": (P | {"disable_dp": True}, INF),
    "pfl, a clip norm alone": (A | {"central_privacy_mechanism": "norm_clipping_only"}, INF),
    "pfl, silos of unknown sizes in turn": (
        A | {"user_sampler": "minimize_reuse", "num_silos": 3}, gaussian(2 * 50 * 10**0.5 / 8)),
    "tff, tree in a list": (T | {"aggregators": ["tree_aggregation"]}, gaussian(28**0.5 * 2 / 4)),
    "tff, two cohorts": (
        T | {"cohort_size": 500, "num_rounds": 1, "noise_multiplier": 1.0, "sampling": "poisson", "secret": True},
        lambda: one_poisson_round(0.5, 1.0)),
    "tff, the largest entry is clipped": (T | {"norm_type": INF}, INF),
    "tff, tree by its class": (T | {"aggregator": "TreeCumulativeSum"}, gaussian(28**0.5 * 2 / 4)),
    "tff, adaptive by its first clip norm": (
        T | {"clip": None, "initial_l2_norm_clip": 0.5}, gaussian(2 * math.hypot(2 / 4, 20 / 50))),
    "tff, zeroing": (T | {"zeroing": True}, INF),
    "tff, tree": (T | {"aggregator": "tree_adaptive"}, gaussian(28**0.5 * math.hypot(2 / 4, 20 / 50))),
    "tff, adaptive by a quantile": (T | {"target_unclipped_quantile": 0.5}, gaussian(2 * math.hypot(2 / 4, 20 / 50))),
    "tff, batches of clients": (T | {"batch_size": 20, "local_epochs": 3, "sampling": "poisson"}, gaussian(2 * 2 / 4)),
    "tff, options that are off": (T | {"adaptive_clipping": False, "zeroing": False}, gaussian(2 * 2 / 4)),
    "tff, two deltas": (T | {"delta": 1e-3, "target_delta": 1e-6}, gaussian(2 * 2 / 4, 1e-6)),
    "pfl, users in turn": (A | {"user_sampler": "minimize_reuse"}, gaussian(2 * 5**0.5 / 8)),
    "pfl, each user once in a cohort": (A | {"sampling": "poisson"}, gaussian(2 * 10**0.5 / 8)),
    "pfl, weights whose sum has no noise": (A | {"sampling": "poisson", "weighting": "token"}, INF),
    "pfl, random users": (A | {"user_sampler": "random", "noise_scale": 200.0}, gaussian(2 * 50 * 10**0.5 / 200)),
    "pfl, a scale on the noise": (
        A | {"noise_parameter": 80.0, "noise_scale": 0.1, "sampling": "fixed"}, gaussian(2 * 10**0.5 / 8)),
    "jax_privacy, its names": (
        {"noise_multiplier": 8.0, "clipping_norm": 1.0, "batch_size": 10, "num_examples": 100,
         "num_training_updates": 16},
        gaussian(2 * 4 / 8),
    ),
    "jax_privacy, a Poisson step": (
        {"noise_multiplier": 1.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_examples": 100, "num_updates": 1,
         "batch_selection_strategy": "poisson"},
        lambda: one_poisson_round(0.1, 1.0),
    ),
    "jax_privacy, batches that may hold a record twice": (
        {"noise_multiplier": 8.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_examples": 100, "num_updates": 16,
         "sampling": "uniform"}, gaussian(1.0)),
    "jax_privacy, accumulated batches": (
        {"noise_multiplier": 1.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_examples": 100, "num_updates": 1,
         "batch_selection_strategy": "poisson", "gradient_accumulation_steps": 4},
        lambda: one_poisson_round(0.4, 1.0),
    ),
    "jax_privacy, another sampling probability": (
        {"noise_multiplier": 1.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_examples": 100, "num_updates": 1,
         "batch_selection_strategy": "poisson", "sampling_prob": 0.3},
        lambda: one_poisson_round(0.3, 1.0),
    ),
    "jax_privacy, truncated Poisson batches": (
        {"noise_multiplier": 8.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_examples": 100, "num_updates": 4,
         "batch_selection_strategy": "poisson", "truncated_batch_size": 10}, gaussian(2 * 2 / 8)),
    "a script, a multiplier and a smaller deviation": (
        {"noise_multiplier": 2.0, "noise_std": 1.0, "clip": 2.0, "rounds": 1}, gaussian(2 / 0.5)),
    "a script, rounds of unknown length": (
        {"noise_multiplier": 9.0, "clip_norm": 1.0, "batch_size": 10, "num_clients": 100, "num_rounds": 4}, INF),
    "jax_privacy, bands by another name": (
        {"noise_multiplier": 8.0, "l2_clip_norm": 1.0, "batch_size": 10, "num_examples": 100, "iterations": 4,
         "bands": 2}, gaussian(2 * 13**0.5 / 8)),
    "a script, epochs of unknown length": (
        {"noise_multiplier": 9.0, "clip_norm": 1.0, "batch_size": 10, "num_epochs": 4}, INF),
    "a script, epochs of a client's unknown records": (
        {"noise_multiplier": 9.0, "clip_norm": 1.0, "batch_size": 10, "num_clients": 100, "local_epochs": 4}, INF),
    "a script, epochs of all records": (
        {"noise_multiplier": 9.0, "clip_norm": 1.0, "batch_size": 10, "num_clients": 20, "num_examples": 1000,
         "local_epochs": 4}, gaussian(2 * 20 / 9)),
    "a script, steps of rounds": (
        {"noise_multiplier": 9.0, "clip_norm": 1.0, "batch_size": 10, "num_rounds": 2, "num_steps": 8},
        gaussian(2 * 4 / 9)),
    "tff, updates": (T | {"num_rounds": None, "num_updates": 16}, gaussian(2 * 4 / 4)),
    "a script, two clip norms": ({"sigma": 4.0, "clip": 1.0, "clip_norm": 2.0, "rounds": 1}, gaussian(1.0)),
}  # fmt: skip
"""Settings, and epsilon of their worst reading; infinite where nothing in the settings bounds it."""
LOOSER = {"opacus, the rate alone"}
"""Truths that are only lower bounds of the worst reading."""


@pytest.mark.slow_but_one_in(21)
@pytest.mark.parametrize("name", OTHERS)
def test_no_epsilon_is_below_that_of_the_worst_reading(name, tmp_path):
    settings, truth = OTHERS[name]
    truth = truth() if callable(truth) else truth
    found = explained(tmp_path, settings)
    assert found.epsilon >= truth * (1 - 1e-6)
    assert found.epsilon <= truth * (1 + 1e-3) or name in LOOSER
    assert found.unbounded or found.at_least <= truth


def test_opacus_draws_at_one_over_the_number_of_batches(tmp_path):
    """Rate of its loader: 1 / ceil(n / batch), or 1 / floor(n / batch) with drop_last: 1/2, not 499/500."""
    settings = P | {"n": 500, "batch_size": 499, "steps": None, "epochs": 2}
    assert explained(tmp_path, settings).at_least <= poisson_rounds(0.5, 1.0, 4)
    assert explained(tmp_path, settings | {"batch_size": 256, "drop_last": True}).epsilon >= gaussian(2 * 2**0.5)


@pytest.mark.parametrize(
    ("settings", "ran"),
    [
        (P | {"steps": 5, "epochs": 40}, lambda: poisson_rounds(0.1, 1.0, 5)),
        (P | {"steps": None, "epochs": 4, "gradient_accumulation_steps": 4}, lambda: poisson_rounds(0.1, 1.0, 40)),
        (P | {"n": 100, "batch_size": 60, "steps": 4, "poisson_sampling": False, "shuffle": True, "drop_last": False},
         lambda: gaussian(2**0.5)),
        (T | {"noise_multiplier": 0.3, "clients_per_round": 100, "num_rounds": 10, "sampling": "cyclic"},
         lambda: gaussian(1 / 0.6)),
        (T | {"population": 10**6}, lambda: poisson_rounds(5e-5, 8.0, 4)),
        (T | {"noise_std": 0.1, "clip": 1.0}, lambda: gaussian(2 / 4)),
        (P | {"steps": None, "local_epochs": 1, "rounds": 9, "cohort_size": 1}, lambda: poisson_rounds(0.1, 1.0, 10)),
        (F | {"noise_multiplier": 1.0}, gaussian_of_all),
        (F | {"noise_multiplier": 1.0, "fraction_train": 1.0}, gaussian_of_all),
    ],
)  # fmt: skip
def test_at_least_is_not_above_the_epsilon_of_a_run_that_fits(settings, ran, tmp_path):
    """Fewer steps than epochs have, batches in parts, a last batch that is kept, two numbers of one kind, all nodes."""
    assert explained(tmp_path, settings).at_least <= ran() * (1 + 1e-9)
