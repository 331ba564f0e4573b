"""Plans and budgets: defaults, dropout, the JSON contract, and what is refused."""

import json
import math
from dataclasses import replace

import pytest
from reference import renyi
from reference.mixtures import hockey_stick
from refusals import refused

from accounting import budget, gaussian
from accounting.budget import (
    BandedNoise,
    BernoulliSums,
    BufferedNoise,
    Cyclic,
    DistributedGaussianNoise,
    Everyone,
    FixedSize,
    GaussianNoise,
    MinSeparation,
    Plan,
    Poisson,
    SkellamNoise,
)
from accounting.errors import CalibrationError, InvalidParameter, UnsupportedMechanism

pytestmark = pytest.mark.slow_but_one_in(3)


@pytest.mark.parametrize(
    ("sampling", "adjacency"), [("poisson", "add-remove"), ("fixed", "replace-one"), ("all", "add-remove")]
)
def test_default_adjacency_follows_the_sampler(sampling, adjacency):
    assert Plan(clients=100, cohort=10, sampling=sampling).adjacency == adjacency


SHARES = {"mechanism": "distributed-gaussian", "sampling": "fixed"}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"clients": 0}, InvalidParameter, r"clients=0: must be a whole number from 1"),
        ({"clients": True}, InvalidParameter, r"clients=True: must be a whole number"),
        ({"clients": 2.5}, InvalidParameter, r"clients=2.5: must be a whole number"),
        ({"cohort": 0}, InvalidParameter, r"cohort=0: must be a whole number from 1"),
        ({"cohort": "10"}, InvalidParameter, r"cohort='10': must be a whole number"),
        ({"cohort": 101}, InvalidParameter, r"cohort=101 of clients=100: must be at most the number of clients"),
        ({"sampling": "binomial"}, InvalidParameter, r"sampling='binomial': must be one of poisson, fixed, all"),
        ({"adjacency": "bounded"}, InvalidParameter, r"adjacency='bounded': must be one of add-remove, zero-out"),
        ({"delta": 0}, InvalidParameter, r"delta=0: must be a number strictly between 0 and 1"),
        ({"delta": 1}, InvalidParameter, r"delta=1: must be"),
        ({"delta": 1.5}, InvalidParameter, r"delta=1.5: must be"),
        ({"delta": math.nan}, InvalidParameter, r"delta=nan: must be"),
        ({"delta": "1e-5"}, InvalidParameter, r"delta='1e-5': must be"),
        ({"mechanism": "laplace"}, InvalidParameter, r"mechanism='laplace': must be one of gaussian"),
        ({**SHARES, "dropout": 1.0}, InvalidParameter, r"dropout=1.0: must be a fraction in \[0, 1\)"),
        ({**SHARES, "dropout": -0.1}, InvalidParameter, r"dropout=-0.1: must be a fraction"),
        ({**SHARES, "dropout": math.nan}, InvalidParameter, r"dropout=nan: must be a fraction"),
        ({"dropout": 0.1}, InvalidParameter, r"dropout=0.1 with mechanism='gaussian': is for distributed-gaussian"),
        ({"mechanism": "distributed-gaussian"}, InvalidParameter, r"sampling='poisson'.*'fixed' or 'all'"),
        (
            {"sampling": "fixed", "adjacency": "add-remove"},
            UnsupportedMechanism,
            r"adjacency='add-remove' with fixed-size sampling.*'replace-one'",
        ),
        (
            {"sampling": "fixed", "adjacency": "add-remove", "cohort": 100},
            UnsupportedMechanism,
            r"adjacency='add-remove' with fixed-size sampling",
        ),
    ],
)
def test_a_plan_refuses_and_says_what_is_allowed(changes, error, message):
    refused(error, message, Plan, **{"clients": 100, "cohort": 10, **changes})


PLAN = Plan(clients=100, cohort=10)


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_noise_and_targets_must_be_positive(bad):
    noise, target = (f"{name}=.*must be a finite number above 0" for name in ("noise_multiplier", "epsilon"))
    refused(InvalidParameter, noise, budget.epsilon, PLAN, noise_multiplier=bad, rounds=5)
    if bad is not None:  # no target: `budget.noise_multiplier` says that it is missing
        refused(InvalidParameter, target, budget.noise_multiplier, PLAN, epsilon=bad, rounds=5)
        refused(InvalidParameter, target, budget.rounds, PLAN, epsilon=bad, noise_multiplier=1.0)
        refused(InvalidParameter, noise, budget.rounds, PLAN, epsilon=1.0, noise_multiplier=bad)


