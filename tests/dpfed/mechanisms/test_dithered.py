"""A quantiser's error is the noise that is charged: exactly Gaussian, whatever is quantised."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from refusals import refused
from scipy import stats

from accounting import GaussianShares, PoissonSampling
from accounting.compose.twins import overflow
from accounting.mechanisms import unsampled
from accounting.mechanisms.samplings.independent import rarely_exceeded
from dpfed.config.tables import override, parse
from dpfed.errors import ConfigError, DpfedError, WireError
from dpfed.mechanisms.dithered import LONGER, NARROWEST, DitheredNoise, most_nonzero
from dpfed.randomness import Simulated
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

from ...rounds import preset
from ..announced import a_round

SIZE, COHORT, Z = 100_000, 25, 1.3
STD = Z / math.sqrt(COHORT)
# Seeded; the rate at which a right implementation would fail for another seed.
FALSE_ALARM = 1e-4


def dithered(noise_multiplier=Z):
    return DitheredNoise(
        noise=GaussianShares(noise_multiplier=noise_multiplier, adjacency="zero-out", shares=COHORT),
        sampling=PoissonSampling(probability=0.2),
        divided_by=20.0,
        randomness=Simulated(seeds=Seeds(root=5)),
    )


def errors(entry, stage=None, client=3):
    """Of a row whose entries are all this one."""
    row = torch.full((1, SIZE), float(entry), dtype=torch.float64)
    decoded = (stage or dithered()).client(row.clone(), np.array([client]), a_round(torch.zeros(SIZE)))
    return (decoded - row)[0].numpy()


@pytest.mark.parametrize("entry", [0.0, 1e-3, 0.3 * STD, NARROWEST / 2 * STD, -STD, 0.5, -1.0])
def test_the_error_is_gaussian_whatever_the_entry(entry):
    assert stats.kstest(errors(entry) / STD, "norm").pvalue > FALSE_ALARM


def test_the_error_has_the_same_law_for_every_entry_and_is_not_the_same_number():
    one, other = errors(0.0), errors(0.4 * STD)
    assert abs(np.corrcoef(one, other)[0, 1]) < 1  # not the same number added to both
    assert stats.ks_2samp(one, other).pvalue > FALSE_ALARM
    clients = [errors(0.1, client=client) for client in (3, 4)]
    assert abs(np.corrcoef(*clients)[0, 1]) < 5 / math.sqrt(SIZE)


@pytest.mark.parametrize("fault", ["one width", "no middle", "dither of one half"])
def test_other_quantisers_have_another_error(fault, monkeypatch):
    """Planted faults: a lattice of one width; slices about zero; a dither that fills half of a slice."""
    from dpfed.mechanisms import dithered as module

    real = module._Slices.of

    def broken(**given):
        made = real(**given)
        if fault == "one width":
            return replace(made, widths=torch.full_like(made.widths, math.sqrt(12) * STD), middles=0 * made.middles)
        if fault == "no middle":
            return replace(made, middles=0 * made.middles)
        return replace(made, dither=made.dither / 2)

    monkeypatch.setattr(module._Slices, "of", broken)
    assert stats.kstest(errors(0.01) / STD, "norm").pvalue < FALSE_ALARM


def test_no_slice_is_narrower_than_the_middle_one():
    """By mpmath: w(t) = r(t) + r(1 - t) has its least value at 1/2, over heights down to 1e-30."""

    def width(t):
        return mpmath.sqrt(-2 * mpmath.log(t)) + mpmath.sqrt(-2 * mpmath.log(1 - t))

    heights = [mpmath.mpf(10) ** -k for k in range(1, 31)] + [mpmath.mpf(k) / 1000 for k in range(1, 501)]
    assert min(width(t) for t in heights) == width(mpmath.mpf(1) / 2)
    assert float(width(mpmath.mpf(1) / 2)) == pytest.approx(NARROWEST, rel=1e-15)


def test_ends_of_the_density_give_finite_numbers():
    from dpfed.mechanisms.dithered import _Slices

    ends = torch.tensor([0.0, -0.0, 1e-30, 40.0, -40.0])
    for height in (0.0, 1 - 2.0**-53):
        heights = torch.full((5,), height, dtype=torch.float64)
        made = _Slices.of(points=ends, heights=heights, dither=torch.zeros(5, dtype=torch.float64), std=1.0)
        assert made.widths.isfinite().all()
        assert made.middles.isfinite().all()


@pytest.mark.parametrize("length", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("concentrated", [False, True])
def test_bytes_are_read_as_what_the_client_has(length, concentrated):
    stage, ids, size = dithered(), np.array([3, 7]), 5000
    rows = torch.zeros(2, size)
    rows[:, 0 if concentrated else slice(None)] = length * (1 if concentrated else size**-0.5)
    now = a_round(torch.zeros(size), number=2)
    sent = stage.messages(rows.clone(), ids, now)
    assert torch.equal(stage.read(sent, ids, now), stage.client(rows.clone(), ids, now))
    assert all(8 * len(message) <= stage.fixed_bits(size) for message in sent)


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize("size", [1, 10, 610, 20_000])
@pytest.mark.parametrize("z", [0.05, 0.5, 2.0])
def test_messages_of_the_longest_rows_are_no_longer_than_they_are_counted_with(size, z):
    """The mean number of entries that move is largest where all are alike: 40 messages, each longer with probability
    1e-9."""
    stage, ids = dithered(noise_multiplier=z), np.arange(40)
    rows = torch.full((40, size), size**-0.5 * (1 - 1e-6))
    sent = stage.messages(rows, ids, a_round(torch.zeros(size)))
    assert max(map(len, sent)) <= stage.fixed_bits(size) / 8


@pytest.mark.parametrize("size", [610, 50_000])
@pytest.mark.parametrize("z", [0.3, 1.3, 10.0])
def test_so_many_entries_move_with_the_probability_that_is_claimed(size, z):
    """Entries move independently with probabilities of the same sum or less: by the exact binomial law of the longest
    row, and not a tenth fewer entries than that law needs."""
    probability = min(1.0, math.sqrt(COHORT / size) / (NARROWEST * z))
    stated = most_nonzero(size, COHORT, z)
    assert stats.binom(size, probability).sf(stated - 1) <= LONGER
    assert stated <= 1.2 * stats.binom(size, probability).isf(LONGER) + 10


def test_a_message_of_the_papers_network_at_the_golden_plan_is_as_long_as_stated():
    """docs/theory.md, section 9: 166 slots, 5,505 entries, 8,771 bytes for 1,663,370 numbers."""
    shares = rarely_exceeded(100, 6000, delta=6000**-1.1)
    stage = DitheredNoise(
        noise=GaussianShares(noise_multiplier=1.4, adjacency="zero-out", shares=shares),
        sampling=PoissonSampling(probability=1 / 60),
        divided_by=100.0,
        randomness=Simulated(seeds=Seeds(root=1)),
    )
    assert (shares, most_nonzero(1_663_370, shares, 1.4), stage.fixed_bits(1_663_370)) == (166, 5505, 8 * 8771)


def test_forged_messages_are_refused():
    stage, now, ids = dithered(), a_round(torch.zeros(100)), np.array([3])
    (message,) = stage.messages(torch.zeros(1, 100), ids, now)
    for forged in (message + b"\x00", message[:-1], b"", b"\x07" + message[1:]):
        refused(WireError, "", stage.read, [forged], ids, now)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("uploads", [0, 7, 24, 25])
def test_a_sum_has_the_same_noise_however_many_come(uploads):
    """Chi-square, two-sided. Noise that grew with the cohort would show, over many coordinates, who was drawn. Zeros
    have theirs."""
    stage, now = dithered(), a_round(torch.zeros(SIZE), uploads=uploads)
    rows = torch.zeros(uploads, SIZE)
    total = stage.server(stage.client(rows, np.arange(uploads), now).sum(dim=0), now).double().numpy()
    statistic = (total**2).sum() / Z**2
    assert 2 * min(stats.chi2(SIZE).cdf(statistic), stats.chi2(SIZE).sf(statistic)) > FALSE_ALARM
    release = stage.release(now)
    assert release.noise_std == pytest.approx(Z)
    assert "uploads" not in release.detail  # a secret, under Poisson sampling
    assert release == stage.release(a_round(torch.zeros(SIZE), uploads=uploads + 1))


def test_a_sum_of_more_uploads_than_shares_is_an_error():
    refused(DpfedError, "26 uploads", lambda: dithered().server(torch.zeros(10), a_round(torch.zeros(10), uploads=26)))


def small(*settings):
    return preset("dp-dithered-digits", "federation.rounds=3", *settings)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("privacy.adjacency=add-remove", "add-remove"),
        ("privacy.release=uploads", "release='uploads'"),
        ("privacy.placement=clients", "privacy.placement"),
        ("privacy.noise=discrete-gaussian", "dithered noise is the only noise of dp-dithered"),
        ("aggregation.kind=protocol", "protocol"),
        ("run.randomness=secure", "secure"),
        ("audit.canaries=4", "canaries"),
        ("federation.sampling=balls-and-bins", "balls-and-bins"),
        ("federation.sampling=cyclic", "cyclic"),
        ("privacy.adaptive.quantile=0.5", "adaptive"),
    ],
)
def test_what_the_noise_is_not_for_is_refused(setting, named):
    refused(ConfigError, named, lambda: build(small(setting)))


def test_more_levels_than_a_message_holds_are_refused():
    refused(ConfigError, "levels", dithered, noise_multiplier=1e-6)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "all"])
def test_its_noise_is_that_of_dp_fedavg(sampling):
    """For the same epsilon, but for the cohorts that are too large."""
    cohort = ("federation.cohort=650",) if sampling == "all" else ()
    mine = build(small(f"federation.sampling={sampling}", *cohort))
    adjacency = f"privacy.adjacency={mine.privacy_target.mechanism.adjacency}"
    peer = build(
        parse(
            override(mine.config.to_dict(), ["method.name=dp-fedavg", "privacy.noise=gaussian", adjacency]),
            source="test",
        )
    )
    assert mine.privacy_target.noise_multiplier == pytest.approx(peer.privacy_target.noise_multiplier, rel=1e-4)
    assert mine.privacy_target.noise_multiplier >= peer.privacy_target.noise_multiplier * (1 - 1e-9)
    assert overflow(mine.privacy_target.mechanism) == 0


def test_a_cap_is_the_number_of_shares():
    built = build(small("privacy.slots=90", "privacy.delta=0.05", "privacy.epsilon=", "privacy.noise_multiplier=1"))
    noise = unsampled(built.privacy_target.mechanism)
    assert noise.shares == built.privacy_target.mechanism.sampling.cap == 90
    assert noise.overflow == 0
