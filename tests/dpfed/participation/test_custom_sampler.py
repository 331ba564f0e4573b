"""Samplers of the user's own: right ones pass, planted faults are found before round 1, reports name them."""

import numpy as np
import pytest
from refusals import refused

import dpfed
from dpfed.audit.run import audit_run
from dpfed.config import own_code
from dpfed.errors import ConfigError
from dpfed.participation.custom import LIMITS, CustomSampler, sampler_problem
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

CLIENTS, COHORT = 60, 6


def by_chance(clients, cohort, generator, number):
    return np.flatnonzero(generator.random(clients) < cohort / clients)


def without_replacement(clients, cohort, generator, number):
    return generator.choice(clients, cohort, replace=False)


def by_place(clients, cohort, generator, number):
    """Planted: the first half of the list 1.2 times as often as the second, at the right mean."""
    rates = np.where(np.arange(clients) < clients // 2, 12 / 11, 10 / 11) * cohort / clients
    return np.flatnonzero(generator.random(clients) < rates)


def more_often(clients, cohort, generator, number):
    """Planted: 1.05 q."""
    return np.flatnonzero(generator.random(clients) < 1.05 * cohort / clients)


def with_memory():
    """Planted: a client of the last cohort stays with probability 1.3 q, and all clients keep the marginal q."""
    before = []

    def draw(clients, cohort, generator, number):
        q, stay = cohort / clients, 1.3 * cohort / clients
        rates = np.full(clients, q if not before else q * (1 - stay) / (1 - q))
        if before:
            rates[before[-1]] = stay
        before.append(np.flatnonzero(generator.random(clients) < rates))
        return before[-1]

    return draw


def in_pairs(clients, cohort, generator, number):
    """Planted: clients 0 and 1 always together."""
    present = generator.random(clients) < cohort / clients
    present[1] = present[0]
    return np.flatnonzero(present)


def of_one_size(clients, cohort, generator, number):
    return without_replacement(clients, cohort, generator, number)


def with_one_more(clients, cohort, generator, number):
    return generator.choice(clients, cohort + (number == 9_000), replace=False)


def by_a_public_seed(clients, cohort, generator, number):
    """Planted: whoever knows the function knows the cohorts."""
    return np.random.default_rng(number).choice(clients, cohort, replace=False)


def from_its_own_generator(draws):
    """Planted: whoever has the code has the seed, and so all cohorts in their order."""
    return lambda clients, cohort, generator, number: by_chance(clients, cohort, draws, number)


def problem(draw, distribution, seed=3, clients=CLIENTS, cohort=COHORT):
    made = CustomSampler(name="mine", draw=draw, distribution=distribution)
    return sampler_problem(made.cohorts(clients, cohort), Simulated(seeds=Seeds(root=seed)))


@pytest.mark.slow_but_one_in(9)
@pytest.mark.parametrize(("draw", "distribution"), [(by_chance, "poisson"), (without_replacement, "fixed")])
@pytest.mark.parametrize(("clients", "cohort"), [(CLIENTS, COHORT), (3, 3), (1, 1), (20, 1)])
def test_right_samplers_pass(draw, distribution, clients, cohort):
    """False alarm 1e-6 of each."""
    assert problem(draw, distribution, clients=clients, cohort=cohort) is None


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize(
    ("draw", "distribution", "found"),
    [
        (by_place, "poisson", "times are expected"),
        (more_often, "poisson", "take part"),
        (with_memory(), "poisson", "depend on earlier"),
        (in_pairs, "poisson", "take part together"),
        (of_one_size, "poisson", "variance 0.00"),
        (with_one_more, "fixed", "round 9000 has 7 clients"),
        (by_chance, "fixed", "clients, not 6"),
        (by_a_public_seed, "fixed", "1000 of 1000 cohorts are equal"),
        (from_its_own_generator(np.random.default_rng(0)), "poisson", "another cohort if its generator has the same"),
    ],
)
def test_planted_faults_are_found(draw, distribution, found):
    assert found in problem(draw, distribution)


def test_clients_that_are_drawn_together_are_found_wherever_their_ids_are():
    def halves(clients, cohort, generator, number):
        return np.add.outer([0, clients // 2], generator.choice(clients // 2, cohort // 2, replace=False)).ravel()

    assert "Clients are drawn together" in problem(halves, "fixed", clients=200, cohort=20)


@pytest.fixture
def named():
    """Registered samplers, forgotten afterwards."""
    dpfed.register_sampler("right", distribution="poisson")(by_chance)
    dpfed.register_sampler("wrong", distribution="poisson")(more_often)
    dpfed.register_sampler("mute", distribution=None)(by_chance)
    yield
    own_code.forget_file(__file__)


NOISE = {"privacy.noise_multiplier": 1.0, "privacy.accountant": "rdp"}


def settings(name, **more):
    return {
        "federation.sampling": "custom",
        "federation.sampler": name,
        "federation.rounds": 2,
        **NOISE,
        "run.seed": 1,
        **more,
    }


def test_a_private_run_states_the_account_of_its_distribution_and_names_the_sampler(named, tmp_path, monkeypatch):
    monkeypatch.setattr("dpfed.participation.custom.ROUNDS", 2000)
    done = dpfed.run("dp-fedavg-digits", settings("right"), out=tmp_path / "mine")
    built_in = dpfed.run("dp-fedavg-digits", {"federation.rounds": 2, "run.seed": 1, **NOISE})
    assert done.summary["epsilon"] == built_in.summary["epsilon"]
    said = LIMITS.format(name="right", distribution="poisson")
    assert said in done.summary["not_protected"]
    assert "Sampler of the user" in (tmp_path / "mine" / "report.html").read_text()
    checks = {one.name: one for one in audit_run(tmp_path / "mine").checks}
    assert checks["custom sampler draws as it states"].passed


def test_wrong_samplers_are_refused_before_round_1(named):
    with pytest.raises(ConfigError, match=r"times are expected. This contradicts 'poisson'"):
        dpfed.run("dp-fedavg-digits", settings("wrong"))


@pytest.mark.parametrize(
    ("name", "more", "found"),
    [
        ("mute", {}, "it has no epsilon"),
        ("unknown", {}, "known samplers are mute, right, wrong"),
        ("right", {"run.release": True}, "drawn by dpfed from the operating system"),
        ("right", {"privacy.noise": "discrete-gaussian"}, "number of uploads is not fixed"),
    ],
)
def test_settings_without_an_account_are_refused(named, name, more, found):
    refused(ConfigError, found, lambda: dpfed.run("dp-fedavg-digits", settings(name, **more)))


@pytest.mark.parametrize("draw", [lambda *_: [1, 1], lambda *_: [-1], lambda *_: [0.5], lambda *_: 1 / 0, lambda *_: 3])
def test_other_results_are_refused(draw):
    refused(ConfigError, r"federation.sampler='mine', round 0", problem, draw, "poisson")


def test_another_distribution_is_refused():
    refused(ConfigError, "must be 'poisson', 'fixed', or None", dpfed.register_sampler, "mine", distribution="cyclic")
