"""Descriptions: what they refuse, and that a dictionary carries all of them and nothing else."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference.shorthand import fixed, gaussian, poisson, times
from refusals import refused

from accounting import mechanisms
from accounting.errors import AccountingError, InvalidParameter, UnsupportedMechanism
from accounting.mechanisms import (
    Adjacency,
    CappedPoissonSampling,
    Composed,
    FixedSizeSampling,
    FullParticipation,
    Gaussian,
    PoissonSampling,
    Subsampled,
    repeated,
    simultaneous,
)
from accounting.mechanisms.samplings.planned import Cohorts

NOT_POSITIVE = [0, -1.0, math.nan, math.inf, -math.inf, True, "1", None, [1.0], 10**400, 1j]
NOT_ADJACENCIES = ["replace", "", None, 3, [], {}]
NOT_CHANCES = [-0.1, 1.1, math.nan, math.inf, True, "0.1", None, [0.1]]
NOT_COUNTS = [0, -1, 2.5, 2.0, math.nan, True, "2", None, 10**16]


WHOLE = "must be a whole number from 1"
NO_MECHANISMS = [None, 3, times(gaussian(1.0), 2)]
NO_PARTS = [5, None, "ab", ((1, 2),), (gaussian(1.0),), ((gaussian(1.0), 1, 2),), ((times(gaussian(1.0), 2), 2),)]


def _poisson(probability):
    return PoissonSampling(probability=probability)


ADJACENCY = "adjacency=.*must be one of add-remove, zero-out, replace-one"
WRONG = [
    (r"noise_multiplier=.*a finite number above 0, from 1e-09 to 1e\+09", gaussian, [*NOT_POSITIVE, 1e-10, 1e10]),
    (ADJACENCY, lambda bad: Gaussian(noise_multiplier=1.0, adjacency=bad), NOT_ADJACENCIES),
    (ADJACENCY, lambda bad: simultaneous([1.0], bad), NOT_ADJACENCIES),
    (ADJACENCY, Adjacency.of, NOT_ADJACENCIES),
    (r"sampling_probability=.*must be a probability in \[0, 1\]", _poisson, NOT_CHANCES),
    (f"cohort=.*{WHOLE}", lambda bad: FixedSizeSampling(cohort=bad, clients=10), NOT_COUNTS),
    (f"clients=.*{WHOLE}", lambda bad: FixedSizeSampling(cohort=1, clients=bad), NOT_COUNTS),
    (f"count=.*{WHOLE}", lambda bad: times(gaussian(1.0), bad), NOT_COUNTS),
    ("cohort=11 of clients=10: .*at most all clients", lambda bad: FixedSizeSampling(cohort=bad, clients=10), [11]),
    ("parts", lambda bad: Composed(parts=bad), NO_PARTS),
    (r"parts=\(\): .*at least one mechanism", lambda bad: Composed(parts=bad), [()]),
    ("at least one mechanism", Composed.of, [[]]),
    ("must be a Gaussian", lambda bad: Subsampled(mechanism=bad, sampling=_poisson(0.1)), NO_MECHANISMS),
    ("one of PoissonSampling", lambda bad: Subsampled(mechanism=gaussian(1.0), sampling=bad), NO_MECHANISMS),
]  # fmt: skip


@pytest.mark.parametrize(("words", "make", "values"), WRONG)
def test_what_describes_no_mechanism_is_refused(words, make, values):
    for bad in values:
        refused(InvalidParameter, words, make, bad)


def test_fixed_size_sampling_has_no_add_remove():
    for cohort in (3, 10):
        with pytest.raises(UnsupportedMechanism, match=r"adjacency='add-remove' with fixed-size.*'replace-one'"):
            mechanisms.subsample(gaussian(1.0), FixedSizeSampling(cohort=cohort, clients=10))


def test_a_composition_has_one_adjacency():
    with pytest.raises(UnsupportedMechanism, match=r"adjacencies .*one composition.*same one"):
        Composed(parts=((gaussian(1.0), 1), (gaussian(1.0, "zero-out"), 1)))


@pytest.mark.parametrize(("adjacency", "clips"), [("add-remove", 1.0), ("zero-out", 1.0), ("replace-one", 2.0)])
def test_sensitivity_follows_from_adjacency(adjacency, clips):
    """Two vectors of norm C are 2C apart; one of them and nothing, or zero, C."""
    assert gaussian(4.0, adjacency).mu == clips / 4.0


class TestSimultaneous:
    def test_shifts_add_in_squares(self):
        joint = simultaneous([3.0, 4.0], Adjacency.ADD_REMOVE)
        assert joint.noise_multiplier == pytest.approx(2.4)

    @pytest.mark.parametrize("bad", [[], [0.0], [1.0, math.nan], [1e-200], [1e200], ["1"], 5, "12", None])
    def test_refuses_what_are_no_noise_multipliers(self, bad):
        refused(InvalidParameter, "noise_multiplier", simultaneous, bad, Adjacency.ADD_REMOVE)


noise = st.floats(1e-3, 1e3)
gaussians = st.builds(Gaussian, noise_multiplier=noise, adjacency=st.just(Adjacency.REPLACE_ONE))
samplings = st.one_of(
    st.builds(PoissonSampling, probability=st.floats(0, 1)),
    st.builds(lambda r, n: FixedSizeSampling(cohort=r, clients=r + n), st.integers(1, 99), st.integers(0, 99)),
    st.just(FullParticipation()),
)
releases = st.one_of(gaussians, st.builds(Subsampled, mechanism=gaussians, sampling=samplings))
compositions = st.builds(Composed.of, st.lists(releases, min_size=1, max_size=4))
words = st.text("ab0 é[{\0\u2028\U0001f600", max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
)


class TestDictionaries:
    @given(mechanism=st.one_of(releases, compositions))
    def test_carry_everything_through_json(self, mechanism):
        assert mechanisms.from_dict(json.loads(json.dumps(mechanism.to_dict()))) == mechanism

    def test_of_numpy_numbers_are_plain_json(self):
        mechanism = times(fixed(np.int64(3), np.int32(10), np.float32(1.5)), np.int64(4))
        assert mechanisms.from_dict(json.loads(json.dumps(mechanism.to_dict()))) == mechanism

    @given(record=json_values)
    def test_of_anything_else_are_refused(self, record):
        refused(AccountingError, "", mechanisms.from_dict, record)

    @given(mechanism=compositions, value=json_values, where=st.integers(0, 30))
    def test_with_one_value_changed_are_another_mechanism_or_an_error(self, mechanism, value, where):
        record = mechanism.to_dict()
        path = list(paths(record))
        holder, key = path[where % len(path)]
        holder[key] = value
        try:
            mechanisms.from_dict(record)
        except AccountingError:
            return

    @pytest.mark.parametrize("extra", ["sensitivity", "kind2"])
    def test_with_unknown_keys_are_refused_at_every_level(self, extra):
        record = times(poisson(0.1, 1.0), 3).to_dict()
        for holder in (
            record,
            record["parts"][0][0],
            record["parts"][0][0]["mechanism"],
            record["parts"][0][0]["sampling"],
        ):
            holder[extra] = 1
            refused(InvalidParameter, r"this version does not support this", mechanisms.from_dict, record)
            del holder[extra]
        assert mechanisms.from_dict(record) == times(poisson(0.1, 1.0), 3)

    def test_nested_without_end_are_refused_shortly(self):
        record = gaussian(1.0).to_dict()
        for _ in range(5000):
            record = {"kind": "subsampled", "mechanism": record, "sampling": {"name": "all"}}
        with pytest.raises(InvalidParameter) as refusal:
            mechanisms.from_dict(record)
        assert len(str(refusal.value)) < 1000

    def test_of_fixed_size_add_remove_are_refused(self):
        record = fixed(3, 10, 1.0).to_dict()
        record["mechanism"]["adjacency"] = "add-remove"
        refused(UnsupportedMechanism, "", mechanisms.from_dict, record)


def paths(record):
    """Every place of a JSON document, as (holder, key)."""
    items = record.items() if isinstance(record, dict) else enumerate(record)
    for key, value in list(items):
        yield record, key
        if isinstance(value, dict | list):
            yield from paths(value)


def test_what_comes_after_is_counted_with_what_was_before():
    loud, quiet = gaussian(1.0), gaussian(2.0)
    before = Composed(parts=((loud, 3), (quiet, 1), (loud, 2)))
    assert repeated(quiet, 4) == times(quiet, 4)
    assert dict(repeated(quiet, 4, before=before).parts) == {loud: 5, quiet: 5}
    assert dict(before.then(loud, 1).parts) == {loud: 6, quiet: 1}
    assert dict(Composed.of([loud, loud, quiet, loud]).parts) == {loud: 3, quiet: 1}
    unordered = Composed(parts=((loud, 2), (quiet, 1)), order=None).then(loud, 3)
    assert (dict(unordered.parts), unordered.order) == ({loud: 5, quiet: 1}, None)
    for bad in NOT_COUNTS:
        refused(InvalidParameter, "rounds=", repeated, quiet, bad, before=before)
        refused(InvalidParameter, "count=", before.then, quiet, bad)
    refused(UnsupportedMechanism, "one composition", lambda: before.then(gaussian(1.0, "replace-one"), 1))


def test_how_often_a_client_is_drawn():
    assert FullParticipation().probability == 1
    assert PoissonSampling(probability=0.3).probability == 0.3
    assert FixedSizeSampling(cohort=3, clients=12).probability == 0.25


def test_a_cohort_of_everybody_is_no_sample():
    everybody = [FullParticipation(), PoissonSampling(probability=1.0), FixedSizeSampling(cohort=7, clients=7)]
    for sampling in everybody:
        for adjacency in ("zero-out", "replace-one"):
            assert mechanisms.subsample(gaussian(1.0, adjacency), sampling) == gaussian(1.0, adjacency)


COIN = mechanisms.BernoulliChannel(dimension=4, floor=0.25, adjacency="zero-out", linf_clip=0.2, noise_std=0.1)
SHARES = mechanisms.GaussianShares(noise_multiplier=1.2, adjacency="zero-out", shares=130, overflow=1e-7)
SCHEDULES = [
    mechanisms.BallsAndBins(bins=60, stream="s"),
    mechanisms.BallsAndBins(bins=60, lanes=4, coefficients=(1.0, 0.5), stream="s"),
    mechanisms.BallsAndBins(bins=12, lanes=4, coefficients=(1.0, 0.5), secret_lanes=True, stream="s"),
    mechanisms.Allocation(participations=3, rounds=180),
    mechanisms.MinSeparation(separation=9, probability=0.1),
    mechanisms.Cyclic(period=7),
    mechanisms.CorrelatedRounds(separation=3, participations=2, stream="seed 1", coefficients=(1.0, 0.5, 0.25)),
    mechanisms.CorrelatedRounds(separation=3, stream="seed 1", weights=(0.3, 0.2), decays=(0.9, 0.5)),
    CappedPoissonSampling(probability=1 / 60, cap=130, clients=6000),
]


@pytest.mark.parametrize(
    "release",
    [
        mechanisms.BernoulliAggregate(dimension=4, cohort=2, floor=0.25, adjacency="zero-out", l2_clip=0.2),
        *(COIN, Subsampled(mechanism=COIN, sampling=mechanisms.Cyclic(period=7, stream="seed 3"))),
        Subsampled(mechanism=SHARES, sampling=PoissonSampling(probability=0.1)),
        *(Subsampled(mechanism=gaussian(1.4, "zero-out"), sampling=sampling) for sampling in SCHEDULES),
    ],
)
def test_every_kind_comes_back_from_its_description(release):
    for one in (release, times(release, 3)):
        assert mechanisms.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_a_composition_has_the_adjacency_of_its_parts():
    for adjacency in Adjacency:
        assert times(gaussian(1.0, adjacency), 2).adjacency is adjacency


@pytest.mark.parametrize(
    "law",
    [FixedSizeSampling(cohort=10, clients=100), CappedPoissonSampling(probability=0.1, cap=20, clients=100)],
    ids=["fixed", "capped"],
)
def test_cohorts_are_of_the_clients_of_their_account(law):
    """Ten of fifty are more than the charged ten of a hundred."""
    assert Cohorts(law=law, clients=100, expected=10.0).law is law
    refused(
        InvalidParameter, "for 50 clients: its account is of 100 clients", Cohorts, law=law, clients=50, expected=10.0
    )


def test_bernoulli_uploads_without_an_account_are_refused():
    uploads = {"dimension": 4, "floor": 0.1, "adjacency": "zero-out", "l2_clip": 0.2}
    refused(InvalidParameter, "reference=0.05: must be in", mechanisms.BernoulliChannel, **uploads, reference=0.05)
    fisher = {"clip_metric": "fisher", "noise_std": 0.1}
    refused(UnsupportedMechanism, "no account with noise", mechanisms.BernoulliChannel, **uploads, **fisher)
    sums = mechanisms.BernoulliAggregate(**uploads, cohort=5)
    capped = mechanisms.CappedPoissonSampling(probability=0.1, cap=6, clients=50)
    refused(InvalidParameter, "at least `cap` uploads", mechanisms.subsample, sums, capped)
