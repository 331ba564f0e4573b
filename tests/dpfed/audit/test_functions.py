"""Audits of anybody's function: what is right passes, what is wrong fails, and everything else is one clear error."""

import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refused

import dpfed.audit
from accounting import Adjacency, FixedSizeSampling, Gaussian, PoissonSampling, guarantee, subsample
from accounting.gaussian import privacy_profile, smallest_epsilon
from dpfed.audit.functions.audit import audit_calls, audit_function
from dpfed.audit.functions.claim import claim_of, equivalent_shift, point_profile
from dpfed.audit.functions.outputs import Output, Worlds, numbers_of, output_of, output_table, pairs_of_updates
from dpfed.audit.one_call import loaded_functions
from dpfed.audit.verdict import Check
from dpfed.cli import status
from dpfed.config.own_code import load_files
from dpfed.errors import ConfigError, RunError
from dpfed.methods.catalogue import all_methods

from .here import in_this_process

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_upload.py"
CLAIM = Gaussian(noise_multiplier=1.0, adjacency=Adjacency.ADD_REMOVE)
QUICK = {"arrays": "numpy", "batched": True, "dimension": 16}


def gaussian(factor=1.0, parts=1, seeded=True, kept=None, weigh=False):
    """A clipped sum with noise, all trials at once; each argument is a fault."""

    def clipped_sum(updates, seeds):
        split = np.array_split(updates, parts, axis=2)
        norms = [np.maximum(np.linalg.norm(one, axis=2, keepdims=True), 1e-12) for one in split]
        total = np.concatenate([one * np.minimum(1, 1 / norm) for one, norm in zip(split, norms, strict=True)], axis=2)
        total = total.sum(axis=1)
        rng = np.random.default_rng([*seeds.tolist()] if seeded else None)
        if kept is None:
            return total + factor * rng.standard_normal(total.shape)
        mask = np.abs(total) >= np.sort(np.abs(total), axis=1)[:, -kept, None]
        return (total + rng.standard_normal(total.shape)) * mask

    return clipped_sum


def one_by_one(updates, seed):
    """Noise follows the seed of every trial."""
    noise = np.random.default_rng(seed).standard_normal(updates.shape[1])
    norms = np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), 1e-12)
    return (updates * np.minimum(1, 1 / norms)).sum(axis=0) + noise


def test_a_sound_function_passes_and_says_what_would_have_been_found():
    done = dpfed.audit.upload(one_by_one, claim=CLAIM, arrays="numpy", dimension=16)
    assert (done.verdict, done.verdict_in_full) == ("pass", "pass on these inputs")
    assert done.score_gap == pytest.approx(1.0, abs=0.1)
    assert 4.377 < done.power.epsilon < 5.73  # 5.73: noise short by a fifth
    assert 1.0 < done.lower_bound < 4.377
    assert done.trials == 6_000
    record = done.to_dict()
    assert record["claimed_epsilon"] == pytest.approx(4.3772, abs=1e-4)
    written = json.loads(json.dumps(record, allow_nan=False))
    assert (written["verdict"], written["verdict_in_full"]) == ("pass", "pass on these inputs")
    for pair in written["pairs"]:
        assert pair.keys() >= {"pair", "score", "gap", "trials", "lower_bound", "lower_bound_gdp", "mu", "too_far"}
        assert (pair["finds"], pair["rejected"]) == ((pair["power"] or {}).get("epsilon"), False)


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize(
    ("fault", "trials"),
    [
        ({"factor": 0.7}, 6_000),
        ({"parts": 4}, 1_000),
        ({"kept": 4}, 1_000),
        ({"factor": 0.0}, 100),
        ({"factor": 0.7, "seeded": False}, 6_000),
    ],
    ids=str,
)
@in_this_process
def test_a_fault_is_found(fault, trials):
    done = audit_function(gaussian(**fault), claim=CLAIM, trials=trials, **QUICK)
    assert done.verdict == "fail"
    assert "does not hold" in done.as_text()


