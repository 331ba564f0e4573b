"""Plans with integer noise: sizes of shares, defaults, the three solves, refusals."""

import json
import math

import pytest
from refusals import refused

from accounting import DiscreteGaussian, Plan, Skellam, Subsampled, budget, guarantee
from accounting.budget.gaussians import most_uploads
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.integers import fixed_point
from accounting.integers.discrete_gaussian import shares_distortion
from accounting.mechanisms import unsampled
from accounting.rounding import upwards

pytestmark = pytest.mark.slow_but_one_in(3)

COMMON = {"clients": 1000, "cohort": 100, "dimension": 1_600_000, "delta": 1e-5}
LAWS = pytest.mark.parametrize("law", ["discrete-gaussian", "skellam"])


def planned(**fields):
    return Plan(**{"mechanism": "discrete-gaussian", **fields})


def noise_of(plan, noise_multiplier=1.4):
    return unsampled(plan.round(noise_multiplier))


def test_a_changed_cohort_has_its_own_default_scale():
    """Planted once: maps over cohorts kept the larger scale of the plan's own cohort, which states less epsilon."""
    options = {"clients": 100_000, "sampling": "fixed", "dimension": 4}
    for own in ({}, {"scale": 50.0}):
        large, small = (planned(**options, **own, cohort=cohort) for cohort in (40_000, 400))
        assert large.changed(cohort=400) == small
        assert Plan(**large.options) == large


@LAWS
def test_the_round_is_what_a_ledger_should_state(law):
    plan = planned(**COMMON, mechanism=law, sampling="fixed", scale=8000, dropout=0.1)
    round_ = plan.round(1.4)
    assert isinstance(round_, Subsampled)
    noise = round_.mechanism
    assert isinstance(noise, DiscreteGaussian if law == "discrete-gaussian" else Skellam)
    assert noise.dimension == 1 << 21
    assert noise.shares == 90
    assert noise.share_variance == math.ceil((1.4 * 8000) ** 2 / 90) == int(noise.share_variance)
    assert noise.variance >= (1.4 * 8000) ** 2
    assert noise.l2_bound == fixed_point.rounded_l2(8000, 1 << 21)
    assert plan.mechanism.bits(plan, 1.4) == 18


@pytest.mark.parametrize(
    ("placement", "sampling", "adjacency"),
    [
        ("clients", "poisson", "zero-out"),
        ("server", "poisson", "add-remove"),
        ("clients", "fixed", "replace-one"),
        ("server", "fixed", "replace-one"),
        ("clients", "all", "zero-out"),
        ("server", "all", "add-remove"),
    ],
)
def test_default_adjacency_and_shares(placement, sampling, adjacency):
    plan = planned(**COMMON, placement=placement, sampling=sampling)
    assert plan.adjacency == adjacency
    assert noise_of(plan).shares == (
        1 if placement == "server" else {"poisson": 158, "fixed": 100, "all": 1000}[sampling]
    )


def test_sums_under_poisson_have_a_cap_whose_account_charges_it():
    plan, default = planned(**COMMON, slots=130), planned(**COMMON)
    assert plan == planned(**COMMON, cohort_cap=130)
    assert noise_of(plan, 1.4).shares == 130
    assert (plan.cohort_cap, noise_of(plan, 1.4).overflow) == (130, 0.0)
    costs = [budget.solve(one, noise_multiplier=1.4, rounds=10).epsilon for one in (default, plan)]
    assert costs[0] < costs[1] < 1.1 * costs[0]
    assert "cohort_cap" not in default.options
    refused(InvalidParameter, "slots is the old name of the cap", planned, **COMMON, slots=130, cohort_cap=140)


@LAWS
def test_a_secure_sum_under_poisson_is_filled_up_whoever_adds_the_noise(law):
    trusted = planned(**COMMON, mechanism=law, placement="server")
    secure = planned(**COMMON, mechanism=law, placement="server", secure=True, slots=150)
    assert trusted.cohort_cap is None
    assert (most_uploads(secure), noise_of(secure).shares, secure.adjacency) == (150, 1, "add-remove")
    for sampling in ("fixed", "all"):
        plan = planned(**COMMON, mechanism=law, placement="server", secure=True, sampling=sampling)
        assert plan.cohort_cap is None
    notes = "\n".join(secure.notes(1.4, 3))
    assert "send zeros to fill a sum of 150 uploads; if more clients are drawn, a random part is left out" in notes


