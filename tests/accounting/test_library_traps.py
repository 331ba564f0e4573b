"""Where the libraries are wrong or fail, each beside our guard.

A test whose name starts with `test_upstream` pins a WRONG number of a library. When one fails, upstream has changed:
look whether the guard is still needed, and update the pin. The guards' own tests must never fail.
"""

import logging
import warnings

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    calibrate_dp_mechanism,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as library
from dp_accounting.rdp import RdpAccountant
from reference import renyi
from reference.shorthand import fixed, gaussian, poisson, times

from accounting import budget
from accounting.budget import Plan
from accounting.compose import accountant, lower_bound, pld, rdp

REPLACE = NeighboringRelation.REPLACE_ONE


def library_rdp(event, delta, relation=NeighboringRelation.ADD_OR_REMOVE_ONE):
    upstream = RdpAccountant(neighboring_relation=relation)
    upstream.compose(event)
    return upstream.get_epsilon(delta)


class TestNoiseMultiplierThatIsNoFloat:
    @pytest.mark.parametrize("noise_multiplier", [1, np.float32(1)])
    def test_upstream_loses_a_composition_inside_a_sampled_event(self, noise_multiplier):
        nested = SelfComposedDpEvent(GaussianDpEvent(noise_multiplier), 100)
        assert library_rdp(PoissonSampledDpEvent(0.01, nested), 1e-5) == pytest.approx(0.9555, abs=1e-4)
        nested = SelfComposedDpEvent(GaussianDpEvent(1.0), 100)
        assert library_rdp(PoissonSampledDpEvent(0.01, nested), 1e-5) == pytest.approx(80.57, abs=1e-2)

    @pytest.mark.parametrize("noise_multiplier", [1, np.float32(1), np.float64(1), np.int64(1)])
    def test_any_kind_of_number_costs_the_same(self, noise_multiplier):
        assert type(gaussian(noise_multiplier).noise_multiplier) is float
        for accounted in ("rdp", "pld"):
            costs = [
                accountant.epsilon(times(poisson(0.01, z), 100), delta=1e-5, accountant=accounted)
                for z in (noise_multiplier, 1.0)
            ]
            assert costs[0] == costs[1]

    def test_a_probability_is_a_plain_float_too(self):
        q = poisson(np.float32(0.1), 1.0).sampling.probability
        assert type(q) is float


class TestReplaceOne:
    def test_upstream_renyi_takes_the_noise_as_if_already_halved(self):
        assert library_rdp(GaussianDpEvent(2.0), 1e-5, REPLACE) == pytest.approx(2.1657, abs=1e-4)
        upstream = PLDAccountant(neighboring_relation=REPLACE)
        upstream.compose(GaussianDpEvent(2.0))
        assert upstream.get_epsilon(1e-5) == pytest.approx(4.3772, abs=1e-4)

    def test_every_accountant_doubles_the_sensitivity_itself(self):
        replaced, halved = gaussian(2.0, "replace-one"), gaussian(1.0)
        for accounted in ("best", "rdp", "pld"):
            doubled = accountant.epsilon(replaced, delta=1e-5, accountant=accounted)
            assert doubled == accountant.epsilon(halved, delta=1e-5, accountant=accounted)
            assert doubled >= 4.37717


class TestFixedSizeOrdersAbove256:
    def test_upstream_jumps(self):
        upstream = RdpAccountant([256, 257], REPLACE)
        upstream.compose(SampledWithoutReplacementDpEvent(6000, 100, GaussianDpEvent(20.0)))
        assert upstream.rdp[1] / upstream.rdp[0] == pytest.approx(48, abs=1)

    def test_the_last_usable_order_counts_as_an_end_and_is_reported(self):
        answer = accountant.guarantee(times(fixed(1, 10**6, 50.0), 1), delta=1e-9, accountant="rdp")
        assert answer.order == 256
        assert "order 256 is an end of the grid" in answer.notes[0]