def clipped_at_the_median(updates, seed):
    """The clip norm is the median norm of the cohort, and so is the noise."""
    norms = np.maximum(np.linalg.norm(np.nan_to_num(updates), axis=1, keepdims=True), 1e-12)
    bound = np.median(norms)
    noise = np.random.default_rng(seed).standard_normal(updates.shape[1])
    return (np.nan_to_num(updates) * np.minimum(1, bound / norms)).sum(axis=0) + bound * noise


def divided_by_the_largest(updates, seed):
    """One client's entry scales the updates of all, before they are clipped."""
    return one_by_one(np.nan_to_num(updates) / max(np.abs(np.nan_to_num(updates)).max(), 1e-12), seed)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(
    ("f", "adjacency"), [(clipped_at_the_median, "zero-out"), (divided_by_the_largest, "replace-one")]
)
@in_this_process
def test_a_client_that_changes_what_others_add_is_found(f, adjacency):
    claim = Gaussian(noise_multiplier=1.0, adjacency=Adjacency.of(adjacency))
    done = dpfed.audit.upload(f, claim=claim, arrays="numpy", dimension=16, trials=1_000)
    assert done.verdict == "fail"


@in_this_process
def test_noise_that_does_not_follow_the_seed_is_audited_as_well():
    """Its noise is another one in every run: at this confidence a sound one fails once in 10,000 times at most."""
    pair = pairs_of_updates(CLAIM.adjacency, clients=4, dimension=16, clip_norm=1.0)[:1]
    given = {"worlds": pair, "trials": 10_000, "confidence": 0.9999, **QUICK}
    done = audit_function(gaussian(seeded=False), claim=CLAIM, **given)
    assert done.verdict == "pass"
    assert done.score_gap > 0.9


class InThisProcess:
    """Sums with too little noise, many at a time."""

    def outputs(self, inputs, which, seeds):
        given = [inputs[k].sum(axis=0, keepdims=True) for k in which]
        return [output_of(row) for row in gaussian(factor=0.7)(np.stack(given), np.array(seeds))]


def test_a_bound_above_the_claim_refutes_it():
    """Planted: noise of 0.7 by the errors in the middle alone, where the whole profile says nothing yet."""
    claim = claim_of(CLAIM)
    pairs = pairs_of_updates(claim.adjacency, clients=4, dimension=16, clip_norm=1.0)[:1]
    seen = [audit_calls(InThisProcess(), claim, pairs, trials=500, seed=k) for k in range(3)]
    assert any(test.too_far and not test.test.rejected for done in seen for test in done.tests)
    for done in seen:
        assert (done.verdict == "fail") == any(test.rejected for test in done.tests)
        assert all(test.rejected or test.lower_bound_gdp <= claim.epsilon for test in done.tests)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_neighbours_are_those_of_the_claim(adjacency):
    """They differ in one client, by as much as the adjacency allows: the last, the first, those between."""
    places = []
    for pair in pairs_of_updates(adjacency, clients=3, dimension=8, clip_norm=2.0):
        assert pair.one.shape == (3, 8)
        assert len(pair.other) == (2 if adjacency is Adjacency.ADD_REMOVE else 3)
        others = [np.delete(pair.one, at, axis=0) for at in range(3)]
        if adjacency is Adjacency.ADD_REMOVE:
            at = [k for k in range(3) if np.array_equal(others[k], pair.other) and pair.one[k].any()]
        else:
            at = [k for k in range(3) if np.array_equal(others[k], np.delete(pair.other, k, axis=0))]
        assert len(at) == 1
        places += at
        if adjacency is Adjacency.ZERO_OUT:
            assert not pair.other[at[0]].any()
    assert places[:6] == [2, 0, 1, 2, 0, 1]
    layers = next(
        row
        for row in pairs_of_updates(adjacency, clients=2, dimension=8, clip_norm=2.0, layout=[2, 6])[3].one
        if row.any()
    )
    assert np.linalg.norm(layers[:2]) == pytest.approx(np.linalg.norm(layers[2:]))


