"""Private records as whole numbers: bound, noise and epsilon of a step against exact enumeration."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from reference.integer_distributions import discrete_gaussian
from refusals import refused
from scipy.stats import chi2

from accounting import Composed
from accounting.compose import accountant
from accounting.compose.histories import Steps
from accounting.integers.fixed_point import rounded_l2
from accounting.ledger import LocalRelease
from accounting.ledger.entries import noise_error
from accounting.mechanisms import PoissonSampling, subsample
from dpfed.clients.schedule import PoissonBatches
from dpfed.errors import ConfigError
from dpfed.mechanisms.records import IntegerRecords, gaussian_noise, integer_noise, step_release
from dpfed.randomness import Secure, Simulated
from dpfed.seeds import Seeds

SIMULATED = Simulated(seeds=Seeds(root=5))


def integers(z=1.0, *, size=50, clip_norm=0.5, steps=None, randomness=SIMULATED):
    return IntegerRecords.for_rows(z, size=size, clip_norm=clip_norm, steps=steps, randomness=randomness)


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("steps", [None, 1.0, 3.7, 40.0])
@pytest.mark.parametrize("size", [1, 7, 300])
def test_no_row_of_integers_is_longer_than_the_noise_is_charged_for(size, steps):
    """Rows at the clip norm, also with all entries alike and just above half a step, and rows that are not finite."""
    code = integers(size=size, steps=steps)
    rows = torch.randn(200, size, generator=torch.Generator().manual_seed(0))
    rows[:50] = 1.0
    rows = 0.5 * rows / rows.norm(dim=1, keepdim=True)
    rows[60] = float("nan")
    rows[61] = 1e30
    encoded = code.encode_rows(rows, np.arange(200), (0, 0, 0))
    assert encoded.dtype == torch.int64
    lengths = (encoded**2).sum(dim=1)
    assert int(lengths.max()) <= code.noise.l2_bound**2
    assert not encoded[60].any()
    assert code.noise.l2_bound == rounded_l2(code.fixed_point.steps_per_unit * 0.5, size)


def test_integers_and_noise_that_do_not_fit_are_refused():
    code = integers()
    refused(ConfigError, "must be equal", replace, code, noise=replace(code.noise, l2_bound=0.9 * code.noise.l2_bound))
    refused(ConfigError, "must be equal", lambda: replace(code, noise=replace(code.noise, dimension=49)))
    refused(ConfigError, "variance", integers, 1.0, steps=1e6)


def test_rounding_is_by_the_record_and_unbiased():
    """Mean of 2,000 roundings within 5 standard errors of the row, entry by entry: fails once in 30,000 for 50
    entries; alone or in another batch a record is rounded alike."""
    code = integers(steps=9.3)
    row = 0.5 * torch.nn.functional.normalize(torch.linspace(-1, 2, 50)[None])
    encoded = code.encode_rows(row.expand(2000, 50), np.arange(2000), (1, 2, 3))
    exact = row[0].double() * code.fixed_point.steps_per_unit
    error = (encoded.double().mean(dim=0) - exact).abs()
    assert (error <= 5 * 0.5 / math.sqrt(2000)).all()
    alone = code.encode_rows(row, np.array([1234]), (1, 2, 3))
    assert alone[0].equal(encoded[1234])
    assert not code.encode_rows(row, np.array([1234]), (1, 2, 4))[0].equal(alone[0])


def noise_of_steps(code, count):
    """Noise of `count` steps on an empty batch, from the slopes that a client follows, in integer steps."""
    rows = [
        code.slope(lambda rows: rows, torch.empty(0, dtype=torch.int64), size=50, expected=4, path=(0, 1, step))
        for step in range(count)
    ]
    return torch.cat(rows).double() * 4 * code.fixed_point.steps_per_unit


@pytest.mark.parametrize("randomness", [SIMULATED, Secure()], ids=["simulated", "secure"])
def test_the_noise_of_a_step_is_the_discrete_gaussian_that_is_charged(randomness):
    """Chi-squared over 20,000 draws at 1e-6; noise short by a tenth in variance is found."""
    code = integers(0.4, steps=10.0, randomness=randomness)
    variance = int(code.noise.share_variance)
    assert variance == 16
    drawn = noise_of_steps(code, 400).round()
    assert (drawn - noise_of_steps(code, 400).round()).abs().sum() == 0 if randomness is SIMULATED else True
    found = np.bincount((drawn.numpy() + 12).clip(0, 24).astype(int), minlength=25)

    def surprise(variance):
        law = discrete_gaussian(variance, 100)
        expected = law[88:113].copy()
        expected[0], expected[-1] = law[:89].sum(), law[112:].sum()
        expected *= found.sum()
        return chi2.sf(((found - expected) ** 2 / expected).sum(), 24)

    assert surprise(variance) > 1e-6
    assert surprise(0.9 * variance) < 1e-6


def test_whole_numbers_reach_the_slope_and_nothing_else():
    """A step is (sum of integers + noise) / (steps per unit * expected batch), to float32."""
    code = integers(steps=16.0)
    gradients = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    batch = torch.tensor([3, 0, 5])
    step = code.slope(lambda rows: gradients[rows], batch, size=50, expected=4, path=(2, 7, 1))
    counted = step.double() * 4 * code.fixed_point.steps_per_unit
    torch.testing.assert_close(counted, counted.round(), rtol=0, atol=1e-4)
    clipped = 0.5 * torch.nn.functional.normalize(gradients[batch])
    whole = code.encode_rows(clipped, batch.numpy(), (2, 7, 1)).sum(dim=0)
    whole = code.add_noise(whole, (2, 7, 1))
    torch.testing.assert_close(counted.round(), whole.double(), rtol=0, atol=3)  # clipping in float32 may round apart


def exact_deltas(epsilon, *, variance, moved, probability, steps):
    """Hockey-stick divergences of both orders of `steps` Poisson-sampled draws, by enumeration, with 40 digits."""
    mp.dps = 40
    reach = math.ceil(12 * math.sqrt(variance)) + moved
    weights = {k: mp.exp(-(mpf(k) ** 2) / (2 * variance)) for k in range(-2 * reach, 2 * reach + 1)}
    total = mp.fsum(weights.values())
    q = mpf(probability)
    without = {k: weights[k] / total for k in range(-reach, reach + 1)}
    with_record = {k: (1 - q) * weights[k] / total + q * weights[k - moved] / total for k in without}
    gamma = mp.exp(mpf(epsilon))
    forth = back = mpf(0)
    for ks in product(without, repeat=steps):
        one, two = mpf(1), mpf(1)
        for k in ks:
            one, two = one * with_record[k], two * without[k]
        forth += max(one - gamma * two, mpf(0))
        back += max(two - gamma * one, mpf(0))
    return float(forth), float(back)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize(
    ("z", "steps", "probability", "count", "delta"),
    [(1.0, 4.0, 0.3, 1, 1e-3), (1.0, 4.0, 0.3, 2, 1e-2), (0.6, 3.0, 0.1, 2, 1e-3), (2.0, 2.0, 0.9, 2, 1e-3)],
)
def test_epsilon_is_an_upper_bound_by_enumeration_and_near(z, steps, probability, count, delta):
    """One coordinate: a record moves the sum by at most floor(l2_bound) whole steps, and exactly so at its worst."""
    noise = integer_noise(z, size=1, steps=steps)
    run = Composed(parts=((subsample(noise, PoissonSampling(probability=probability)), count),))
    stated = accountant.epsilon(run, delta=delta)
    shift = {"variance": noise.share_variance, "moved": math.floor(noise.l2_bound)}
    exact = {"probability": probability, "steps": count, **shift}
    assert max(exact_deltas(stated, **exact)) <= delta
    # Not loose: continuous noise, and a bound that is no whole number, cost up to a third here; a fifth off is seen.
    assert max(exact_deltas(stated * 0.6, **exact)) > delta
    weaker = replace(noise, share_variance=noise.share_variance / 2)
    small = Composed(parts=((subsample(weaker, PoissonSampling(probability=probability)), count),))
    assert accountant.epsilon(small, delta=delta) > stated


def test_two_coordinates_by_enumeration():
    """One step, for every whole vector that a record may have: none shows more than is stated."""
    noise, q = integer_noise(1.0, size=2, steps=3.0), 0.4
    stated = accountant.epsilon(Composed(parts=((subsample(noise, PoissonSampling(probability=q)), 1),)), delta=1e-3)
    reach = 40
    line = discrete_gaussian(noise.share_variance, reach)
    law, gamma = np.outer(line, line), math.exp(stated)
    longest = math.floor(noise.l2_bound)
    for x, y in product(range(-longest, longest + 1), repeat=2):
        if x * x + y * y > noise.l2_bound**2:
            continue
        mixed = (1 - q) * law + q * np.roll(law, (x, y), axis=(0, 1))
        worst = max(np.maximum(mixed - gamma * law, 0).sum(), np.maximum(law - gamma * mixed, 0).sum())
        assert worst <= 1e-3


def test_at_usual_sizes_epsilon_is_that_of_the_gaussian_and_one_per_cent_of_noise():
    batches = PoissonBatches(batch_size=32, epochs=1)
    code = integers(1.1, size=2410)
    steps = step_release(code.noise, batches, 1000)
    exact = accountant.epsilon(Composed(parts=((steps, 60),)), delta=1e-5)
    for z, below in ((1.1, True), (1.1 / 1.0102, False)):
        step = step_release(gaussian_noise(z), batches, 1000)
        found = accountant.epsilon(Composed(parts=((step, 60),)), delta=1e-5)
        assert (found <= exact) == below


def test_a_ledger_line_states_no_less_noise_than_it_charges_for():
    code = integers(1.3, size=100)
    release = code.release(np.array([10, 40]), np.array([0, 3]), PoissonBatches(batch_size=8, epochs=1), number=2)
    assert [part.mechanism for part in release.steps] == [
        subsample(code.noise, PoissonSampling(probability=8 / size)) for size in (10, 40)
    ]
    assert release.noise_std == pytest.approx(1.3 * 0.5, rel=1e-4)
    assert release.noise_std >= 1.3 * 0.5
    assert noise_error(release) is None
    assert noise_error(replace(release, noise_std=0.99 * release.noise_std)) is not None
    assert isinstance(release, LocalRelease)
    assert all(isinstance(part, Steps) for part in release.steps)


def test_slopes_are_taken_record_by_record():
    """In a batch, slopes of other records change in bits, and across a kink in all: 3 bounds for one record."""
    code, heights = integers(), []

    def slopes(rows):
        heights.append(len(rows))
        return torch.ones(len(rows), 50)

    code.slope(slopes, torch.arange(5), size=50, expected=5, path=(0, 0, 0))
    assert heights == [1] * 5
