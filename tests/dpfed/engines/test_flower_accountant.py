"""An accountant of Flower's interface: its numbers are those of `accounting`, its ledger is the ledger."""

import contextlib
import json
import warnings
from dataclasses import dataclass
from enum import Enum

import pytest
from refusals import refused

from accounting import AccountingError, Ledger, Plan, budget
from accounting.compose import lower_bound
from accounting.mechanisms import repeated
from dpfed.engines.flower.accountant import FlowerAccountant
from dpfed.errors import RunError

with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of what flwr's own imports use
    import flwr.serverapp  # noqa: F401


class Relation(Enum):
    ADD_OR_REMOVE_ONE = "add-or-remove-one"
    REPLACE_ONE = "replace-one"


class Method(Enum):
    POISSON = "poisson"
    WITHOUT_REPLACEMENT = "without-replacement"
    NO_AMPLIFICATION = "no-amplification"


@dataclass(frozen=True)
class Config:
    """Stands for Flower's PrivacyConfig, which flwr 1.41 does not have."""

    target_delta: float
    population_size: int
    neighboring_relation: Enum
    sampling_method: Enum
    max_epsilon: float | None = None


@dataclass(frozen=True)
class Event:
    noise_multiplier: float
    sample_size: int
    population_size: int


GOLDEN = Event(1.4, 100, 6000)
MODELS = {
    "poisson": (Method.POISSON, Relation.ADD_OR_REMOVE_ONE),
    "fixed": (Method.WITHOUT_REPLACEMENT, Relation.REPLACE_ONE),
    "all": (Method.NO_AMPLIFICATION, Relation.ADD_OR_REMOVE_ONE),
}
DELTA = 6000**-1.1


def config(sampling, **more):
    method, relation = MODELS[sampling]
    return Config(DELTA, 6000, relation, method, **more)


@pytest.mark.parametrize(
    ("sampling", "epsilon"),
    [("poisson", 0.6303), pytest.param("fixed", 3.2426, marks=pytest.mark.slow), ("all", 81.58)],
)
def test_the_golden_plan_costs_what_its_sampler_costs(sampling, epsilon):
    accountant = FlowerAccountant(config(sampling))
    accountant.compose(GOLDEN, 180)
    cohort = 6000 if sampling == "all" else 100
    plan = Plan(clients=6000, cohort=cohort, sampling=sampling, delta=DELTA)
    assert accountant.get_epsilon(DELTA) == pytest.approx(epsilon, rel=1e-3)
    assert accountant.get_epsilon(DELTA) == pytest.approx(
        budget.epsilon(plan, noise_multiplier=1.4, rounds=180), rel=1e-3
    )


def test_delta_and_epsilon_are_inverse():
    accountant = FlowerAccountant(config("all"))
    accountant.compose(GOLDEN, 3)
    assert accountant.get_delta(accountant.get_epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-6)


def test_nothing_is_spent_before_the_first_release():
    accountant = FlowerAccountant(config("poisson"))
    assert accountant.get_epsilon(DELTA) == 0.0
    assert accountant.get_delta(1.0) == 0.0
    spent = accountant.get_privacy_spent()
    assert (spent.epsilon, spent.delta, spent.num_releases) == (0.0, DELTA, 0)


def test_would_exceed_looks_ahead_and_charges_nothing():
    accountant = FlowerAccountant(config("all", max_epsilon=10.0))
    accountant.compose(GOLDEN, 2)
    before = accountant.get_epsilon(DELTA)
    assert not accountant.would_exceed(GOLDEN)
    assert accountant.would_exceed(GOLDEN, count=50)
    assert accountant.would_exceed(GOLDEN, max_epsilon=before)
    assert (accountant.get_epsilon(DELTA), accountant.num_releases) == (before, 2)
    refused(AccountingError, "max_epsilon is missing", lambda: FlowerAccountant(config("all")).would_exceed(GOLDEN))


def test_a_saved_state_goes_on():
    first, second = FlowerAccountant(config("all")), FlowerAccountant(config("all"))
    first.compose(GOLDEN, 3)
    first.compose(Event(2.0, 100, 6000))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.get_epsilon(DELTA) == first.get_epsilon(DELTA)
    assert second.num_releases == 4
    with pytest.raises(AccountingError, match="another PrivacyConfig"):
        FlowerAccountant(config("poisson")).load_state_dict(first.state_dict())
    refused(AccountingError, "backend 'rdp'", lambda: second.load_state_dict(first.state_dict() | {"backend": "rdp"}))