@pytest.mark.parametrize("bad", [0, -1, 2.5, math.nan, True, "1", None])
def test_rounds_must_be_whole(bad):
    words = "rounds=.*must be a whole number from 1"
    refused(InvalidParameter, words, budget.epsilon, PLAN, noise_multiplier=1.0, rounds=bad)
    refused(InvalidParameter, words, budget.noise_multiplier, PLAN, epsilon=1.0, rounds=bad)


def test_a_target_below_one_round_is_an_error():
    with pytest.raises(CalibrationError, match=r"not even one round fits.*Raise the noise multiplier or the target"):
        budget.rounds(PLAN, epsilon=0.01, noise_multiplier=0.5)


class TestDropout:
    """Shares of N(0, sigma^2 C^2 / r): what is missing is missing from the noise's variance."""

    @staticmethod
    def epsilon(dropout, sampling, clients=10, cohort=10, rounds=1):
        plan = Plan(
            clients=clients,
            cohort=cohort,
            sampling=sampling,
            delta=1e-5,
            mechanism="distributed-gaussian",
            dropout=dropout,
        )
        return budget.epsilon(plan, noise_multiplier=1.4, rounds=rounds)

    @pytest.mark.parametrize("dropout", [0.0, 0.3, 0.75])
    def test_is_a_gaussian_of_the_remaining_variance(self, dropout):
        expected = gaussian.smallest_epsilon(1e-5, mu=1 / (1.4 * math.sqrt(1 - dropout)))
        assert self.epsilon(dropout, "all") == pytest.approx(expected, rel=1e-12)

    def test_a_client_more_would_be_a_share_more(self):
        assert Plan(clients=9, cohort=9, sampling="all", mechanism="distributed-gaussian").adjacency == "zero-out"
        with pytest.raises(InvalidParameter, match="changes the noise by a share"):
            Plan(clients=9, cohort=9, sampling="all", mechanism="distributed-gaussian", adjacency="add-remove")

    def test_calibrated_noise_covers_the_dropout(self):
        plan = Plan(clients=100, cohort=10, sampling="fixed", mechanism="distributed-gaussian", dropout=0.3)
        sure = Plan(clients=100, cohort=10, sampling="fixed")
        with_dropout, without = (
            budget.noise_multiplier(p, epsilon=2.0, rounds=5, accountant="pld") for p in (plan, sure)
        )
        assert with_dropout == pytest.approx(without / math.sqrt(0.7), rel=1e-4)


class TestConversion:
    """What is solved for, stated and compared is the conversion that was asked for."""

    ALL_CLIENTS = Plan(clients=100, cohort=100, sampling="all", delta=1e-5)

    def test_noise_and_rounds_are_solved_for_with_it(self):
        wanted = {"epsilon": 2.0, "accountant": "rdp", "conversion": "classical"}
        noise = budget.solve(self.ALL_CLIENTS, rounds=5, **wanted)
        assert 2.0 * (1 - 1e-4) <= noise.epsilon <= 2.0
        assert budget.noise_multiplier(self.ALL_CLIENTS, rounds=5, **wanted) == noise.noise_multiplier
        count = budget.solve(self.ALL_CLIENTS, noise_multiplier=20.0, **wanted)
        assert budget.rounds(self.ALL_CLIENTS, noise_multiplier=20.0, **wanted) == count.rounds
        above = budget.solve(
            self.ALL_CLIENTS, noise_multiplier=20.0, rounds=count.rounds + 1, accountant="rdp", conversion="classical"
        )
        assert count.epsilon <= 2.0 < above.epsilon
        assert (noise.conversion, count.conversion, above.conversion) == ("classical",) * 3


@pytest.mark.slow
def test_a_comparison_has_both_conversions_of_the_noise_that_is_left():
    """Mironov 2017, Prop. 3; Canonne, Kamath, Steinke 2020, Prop. 12; curve and profile by integration."""
    plan = Plan(clients=20, cohort=4, sampling="fixed", delta=1e-3, mechanism="distributed-gaussian", dropout=0.3)
    rows, left = budget.compare(plan, noise_multiplier=4.0, rounds=1), 4.0 * math.sqrt(0.7)
    assert all("at most 30% of the noise shares missing" in row.notes for row in rows)
    valid = [row for row in rows if row.valid]
    own = [row for row in valid if (row.plan.sampling.name, row.plan.adjacency) == ("fixed", "replace-one")]
    assert {row.conversion for row in own} == {None, "classical", "improved"}
    for row in own:
        assert hockey_stick([(0.8, 0.0), (0.2, 2 / left)], [(1.0, 0.0)], math.exp(row.epsilon)) <= 1e-3
    renyis = [row for row in rows if row.accountant == "rdp" and row.plan.sampling.name == "poisson"]
    assert [row.conversion for row in renyis] == ["classical", "improved"]
    for row, gain in zip(renyis, (lambda a: 0.0, lambda a: (a - 1) * math.log1p(-1 / a) - math.log(a)), strict=True):
        expected = float(renyi.removal(row.order, 0.2, left)) + (gain(row.order) - math.log(1e-3)) / (row.order - 1)
        assert row.epsilon == pytest.approx(expected, rel=1e-8)