@LAWS
def test_no_account_looks_at_the_ring(law):
    """Whatever wrap-around probability the ring is sized for, the mechanism is the same."""
    for placement in ("server", "clients"):
        plans = [
            planned(**COMMON, mechanism=law, placement=placement, secure=True, wrap_probability=p) for p in (1e-12, 0.9)
        ]
        assert plans[0].mechanism.bits(plans[0], 1.4) > plans[1].mechanism.bits(plans[1], 1.4)
        assert plans[0].run(1.4, 5) == plans[1].run(1.4, 5)


def test_the_default_scale_costs_one_percent_and_gives_good_shares():
    assert planned(**COMMON).mechanism.scale == fixed_point.least_scale(1 << 21)
    assert planned(**COMMON, rotate=False).mechanism.scale == fixed_point.least_scale(1_600_000)
    small = planned(clients=10_000, cohort=1000, dimension=2, sampling="fixed")
    assert noise_of(small, 0.5).share_variance >= 4
    stated = budget.solve(small, noise_multiplier=1.0, rounds=1)
    plain = Plan(clients=10_000, cohort=1000, sampling="fixed")
    real = (
        math.sqrt(noise_of(small, 1.0).variance) / small.mechanism.scale
    )  # whole share variances: more than asked for
    assert 1 < real < 1.03
    same = budget.solve(plain, noise_multiplier=real, rounds=1, with_lower_bound=False)
    assert same.epsilon < stated.epsilon < 1.02 * same.epsilon


@LAWS
@pytest.mark.parametrize(("sampling", "placement"), [("poisson", "clients"), ("poisson", "server"), ("all", "clients")])
def test_the_three_solves_agree(law, sampling, placement):
    plan = planned(
        clients=300, cohort=30, dimension=5000, delta=1e-5, mechanism=law, sampling=sampling, placement=placement,
        dropout=0.1 if placement == "clients" else 0.0,
    )  # fmt: skip
    how = {"accountant": "rdp"}
    stated = budget.solve(plan, noise_multiplier=4.0, rounds=5, **how)
    assert stated.lower_bound is None
    back = budget.solve(plan, epsilon=stated.epsilon, rounds=5, **how)
    assert back.epsilon <= stated.epsilon
    assert back.noise_multiplier == pytest.approx(4.0, rel=1e-3)  # share variances are whole numbers
    rounds = budget.solve(plan, epsilon=stated.epsilon * (1 + 1e-9), noise_multiplier=4.0, **how)
    assert rounds.rounds == 5


@LAWS
def test_shares_sized_for_dropout_cost_nothing_more(law):
    sure, tolerant = (
        budget.solve(
            planned(**COMMON, mechanism=law, sampling="fixed", dropout=dropout), noise_multiplier=1.4, rounds=3,
            accountant="rdp",
        )
        for dropout in (0.0, 0.3)
    )  # fmt: skip
    assert tolerant.epsilon == pytest.approx(sure.epsilon, rel=1e-4)
    assert tolerant.to_dict()["shares"] == 70


@LAWS
def test_json_and_notes(law):
    record = budget.solve(planned(**COMMON, mechanism=law), noise_multiplier=1.4, rounds=2).to_dict()
    json.dumps(record, allow_nan=False)
    assert record["mechanism"] == law
    assert (record["dimension"], record["shares"], record["bits_per_coordinate"]) == (1_600_000, 158, 17)
    assert record["scale"] < record["l2_bound"] < 1.0101 * record["scale"]
    notes = "\n".join(record["notes"])
    for words in ("17 bits", "2,097,152", "1.00%", "158 uploads", "a random part is left out"):
        assert words in notes
    assert ("tau" in notes) == (law == "discrete-gaussian")