def test_what_has_no_account_is_refused():
    with pytest.raises(AccountingError, match="has no account"):
        FlowerAccountant(Config(DELTA, 6000, Relation.ADD_OR_REMOVE_ONE, Method.WITHOUT_REPLACEMENT))
    accountant = FlowerAccountant(config("all"))
    for event in (Event(1.4, 100, 5999), Event(1.4, 6001, 6000), Event(0.0, 100, 6000), Event(float("nan"), 1, 6000)):
        refused(ValueError, r"must be|configuration's", accountant.compose, event)
    assert accountant.num_releases == 0


def test_the_ledger_holds_what_was_composed_and_is_gone_on_with(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = FlowerAccountant(config("all"), ledger=path, clip_norm=0.5)
    first.compose(GOLDEN, 3)
    saved = first.state_dict()
    read = Ledger.read(path)
    assert read.guarantee(DELTA).epsilon == pytest.approx(first.get_epsilon(DELTA), rel=1e-9)
    assert [(one.clip_norm, one.noise_std) for one in read.releases] == [(0.5, pytest.approx(0.7))] * 3
    again = FlowerAccountant(config("all"), ledger=path, clip_norm=0.5)
    assert again.get_epsilon(DELTA) == first.get_epsilon(DELTA)
    again.compose(GOLDEN)
    again.load_state_dict(saved)  # of before the last release: the ledger decides
    assert again.num_releases == 4
    refused(RunError, "of another plan", lambda: FlowerAccountant(config("poisson"), ledger=path, clip_norm=0.5))


def test_a_state_that_the_ledger_does_not_hold_is_refused(tmp_path):
    elsewhere = FlowerAccountant(config("poisson"))
    elsewhere.compose(GOLDEN, 2)
    here = FlowerAccountant(config("poisson"), ledger=tmp_path / "ledger.jsonl")
    here.compose(GOLDEN)
    refused(RunError, "does not hold", lambda: here.load_state_dict(elsewhere.state_dict()))


def test_a_line_that_cannot_be_written_is_a_release_that_does_not_count(tmp_path, monkeypatch):
    accountant = FlowerAccountant(config("poisson"), ledger=tmp_path / "ledger.jsonl")
    monkeypatch.setattr(accountant._book, "record", lambda line: (_ for _ in ()).throw(RunError("full")))
    refused(RunError, "full", accountant.compose, GOLDEN)
    assert accountant.num_releases == 0


def theirs(sampling, event, count):
    pytest.importorskip("dp_accounting")
    types = pytest.importorskip("flwr.supercore.privacy_accounting", reason="flwr is below 1.41")
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    method, relation = MODELS[sampling]
    accountant = RdpAccountant(
        types.PrivacyConfig(
            target_delta=DELTA,
            population_size=event.population_size,
            neighboring_relation=types.NeighboringRelation[relation.name],
            sampling_method=types.SamplingMethod[method.name],
        )
    )
    accountant.compose(types.GaussianPrivacyEvent(event.noise_multiplier, event.sample_size, 6000), count)
    return accountant


@pytest.mark.parametrize("sampling", ["poisson", "all"])
def test_flowers_own_account_is_above_ours_where_it_is_right(sampling):
    other = theirs(sampling, GOLDEN, 180)
    ours = FlowerAccountant(other.config)  # Flower's own types
    ours.compose(GOLDEN, 180)
    spent = ours.get_privacy_spent()
    assert type(spent).__module__.startswith("flwr.")
    assert spent.epsilon <= other.get_epsilon(DELTA)
    if sampling == "all":
        assert other.get_epsilon(DELTA) == pytest.approx(86.1, abs=0.1)


def test_flowers_own_account_of_fixed_cohorts_is_below_what_neighbours_show():
    """It takes a replaced client to move the sum by C, where it is 2 C. A round in which everybody takes part is the
    closed form, which needs no grid: the least epsilon of any account of mu = 2 sqrt(T) / z."""
    everybody = Event(14.0, 6000, 6000)
    other = theirs("fixed", everybody, 10)
    ours = FlowerAccountant(other.config)
    ours.compose(everybody, 10)
    shown = lower_bound.epsilon(ours._composed_mechanism(), delta=DELTA)
    assert other.get_epsilon(DELTA) < shown <= ours.get_epsilon(DELTA)


@pytest.mark.slow
def test_so_it_is_at_the_golden_plan():
    other = theirs("fixed", GOLDEN, 180)
    mechanism = Plan(clients=6000, cohort=100, sampling="fixed", delta=DELTA).round(1.4)
    assert other.get_epsilon(DELTA) < lower_bound.epsilon(repeated(mechanism, 180), delta=DELTA)