class TestJson:
    KEYS = (
        *("epsilon", "delta", "noise_multiplier", "rounds", "clients", "cohort", "sampling", "sampling_probability"),
        *("adjacency", "unit", "sensitivity_in_clips", "mechanism", "accountant", "conversion", "order"),
        *("lower_bound", "valid", "notes"),
    )

    @pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
    def test_has_every_key_of_the_contract(self, sampling):
        plan = Plan(clients=100, cohort=10, sampling=sampling)
        record = budget.solve(plan, noise_multiplier=2.0, rounds=5).to_dict()
        assert set(self.KEYS) <= set(record)
        json.dumps(record, allow_nan=False)
        assert record["sensitivity_in_clips"] == (2.0 if sampling == "fixed" else 1.0)
        assert record["cohort"] == (100 if sampling == "all" else 10)
        assert record["lower_bound"] <= record["epsilon"]

    def test_of_a_failed_condition_says_so(self):
        plan = Plan(clients=6000, cohort=100, sampling="fixed")
        asked = {"noise_multiplier": 1.4, "rounds": 180, "accountant": "fed-smp-theorem", "with_lower_bound": False}
        record = budget.solve(plan, **asked).to_dict()
        assert record["valid"] is False
        assert any("sigma^2 = 0.4899, needed at least 0.7" in note for note in record["notes"])

    def test_of_a_failed_condition_gives_no_bare_number(self):
        """Planted once: noise for an epsilon of 3, at which no account can state less than 3.67."""
        plan, theorem = Plan(clients=600, cohort=30, sampling="fixed", delta=1e-4), {"accountant": "fed-smp-theorem"}
        assert math.isinf(budget.epsilon(plan, noise_multiplier=1.2908, rounds=10, **theorem))
        with pytest.raises(CalibrationError):
            budget.noise_multiplier(plan, epsilon=3.0, rounds=10, **theorem)
        with pytest.raises(CalibrationError):
            budget.rounds(plan, epsilon=3.0, noise_multiplier=1.2908, **theorem)


@pytest.mark.parametrize("accountant", ["fed-smp-theorem", "fed-smp-lemma"])
@pytest.mark.parametrize("sampling", ["poisson", "all"])
def test_the_papers_readings_are_for_fixed_size_sampling(accountant, sampling):
    with pytest.raises(UnsupportedMechanism, match=f"accountant='{accountant}'.*--sampling fixed"):
        budget.epsilon(
            Plan(clients=100, cohort=10, sampling=sampling), noise_multiplier=1.0, rounds=5, accountant=accountant
        )


def test_an_unknown_accountant_or_conversion_is_refused():
    with pytest.raises(InvalidParameter, match=r"accountant='moments': must be one of best, rdp, pld"):
        budget.epsilon(PLAN, noise_multiplier=1.0, rounds=5, accountant="moments")
    with pytest.raises(InvalidParameter, match=r"conversion='tight': must be 'improved' or 'classical'"):
        budget.epsilon(PLAN, noise_multiplier=1.0, rounds=5, accountant="rdp", conversion="tight")


@pytest.mark.slow
def test_a_comparison_calls_no_setting_a_guarantee_where_shares_have_no_account():
    plan = Plan(clients=600, cohort=100, sampling="fixed", mechanism="distributed-gaussian", dropout=0.3)
    rows = budget.compare(plan, noise_multiplier=1.4, rounds=20)
    assert {(row.plan.sampling.name, str(row.plan.adjacency)) for row in rows if row.valid} == {
        ("fixed", "replace-one"), ("fixed", "zero-out"), ("all", "replace-one"), ("all", "zero-out"),
    }  # fmt: skip
    poissons = [row for row in rows if row.plan.sampling.name == "poisson"]
    assert poissons
    assert all(any("secret cohort size" in note for note in row.notes) for row in poissons)