def test_all_that_epsilon_and_delta_say_is_randomised_response():
    """Its profile by enumeration: four outcomes with delta/.. shown, the rest e^eps to 1."""
    epsilon, delta = 1.3, 0.01
    p = np.array([delta, 0.0, *((1 - delta) * np.array([math.exp(epsilon), 1]) / (1 + math.exp(epsilon)))])
    q = np.array([0.0, delta, *((1 - delta) * np.array([1, math.exp(epsilon)]) / (1 + math.exp(epsilon)))])
    at = np.array([-2.0, -0.3, 0.0, 0.4, 1.2, 1.3, 1.31, 5.0])
    exact = [np.maximum(p - math.exp(eps) * q, 0).sum() for eps in at]
    np.testing.assert_allclose(point_profile(epsilon, delta)(at), exact, atol=1e-12)


def test_claims_of_every_kind():
    mu = 0.8
    epsilon = float(smallest_epsilon(1e-5, mu=mu))
    assert equivalent_shift(epsilon, 1e-5) == pytest.approx(mu, rel=1e-6)
    sampled = subsample(CLAIM, PoissonSampling(probability=0.1))
    assert not claim_of(sampled).is_gaussian
    assert claim_of(sampled).epsilon < claim_of(CLAIM).epsilon
    given = claim_of(lambda eps: privacy_profile(eps, mu=mu))
    assert given.epsilon == pytest.approx(epsilon, abs=2e-3)
    assert claim_of((2.0, 1e-5), adjacency="zero-out").adjacency is Adjacency.ZERO_OUT
    assert claim_of([4.4, 1e-5]).description == claim_of((4.4, 1e-5), delta=1e-5).description
    refused(ConfigError, "must be \\(epsilon, delta\\)", claim_of, "4")
    refused(ConfigError, "has adjacency add-remove", claim_of, CLAIM, adjacency="zero-out")
    refused(ConfigError, "claim: is missing", dpfed.audit.upload, one_by_one)


def test_the_claim_of_a_guarantee_is_its_epsilon():
    """A budget that ended a loop is below the epsilon of the planned rounds."""
    planned = guarantee(CLAIM, delta=1e-5)
    assert claim_of(planned).is_gaussian
    budget = replace(planned, epsilon=3.0)
    refused(ValueError, "delta=0: must be", claim_of, planned, delta=0)
    assert claim_of(budget).epsilon == 3.0
    assert claim_of(budget).adjacency is Adjacency.ADD_REMOVE


def test_outputs_of_every_kind_are_numbers():
    import torch

    seen = {
        "b": [1, 2.5, b"\x03"],
        "a": (torch.ones(2, requires_grad=True), np.array([1 + 2j])),
        "c": [True, None, "A"],
    }
    assert numbers_of(seen).tolist() == [1, 1, 1, 2, 1, 2.5, 3, 1, 65]
    rows = [Output(numbers=np.array(one), kind=0) for one in ([1.0, math.nan], [2.0], [math.inf, -math.inf])]
    assert output_table(rows).tolist() == [[0, 0, 1, 0, 2, 1], [0, 0, 2, 0, 1, 0], [1, 1, 0, 0, 2, 2]]
    half = torch.tensor([0.0, 1.5], dtype=torch.bfloat16)
    assert numbers_of([half, half.to_sparse()]).tolist() == [0, 1.5, 0, 1.5]
    refused(ConfigError, "returned object", lambda: numbers_of(object()))


def sleeps(updates, seed):
    time.sleep(60)


def dies(updates, seed):
    os._exit(3)


def raises(updates, seed):
    raise ValueError("no such layer")


def nothing_known(updates, seed):
    return object()


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize(
    ("f", "error", "words"),
    [
        (sleeps, RunError, "not done within 1 second"),
        (dies, RunError, "has ended \\(exit status 3\\)"),
        (raises, ConfigError, "ValueError: no such layer"),
        (nothing_known, ConfigError, "returned object"),
    ],
)
def test_a_function_that_cannot_be_audited_is_one_clear_error(f, error, words):
    with pytest.raises(error, match=words):
        audit_function(f, claim=CLAIM, trials=20, time_limit=1 if f is sleeps else 60, arrays="numpy")