class TestFixedSizeDifferences:
    """Where the noise is large only rounding is left of its alternating sums."""

    def test_upstream_is_far_too_large(self):
        upstream = RdpAccountant([17, 64], REPLACE)
        upstream.compose(SampledWithoutReplacementDpEvent(1000, 700, GaussianDpEvent(200.0)))
        ours = rdp.curve(fixed(700, 1000, 400.0), [17.0, 64.0])
        assert upstream.rdp[0] == pytest.approx(ours[0], rel=1e-6)
        assert upstream.rdp[1] > 100 * ours[1]

    def test_upstream_fails_at_huge_noise(self):
        upstream = RdpAccountant([64], REPLACE)
        with pytest.raises(ValueError, match=r"math domain|positive input"), np.errstate(all="ignore"):
            upstream.compose(SampledWithoutReplacementDpEvent(10**6, 1, GaussianDpEvent(1e9)))
        assert accountant.epsilon(fixed(1, 10**6, 1e9), delta=1e-5, accountant="rdp") == 0.0


class TestFixedSizeCalibration:
    def test_upstream_divides_by_zero_without_a_bracket(self):
        def event(sigma):
            return SelfComposedDpEvent(SampledWithoutReplacementDpEvent(6000, 100, GaussianDpEvent(sigma)), 180)

        with pytest.raises(ZeroDivisionError):
            calibrate_dp_mechanism(lambda: RdpAccountant(neighboring_relation=REPLACE), event, 1.01, 1e-5)

    def test_ours_needs_none(self):
        plan = Plan(clients=6000, cohort=100, sampling="fixed", delta=1e-5)
        z = budget.noise_multiplier(plan, epsilon=1.01, rounds=180, accountant="rdp")
        assert budget.epsilon(plan, noise_multiplier=z, rounds=180, accountant="rdp") <= 1.01


class TestOrdersThatDoNotConverge:
    MECHANISM = times(poisson(0.125, 0.4), 1000)

    def test_upstream_drops_them_and_is_far_off(self, caplog):
        event = SelfComposedDpEvent(PoissonSampledDpEvent(0.125, GaussianDpEvent(0.4)), 1000)
        with caplog.at_level(logging.WARNING, logger="absl"):
            assert library_rdp(event, 1e-6) == pytest.approx(828, abs=1)

    def test_ours_are_finite(self, capfd):
        orders = [1.1, 2.0]
        exact = [float(renyi.removal(order, 0.125, 0.4)) for order in orders]
        assert rdp.curve(poisson(0.125, 0.4), orders) == pytest.approx(exact, rel=1e-9)
        assert accountant.epsilon(self.MECHANISM, delta=1e-6, accountant="rdp") < 420
        assert capfd.readouterr() == ("", "")

    def test_best_falls_back_on_the_privacy_loss_account(self):
        best = accountant.guarantee(self.MECHANISM, delta=1e-6)
        assert best.epsilon == pytest.approx(309.6, abs=0.05)
        assert best.epsilon <= pld.epsilon(self.MECHANISM, delta=1e-6)
        assert best.lower_bound == pytest.approx(309.5, abs=0.1)


class TestCoarseGrid:
    def test_upstream_is_looser_than_renyi(self):
        coarse = library.from_gaussian_mechanism(1.4, sampling_prob=1 / 60, value_discretization_interval=0.05)
        assert coarse.self_compose(180).get_epsilon_for_delta(6000**-1.1) > 0.7442

    def test_best_is_the_smaller_of_the_two(self):
        for mechanism in (
            times(poisson(1e-4, 0.3), 100_000),
            times(poisson(0.3, 2.0), 10),
            times(fixed(5, 50, 3.0), 7),
        ):
            names = ("pld", "rdp", "adaptive") if mechanism.parts[0][0].sampling.name == "fixed" else ("pld", "rdp")
            each = [accountant.epsilon(mechanism, delta=1e-6, accountant=name) for name in names]
            assert accountant.epsilon(mechanism, delta=1e-6) == min(each)