@pytest.mark.parametrize("cap", [None, pytest.param(9, marks=pytest.mark.slow)])
def test_zero_out_has_a_row_where_a_client_can_displace_another(cap):
    rows = budget.compare(Plan(clients=60, cohort=6, cohort_cap=cap, delta=1e-3), noise_multiplier=2.0, rounds=1)
    found = {(row.plan.sampling.name, str(row.plan.adjacency)) for row in rows}
    assert (("poisson", "zero-out") in found, ("fixed", "zero-out") in found) == (cap is not None, True)


def test_the_shares_said_to_be_missing_are_at_most_those_charged():
    plan = Plan(clients=600, sampling="all", mechanism="distributed-gaussian", dropout=0.996)
    assert plan.notes(1.0, 1) == ("at most 99.6% of the noise shares missing",)


def test_records_have_no_comparison_of_clients_samplers():
    plan = Plan(clients=10, unit="record", records=100, batch_size=10)
    refused(InvalidParameter, "unit='record': comparisons", budget.compare, plan, noise_multiplier=2.0, rounds=3)


def test_what_was_solved_for_states_its_lower_bound_unless_told_not_to():
    found = budget.solve(PLAN, epsilon=3.0, rounds=2)
    assert 0 < found.lower_bound <= found.epsilon
    assert budget.solve(PLAN, epsilon=3.0, rounds=2, with_lower_bound=False).lower_bound is None
    found = budget.solve(PLAN, epsilon=1.0, noise_multiplier=2.0)
    assert 0 < found.lower_bound <= found.epsilon


@pytest.mark.slow
def test_a_comparison_shows_the_papers_readings_with_its_sensitivity_and_with_the_needed_one():
    """The paper inserts C; fixed-size sampling moves a sum by 2C, at twice the cost: never less than with C."""
    rows = budget.compare(Plan(clients=600, cohort=10, sampling="fixed"), noise_multiplier=2.0, rounds=20)
    json.dumps([row.to_dict() for row in rows], allow_nan=False)
    assert rows[0].plan.sampling.name == "fixed"
    for kind in {(row.plan.sampling.name, row.plan.adjacency) for row in rows}:
        own = [row for row in rows if (row.plan.sampling.name, row.plan.adjacency) == kind]
        assert max(row.lower_bound or 0.0 for row in own) <= min(row.epsilon for row in own if row.valid)
    readings = [row for row in rows if row.accountant.startswith("fed-smp")]
    stated = [(row.accountant, row.conversion, row.to_dict()["sensitivity_in_clips"]) for row in readings]
    kinds = [("fed-smp-theorem", None), ("fed-smp-lemma", "classical"), ("fed-smp-lemma", "improved")]
    assert stated == [(*kind, sensitivity) for sensitivity in (1.0, 2.0) for kind in kinds]
    assert [row.accountant for row in rows if row.lower_bound is not None and row.plan.sampling.name == "fixed"].count(
        "rdp"
    ) == 0
    for once, twice in zip(readings[:3], readings[3:], strict=True):
        assert not once.valid
        assert "inserts sensitivity C" in once.notes[0]
        assert once.epsilon < twice.epsilon


@pytest.mark.parametrize(
    "given", [{}, {"epsilon": 1.0}, {"rounds": 5}, {"noise_multiplier": 1.0, "rounds": 5, "epsilon": 1.0}]
)
def test_all_but_one_of_the_three_must_be_given(given):
    refused(InvalidParameter, "epsilon, noise_multiplier and rounds: give all but one", budget.solve, PLAN, **given)


def test_answers_are_numbers():
    stated = budget.solve(PLAN, noise_multiplier=1.5, rounds=5)
    numbers = (
        budget.epsilon(PLAN, noise_multiplier=1.5, rounds=5),
        budget.noise_multiplier(PLAN, epsilon=stated.epsilon, rounds=5),
        budget.rounds(PLAN, epsilon=stated.epsilon, noise_multiplier=1.5),
    )
    assert [type(one) for one in numbers] == [float, float, int]
    assert numbers[0] == stated.epsilon
    assert numbers[1] == pytest.approx(1.5, rel=1e-4)
    assert numbers[2] == 5