@pytest.mark.parametrize("rotate", [True, False])
def test_a_plain_gaussian_is_never_dearer_by_more_than_the_rounding(rotate):
    """Closed form: epsilon of the noise multiplier shrunk by what rounding lengthens."""
    plan = planned(**COMMON, sampling="all", scale=6000, rotate=rotate)
    longer = plan.mechanism.l2_bound / 6000
    ours = budget.solve(plan, noise_multiplier=1.4, rounds=1).epsilon
    theirs = budget.solve(
        Plan(clients=1000, cohort=1000, sampling="all", adjacency="zero-out", delta=1e-5),
        noise_multiplier=1.4 / longer,
        rounds=1,
    ).epsilon
    assert theirs * (1 - 1e-4) <= ours <= theirs * (1 + 1e-6)  # whole share variances round upwards


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dimension": 0}, InvalidParameter, "dimension=0: must be a whole number from 1"),
        ({"mechanism": "gaussian"}, InvalidParameter, "dimension=1600000 with mechanism='gaussian': is for discrete"),
        ({"dimension": None}, InvalidParameter, "dimension is missing: mechanism='discrete-gaussian' needs it"),
        ({"placement": "both"}, InvalidParameter, "placement='both': must be one of clients, server"),
        ({"scale": 0.0}, InvalidParameter, "scale=0.0: must be a finite number above 0"),
        ({"scale": 1e17}, InvalidParameter, r"scale=1e\+17: must be at most 2\^53"),
        ({"scale": math.nan}, InvalidParameter, "scale=nan: must be"),
        ({"dropout": 1.0}, InvalidParameter, r"dropout=1.0: must be a fraction in \[0, 1\)"),
        ({"dropout": 0.1, "placement": "server"}, InvalidParameter, "noise added by the server does not drop out"),
        ({"slots": 150, "sampling": "fixed"}, InvalidParameter, "cohort_cap=150 with sampling='fixed': is for poisson"),
        ({"slots": 1001}, InvalidParameter, "cohort_cap=1001: .* so the cap must be at most 1000"),
        ({"wrap_probability": 0.0}, InvalidParameter, "wrap_probability=0.0: must be"),
        ({"adjacency": "add-remove"}, UnsupportedMechanism, "add-remove' with noise in 158 shares"),
        (
            {"adjacency": "add-remove", "sampling": "fixed", "placement": "server"},
            UnsupportedMechanism,
            "add-remove' with fixed-size sampling",
        ),
    ],
)
def test_a_plan_refuses_and_says_what_is_allowed(changes, error, message):
    refused(error, message, planned, **{**COMMON, **changes})


def test_one_client_and_its_whole_range():
    plan = planned(clients=1, cohort=1, dimension=1, delta=1e-5)
    assert noise_of(plan).shares == 1
    assert 0 < guarantee(plan.run(5.0, 10_000), delta=1e-5).epsilon < math.inf


def test_the_largest_scale_and_the_most_slots_are_allowed():
    """2^53, the whole numbers of a double, and as many slots as there are clients; nothing beyond either."""
    assert planned(**COMMON, scale=2.0**53).mechanism.scale == 2.0**53
    refused(InvalidParameter, r"at most 2\^53", planned, **COMMON, scale=2.0**53 + 2)
    assert noise_of(planned(**COMMON, slots=1000)).shares == 1000


def test_notes_state_how_far_shares_are_from_one_discrete_gaussian():
    coarse = planned(**COMMON, scale=9.0, slots=165)
    noise = noise_of(coarse, 1.0)
    tau = shares_distortion(noise.share_variance, noise.shares)
    assert tau > 1e-6
    assert any(f"tau = {upwards(tau)}:" in note for note in coarse.notes(1.0, 1))
    assert any("tau below 1e-300:" in note for note in planned(**COMMON, placement="server").notes(1.0, 1))


@pytest.mark.parametrize(("cohort", "dropout", "shares"), [(10, 0.25, 8), (10, 0.09, 10), (7, 0.3, 5), (3, 0.9, 1)])
def test_shares_that_arrive_at_the_least(cohort, dropout, shares):
    """Of 10 uploads a fraction of at most 0.25 missing is 2 missing."""
    plan = planned(clients=20, cohort=cohort, dimension=10, delta=1e-5, sampling="fixed", dropout=dropout)
    assert noise_of(plan).shares == shares


@LAWS
def test_a_share_that_is_whole_already_is_not_raised(law):
    plan = planned(clients=8, cohort=4, dimension=10, delta=1e-5, mechanism=law, sampling="fixed", scale=16)
    assert noise_of(plan, 1.0).share_variance == 64
    assert noise_of(plan, 1.001).share_variance == 65