class TestTinyDelta:
    def test_many_rounds_at_a_small_delta_are_composed_tilted(self):
        many = times(poisson(0.1, 1.0), 10**6)
        above, below = accountant.epsilon(many, delta=1e-10, accountant="rdp"), lower_bound.epsilon(many, delta=1e-10)
        assert 0.97 * above < below < pld.epsilon(many, delta=1e-10) < above

    @pytest.mark.parametrize(("rounds", "delta"), [(10, 1e-13), (10, 1e-200)])
    def test_best_falls_back_on_renyi(self, rounds, delta):
        mechanism = times(poisson(0.1, 1.0), rounds)
        best = accountant.guarantee(mechanism, delta=delta, with_lower_bound=False)
        assert best.method == "rdp"
        assert best.epsilon == accountant.epsilon(mechanism, delta=delta, accountant="rdp")

    def test_rounding_of_the_convolution_is_charged(self):
        """10,000 rounds sampled with certainty are one known Gaussian; without the charge we would fall below it."""
        composed, delta = times(poisson(1.0, 100.0, "replace-one"), 10_000), 4.1e-12
        truth = accountant.epsilon(times(gaussian(100.0, "replace-one"), 10_000), delta=delta)
        assert truth <= pld.epsilon(composed, delta=delta) <= truth * 1.03


class TestOpacus:
    """Opacus' three accountants against ours. Importing it loads torch."""

    @staticmethod
    def epsilon(kind, sigma, q, rounds, delta):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            peer = getattr(pytest.importorskip("opacus.accountants"), kind)()
            peer.history = [(sigma, q, rounds)]
            return peer.get_epsilon(delta)

    def test_upstream_renyi_has_a_floor_and_turns_negative(self):
        assert self.epsilon("RDPAccountant", 1000.0, 0.001, 1, 1e-5) == pytest.approx(0.103, abs=1e-3)
        assert self.epsilon("RDPAccountant", 1000.0, 0.001, 1, 0.9) < 0
        assert accountant.epsilon(poisson(0.001, 1000.0), delta=1e-5, accountant="rdp") < 0.002
        assert accountant.epsilon(poisson(0.001, 1000.0), delta=0.9, accountant="rdp") == 0

    @pytest.mark.slow
    def test_upstream_privacy_loss_overflows(self):
        assert self.epsilon("PRVAccountant", 0.01, 0.01, 1, 1e-5) == pytest.approx(705, abs=1)
        mechanism = poisson(0.01, 0.01)
        assert lower_bound.epsilon(mechanism, delta=1e-5) == pytest.approx(5303.43, abs=0.01)
        assert accountant.epsilon(mechanism, delta=1e-5) == pytest.approx(5303.43, abs=0.01)

    def test_upstream_central_limit_is_below_the_truth(self):
        delta, mechanism = 6000**-1.1, times(poisson(1 / 60, 1.4), 180)
        central_limit = self.epsilon("GaussianAccountant", 1.4, 1 / 60, 180, delta)
        assert central_limit == pytest.approx(0.5614, abs=1e-4)
        assert central_limit < lower_bound.epsilon(mechanism, delta=delta)
        assert lower_bound.epsilon(mechanism, delta=delta) == pytest.approx(0.6303, abs=1e-4)

    def test_upstream_privacy_loss_agrees_where_it_works(self):
        delta, mechanism = 6000**-1.1, times(poisson(1 / 60, 1.4), 180)
        assert self.epsilon("PRVAccountant", 1.4, 1 / 60, 180, delta) == pytest.approx(0.6404, abs=1e-4)
        assert accountant.epsilon(mechanism, delta=delta) < 0.6404


def test_an_optimal_order_at_the_short_end_is_reported():
    answer = accountant.guarantee(gaussian(0.001), delta=1e-5, accountant="rdp")
    assert answer.order == rdp.ORDERS[0]
    assert "is an end of the grid" in answer.notes[0]