@pytest.mark.parametrize(
    ("mechanism", "field", "takers"),
    [
        ("gaussian", {"dimension": 5}, "discrete-gaussian, skellam, bernoulli-channel, bernoulli-aggregate"),
        ("gaussian", {"edge": 0.1}, "bernoulli-channel, bernoulli-aggregate"),
        ("gaussian", {"rotate": False}, "discrete-gaussian, skellam"),
        ("skellam", {"noise_std": 0.1, "dimension": 5}, "bernoulli-channel, bernoulli-aggregate"),
        ("bernoulli-aggregate", {"dimension": 5, "edge": 0.1, "clip_norm": 1.0, "dropout": 0.1}, "gaussian, "),
        ("bernoulli-aggregate", {"dimension": 5, "edge": 0.1, "clip_norm": 1.0, "secure": True}, "discrete-gaussian"),
    ],
)
def test_a_field_that_the_mechanism_does_not_look_at_is_refused(mechanism, field, takers):
    with pytest.raises(InvalidParameter, match=f"with mechanism='{mechanism}': is for .*{takers}.*Remove it"):
        Plan(clients=100, cohort=10, mechanism=mechanism, **field)


@pytest.mark.parametrize("mechanism", ["skellam", "bernoulli-aggregate"])
def test_a_comparison_is_for_gaussian_noise(mechanism):
    more = {"edge": 0.1, "clip_norm": 1.0} if mechanism == "bernoulli-aggregate" else {}
    plan = Plan(clients=100, cohort=10, mechanism=mechanism, dimension=5, **more)
    with pytest.raises(InvalidParameter, match="comparisons are for Gaussian noise"):
        budget.compare(plan, noise_multiplier=1.0, rounds=2)


KINDS = [
    (
        Plan(clients=6000, sampling=Poisson(cohort=100), mechanism=GaussianNoise(noise_multiplier=1.4), rounds=180),
        {"clients": 6000, "cohort": 100, "noise_multiplier": 1.4, "rounds": 180},
    ),
    (
        Plan(clients=600, sampling=Everyone(), mechanism=DistributedGaussianNoise(dropout=0.1)),
        {"clients": 600, "sampling": "all", "mechanism": "distributed-gaussian", "dropout": 0.1},
    ),
    (
        Plan(clients=600, sampling=MinSeparation(cohort=10, separation=5), mechanism=BandedNoise(bands=3)),
        {"clients": 600, "cohort": 10, "sampling": "min-separation", "separation": 5, "noise": "banded", "bands": 3},
    ),
    (
        Plan(clients=600, sampling=Cyclic(cohort=10), mechanism=BufferedNoise(participations=3)),
        {"clients": 600, "cohort": 10, "sampling": "cyclic", "noise": "blt", "participations": 3},
    ),
    (
        Plan(clients=600, sampling=FixedSize(cohort=10), mechanism=SkellamNoise(dimension=100)),
        {"clients": 600, "cohort": 10, "sampling": "fixed", "mechanism": "skellam", "dimension": 100},
    ),
    (
        Plan(clients=600, sampling=Poisson(cohort=10), mechanism=BernoulliSums(dimension=9, edge=0.2, clip_norm=1.0)),
        {
            "clients": 600,
            "cohort": 10,
            "mechanism": "bernoulli-aggregate",
            "dimension": 9,
            "edge": 0.2,
            "l2_sensitivity": 1.0,
        },
    ),
]


@pytest.mark.parametrize(("plan", "options"), KINDS)
def test_a_plan_by_kind_is_that_of_the_flat_list(plan, options):
    assert Plan(**options) == plan == Plan(**plan.options) == Plan.from_options(options)


def test_what_a_plan_has_is_not_given_again():
    plan = KINDS[0][0]
    stated = budget.epsilon(Plan(clients=6000, cohort=100), noise_multiplier=1.4, rounds=180)
    assert budget.epsilon(plan) == budget.solve(plan, with_lower_bound=False).epsilon == stated
    for asked, more in ((budget.epsilon, {"rounds": 9}), (budget.solve, {"noise_multiplier": 2.0})):
        refused(InvalidParameter, "give it once", asked, plan, **more)
    refused(InvalidParameter, r"noise_multiplier=1\.4 in the plan", budget.noise_multiplier, plan, epsilon=1.0)
    refused(InvalidParameter, "rounds=180 in the plan", budget.rounds, plan, epsilon=1.0)


def test_a_plan_has_no_other_options():
    refused(TypeError, "unexpected keyword argument 'avenues'", Plan, clients=600, cohort=10, avenues=3)
    refused(InvalidParameter, "noise='banded' with GaussianNoise", replace, PLAN, noise="banded")
    refused(InvalidParameter, "buffers=3 with noise='independent': is for blt", Plan, clients=600, cohort=10, buffers=3)
    refused(InvalidParameter, "sampling=GaussianNoise", lambda: Plan(clients=600, sampling=GaussianNoise()))