@pytest.mark.parametrize(
    "wrong",
    [
        {"arrays": "jax"},
        {"time_limit": 0},
        {"time_limit": "5"},
        {"clients": 1},
        {"layout": [3]},
        {"worlds": []},
        {"worlds": [1]},
        {"trials": 3},
        {"seed": -1},
        {"seed": "a"},
        {"dimension": 0},
        {"clip_norm": "1"},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong):
    refused(ValueError, next(iter(wrong)), audit_function, one_by_one, claim=CLAIM, **wrong)


@pytest.mark.parametrize(
    ("claim", "delta", "words"),
    [
        ((4.4, 1e-5), 1e-3, "states another delta"),
        ((1.0, 0.0), None, "delta=0 is not supported"),
        ((1.0, 0), None, "delta=0 is not supported"),
        ([4.4], None, "two numbers"),
        (Gaussian, None, "claim=<class"),
        (lambda epsilon: 1e-5 if epsilon >= 4.4 else 1.0, None, "of equal shape"),
        (lambda epsilon: 0.1, None, "of equal shape"),
    ],
)
def test_what_is_no_claim_is_refused_in_words(claim, delta, words):
    refused(ConfigError, words, claim_of, claim, delta=delta)


def test_a_claim_without_a_finite_epsilon_has_a_document():
    """The profile of a mechanism that reveals everything; and no time limit."""
    claim = claim_of(np.ones_like)
    assert claim.epsilon == math.inf
    pair = [Worlds(name="a client", one=np.ones((1, 2)), other=np.zeros((1, 2)))]
    found = audit_function(gaussian(), claim=np.ones_like, worlds=pair, trials=20, time_limit=math.inf, **QUICK)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["claimed_epsilon"] is None


class ShowsItsWorld:
    """Randomised response of epsilon 1.2 that shows its world outright with probability 1e-3."""

    def outputs(self, inputs, which, seeds):
        rng, given = np.random.default_rng([len(seeds), *seeds[:2]]), np.array(inputs)[which]
        right = rng.random(len(seeds)) < math.exp(1.2) / (1 + math.exp(1.2))
        shown = rng.random(len(seeds)) < 1e-3
        bit = np.where(right, given, 1 - given)
        return [output_of(row) for row in np.stack([bit, 1.0 * shown, shown * given], axis=1)]


@pytest.mark.slow
def test_a_bound_above_epsilon_and_delta_is_a_fail():
    """Planted: epsilon 1.2 for 1. The verdict and the table are one decision."""
    pair = [Worlds(name="a client", one=1.0, other=0.0)]
    seen = [audit_calls(ShowsItsWorld(), claim_of((1.0, 1e-3)), pair, trials=4_000, seed=k) for k in range(8)]
    assert any(one.too_far for done in seen for one in done.tests)
    for done in seen:
        assert (done.verdict == "fail") or done.lower_bound <= 1.0


@in_this_process
def test_a_client_that_sends_nan_is_noted_and_decides_nothing():
    done = audit_function(gaussian(), claim=CLAIM, trials=100, **QUICK)
    (note,) = done.evidence.checks
    assert isinstance(note, Check)
    assert note.passed is None
    assert done.verdict == "inconclusive"


@pytest.mark.slow
def test_the_command_finds_the_function_in_the_file(capsys, tmp_path):
    arguments = ["audit", "upload", "--load", str(EXAMPLE), "--trials", "1000", "--out", str(tmp_path), "--json"]
    assert status([*arguments, "forgotten-layers"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["verdict"] == "fail"
    assert record == json.loads((tmp_path / "audit.json").read_text())
    page = (tmp_path / "audit.html").read_text()
    assert "What this does not show" in page
    assert "does not hold" in page
    assert status([*arguments[:-1], "clipped_sum", "--epsilon", "100"]) == 0
    assert "claimed epsilon 100" in capsys.readouterr().out


def test_the_maker_of_a_method_is_no_function_to_audit():
    """`dpfed audit upload masked-levels --load own_compressor.py` means the method, though masked_levels makes it."""
    load_files([EXAMPLE.with_name("own_compressor.py"), EXAMPLE])
    assert "masked-levels" in all_methods()
    assert loaded_functions()["clipped_sum"].__name__ == "clipped_sum"


class Drawn:
    """A client that takes part with probability q, and noise."""

    def __init__(self, q, std):
        self.q, self.std = q, std

    def outputs(self, inputs, which, seeds):
        rng, given = np.random.default_rng(list(seeds)), np.array(inputs)[which]
        sums = self.std * rng.standard_normal((len(seeds), 4))
        sums[:, 0] += given * (rng.random(len(seeds)) < self.q)
        return [output_of(row) for row in sums]


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(
    ("q", "trials", "verdict", "short"), [(0.1, 4_000, "inconclusive", 0.3), (0.5, 20_000, "pass", 0.5)]
)
def test_a_drawn_cohort_is_measured_by_its_own_law(q, trials, verdict, short):
    """Planted: the same with half, or a third, of the noise. Power and gap were of a Gaussian of equal epsilon."""
    claim = claim_of(subsample(CLAIM, PoissonSampling(probability=q)))
    pair = [Worlds(name="a client", one=1.0, other=0.0)]
    sound = audit_calls(Drawn(q, 1.0), claim, pair, trials=trials)
    assert sound.verdict == verdict
    assert 0.7 < sound.score_gap < 1.3
    assert audit_calls(Drawn(q, short), claim, pair, trials=trials).verdict == "fail"
    if verdict == "pass":
        assert claim.epsilon < sound.power.epsilon <= claim.drawn_cohort.with_noise_short(0.2).epsilon
        assert "a Gaussian mechanism with this sampling of epsilon" in sound.as_text()


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("sampling", [PoissonSampling(probability=0.3), FixedSizeSampling(clients=10, cohort=3)])
def test_no_law_of_a_drawn_cohort_is_beyond_the_claim(sampling, adjacency):
    """The worlds that power is computed for are neighbours: their errors are within the claimed profile."""
    if sampling.name == "fixed" and adjacency is Adjacency.ADD_REMOVE:
        return
    claim = claim_of(subsample(Gaussian(noise_multiplier=1.0, adjacency=adjacency), sampling))
    for threshold in np.linspace(-3, 4, 6):
        false, missed = claim.drawn_cohort.law.error_rates(threshold)
        for epsilon in (-1.0, 0.0, 0.5, 1.0):
            assert 1 - missed - math.exp(epsilon) * false <= float(claim.profile(np.array([epsilon]))[0]) + 1e-9


OWN = """
import os
import numpy as np
import accounting
from dpfed import audit

CLAIM = accounting.Gaussian(noise_multiplier=1.0, adjacency=accounting.Adjacency.REPLACE_ONE)

@audit.claim(CLAIM, trials=40, seed=3, dimension=4, arrays="numpy")
def sound(updates, seed):
    norms = np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), 1e-12)
    return (updates / np.maximum(norms, 1)).sum(axis=0) + np.random.default_rng(seed).standard_normal(4)

class Object:
    @audit.claim(CLAIM, trials=50, dimension=4, arrays="numpy")
    def __call__(self, updates, seed):
        return sound(updates, seed)

thing = Object()

@audit.claim(CLAIM)
def dies(updates, seed):
    os._exit(3)
"""


def test_the_command_keeps_what_stands_beside_the_function(capsys, tmp_path):
    file = tmp_path / "mine_own.py"
    file.write_text(OWN)
    command = ["audit", "upload", "--load", str(file), "--json"]
    with in_this_process:
        assert status([*command, "sound"]) == 0
        record = json.loads(capsys.readouterr().out)
        assert (record["trials"], record["seed"], record["adjacency"]) == (40, 3, "replace-one")
        assert status([*command, "sound", "--trials", "30", "--noise-multiplier", "2"]) == 1  # it adds half of that
        record = json.loads(capsys.readouterr().out)
        assert (record["trials"], record["adjacency"]) == (30, "replace-one")
    assert status([*command, "thing", "--epsilon", "9"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["trials"], record["adjacency"], record["delta"]) == (50, "replace-one", 1e-5)
    assert status([*command, "soudn"]) == 2
    assert "have dies, sound, thing" in capsys.readouterr().err
    assert status([*command, "dies"]) == 3
