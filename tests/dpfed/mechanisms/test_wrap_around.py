"""Sums modulo 2^b, at the end of their ring: what is released keeps its claim wherever it wraps, whatever clients send.

The signs of a rotation are public, so a client may send a row that is one coordinate after it. A few such rows bring a
sum to the end of the ring with certainty, and one client more or less moves it across.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import Subsampled
from accounting.compose import accountant, profiles
from accounting.mechanisms import (
    CappedPoissonSampling,
    Composed,
    FixedSizeSampling,
    FullParticipation,
    PoissonSampling,
    subsample,
    unsampled,
)
from accounting.mechanisms.integers import DiscreteGaussian
from dpfed.audit.round.one_round import RandomnessByCallOrder
from dpfed.audit.statistics.rejection import upper_limit
from dpfed.mechanisms.integers import IntegerNoise, Integers
from dpfed.randomness import Simulated
from dpfed.round import draw_round_cohort
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages, server_halves
from dpfed.stages.project import Project
from dpfed.stages.stage import Round

from ...rounds import Book, preset, watched_round
from ..announced import a_round, announced, private_coins

pytestmark = pytest.mark.slow_but_one_in(3)

AT_THE_END = {
    "fixed": ("federation.sampling=fixed", "privacy.adjacency=zero-out"),
    "all": ("federation.sampling=all", "privacy.adjacency=zero-out", "federation.rounds=1"),
    "poisson": (),
}
ALPHA = 1e-6


def secure(*settings):
    return build(preset("fed-smp-randk-digits", "aggregation.kind=masked", "privacy.epsilon=3", *settings))


@dataclass
class OneSetting:
    """Round 0 with `clients` uploads, all secret draws from one stream."""

    stages: Stages
    now: Round
    clients: int

    @property
    def integers(self):
        return self.stages.find(Integers)

    def rounded(self, rows, ids):
        return self.integers.client(rows, ids, self.now)


def one_round(experiment, clients, seed):
    stages, stream = experiment.method.stages, RandomnessByCallOrder(seed)
    for kind in (Integers, IntegerNoise):
        stages = stages.replace_stage(kind, lambda stage: replace(stage, randomness=stream))
    return OneSetting(stages, announced(experiment, uploads=clients), clients)


def aligned_row(one):
    """The row of norm C that the round's rotation turns into its first coordinate, but for what padding cuts off."""
    integers = one.integers
    first = torch.zeros(integers.fixed_point.padded, dtype=torch.float64)
    first[0] = 1.0
    row = integers.server(first, one.now).double()
    return (row / row.norm() * integers.clip_norm).float()


def neighbours_at_the_end(one):
    """Two sums of rows within the clip norm that differ in one client, just below and above 2^(b-1) in entry 0."""
    code, row = one.integers, aligned_row(one)
    ids = np.arange(one.clients)
    own = one.rounded(row[None].clone(), ids[:1])[0]
    step = code.fixed_point.steps_per_unit * code.clip_norm * math.sqrt(len(row) / code.fixed_point.padded)
    wanted = 2 ** (code.bits - 1) - 1 - step / 2
    shares = np.clip((wanted - step * np.arange(one.clients - 1)) / step, 0, 1)
    assert shares[-1] == 0, "the cohort is too small to reach the end of the ring"
    rows = row[None] * torch.from_numpy(shares).float()[:, None]
    others = one.rounded(rows, ids[1:]).sum(dim=0)
    half = 2 ** (code.bits - 1)
    assert int(others[0]) < half <= int(others[0] + own[0])
    return others, others + own


def released(one, totals):
    """Sums [n, width], each decoded and noised as the server does."""
    sums = [server_halves(one.stages.without(Project), total, one.now).float() for total in totals]
    return torch.stack(sums)


def residues(total, bits):
    """As a secure sum returns it."""
    return total & ((1 << bits) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", AT_THE_END)
def test_neighbouring_sums_on_both_sides_of_the_end_keep_the_claim(sampling):
    """Rows that follow the public signs, through the parts of a round; the sign of entry 0 tells two worlds apart.

    A sound round fails with probability at most 3e-6 (Clopper-Pearson, ALPHA over two orders and the three events).
    """
    experiment = secure(*AT_THE_END[sampling])
    one = one_round(experiment, clients=experiment.method.fill or int(experiment.method.sampler.expected), seed=7)
    row, trials = aligned_row(one), 1000
    worlds = [residues(total, one.integers.bits) for total in neighbours_at_the_end(one)]
    negative = [int((released(one, total.expand(trials, -1)) @ row < 0).sum()) for total in worlds]
    release = one.stages.private.release(one.now)
    inside = release.mechanism.mechanism if isinstance(release.mechanism, Subsampled) else release.mechanism
    claim = profiles.profile(inside)
    for epsilon in (0.0, 1.0, 3.0):
        for here, there in (negative, negative[::-1]):
            here_at_least = 1 - float(upper_limit(trials - here, trials, alpha=ALPHA / 4))
            there_at_most = float(upper_limit(there, trials, alpha=ALPHA / 4))
            assert here_at_least <= math.exp(epsilon) * there_at_most + float(claim(epsilon))


def law(variance, mean, modulus):
    """Exact to rounding: the probabilities of (mean + N_Z(0, variance)) mod `modulus`."""
    reach = math.ceil(40 * math.sqrt(variance)) + 2
    k = np.arange(-reach, reach + 1)
    weights = np.exp(-(k.astype(float) ** 2) / (2 * variance))
    masses = np.zeros(modulus)
    np.add.at(masses, (k + mean) % modulus, weights / weights.sum())
    return masses


def hockey_stick(one, other, epsilon):
    return float(np.maximum(one - math.exp(epsilon) * other, 0).sum())


Q = 0.2
SAMPLERS = {
    "all": FullParticipation(),
    "poisson": PoissonSampling(probability=Q),
    "fixed": FixedSizeSampling(cohort=2, clients=10),
}
WORLDS = [  # sampler, adjacency; each world: (mass, shift in units of D), (mass, shift), ...
    ("all", "zero-out", [(1.0, 0)], [(1.0, 1)]),
    ("all", "add-remove", [(1.0, 1)], [(1.0, 0)]),
    ("all", "replace-one", [(1.0, -1)], [(1.0, 1)]),
    ("poisson", "add-remove", [(1 - Q, 0), (Q, 1)], [(1.0, 0)]),
    ("poisson", "zero-out", [(1.0, 0)], [(1 - Q, 0), (Q, 1)]),
    ("poisson", "replace-one", [(1 - Q, 0), (Q, 1)], [(1 - Q, 0), (Q, -1)]),
    ("fixed", "zero-out", [(1 - Q, -1), (Q, 1)], [(1 - Q, -1), (Q, 0)]),
    ("fixed", "zero-out", [(1 - Q, -1), (Q, 0)], [(1 - Q, -1), (Q, -1)]),
    ("fixed", "replace-one", [(1 - Q, -1), (Q, 1)], [(1 - Q, -1), (Q, -1)]),
]


@pytest.mark.slow_but_one_in(5)
@pytest.mark.parametrize(("sampling", "adjacency", "one", "other"), WORLDS)
@pytest.mark.parametrize("bits", [5, 8, 16])
def test_the_law_of_the_released_integer_is_within_the_account(sampling, adjacency, one, other, bits):
    """All of D in one coordinate, at every place of the ring, by summing up the law: rings that wrap in most rounds (5
    bits, standard deviation 24), in some, and never. In the last the account is met to 3%."""
    bound, variance, delta = 20, 600.0, 1e-3
    inside = DiscreteGaussian(dimension=1, l2_bound=float(bound), share_variance=variance, adjacency=adjacency)
    stated = accountant.epsilon(subsample(inside, SAMPLERS[sampling]), delta=delta)
    modulus, start = 1 << bits, (1 << bits - 1) - bound // 2
    p, q = (
        sum(mass * law(variance, start + shift * bound, modulus) for mass, shift in world) for world in (one, other)
    )
    exact = hockey_stick(p, q, stated)
    assert exact <= delta
    if bits == 16 and sampling != "fixed":
        nearer = max(hockey_stick(p, q, stated * 0.97), hockey_stick(q, p, stated * 0.97))
        assert nearer > delta


def test_the_same_law_with_the_noise_after_the_reduction_breaks_it():
    """The planted fault: N is added to the residue in [-M/2, M/2), and nothing is reduced any more."""
    bound, variance, delta, half = 20, 600.0, 1e-3, 1 << 15
    inside = DiscreteGaussian(dimension=1, l2_bound=float(bound), share_variance=variance, adjacency="zero-out")
    stated = accountant.epsilon(inside, delta=delta)
    centred = [(half + move + half) % (2 * half) - half for move in (-bound // 2, bound // 2)]
    p, q = (law(variance, mean + 2 * half, 4 * half) for mean in centred)
    assert hockey_stick(p, q, stated) > 0.999


class GivenNoise:
    """A stage that adds this to the sum."""

    def __init__(self, noise):
        self.noise = noise

    def client(self, rows, ids, now):
        return rows

    def server(self, total, now):
        return total + self.noise


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["discrete-gaussian", "skellam"]),
    st.sampled_from(["masked", "protocol"]),
)
def test_what_others_send_only_moves_a_clients_integers_and_their_noise(seed, noise_law, kind):
    """Any residues of the ring, up to its ends: the release is one function of (own + noise) mod M, and nothing else.

    Own integers and noise that only have the same sum are released alike, to the bit; another sum is not.
    """
    experiment = malicious_setting(noise_law, kind)
    stages, random = experiment.method.stages, np.random.default_rng(seed)
    size, modulus = stages.width, 1 << stages.bits
    others = random.choice([0, 1, modulus // 2 - 1, modulus // 2, modulus - 1, *random.integers(0, modulus, 3)], size)
    own, noise = random.integers(-100, 101, size), random.integers(-300, 301, size)
    exchanged = random.integers(-200, 201, size)

    def released(own, noise):
        given = stages.replace_stage(IntegerNoise, lambda stage: GivenNoise(torch.from_numpy(noise)))
        return server_halves(given, torch.from_numpy((own + others) % modulus), announced(experiment, uploads=60))

    assert torch.equal(released(own, noise), released(own + exchanged, noise - exchanged))
    assert torch.equal(released(own, noise), released(own, noise + modulus * random.integers(-2, 3, size)))
    assert not torch.equal(released(own, noise), released(own, noise + 1))


_SETTINGS = {}


def malicious_setting(noise_law, kind):
    if (noise_law, kind) not in _SETTINGS:
        chosen = (f"privacy.noise={noise_law}", f"aggregation.kind={kind}", "privacy.accountant=rdp")
        _SETTINGS[noise_law, kind] = build(preset("fed-smp-randk-digits", *chosen, "privacy.noise_multiplier=2"))
    return _SETTINGS[noise_law, kind]


def test_a_client_that_sends_the_whole_ring_moves_the_model_but_not_the_claim():
    """Through masks, sum and release: one hostile client sends what puts an honest one at the end of the ring."""
    experiment = secure(*AT_THE_END["all"])
    one = one_round(experiment, clients=2, seed=3)
    half = 2 ** (one.integers.bits - 1)
    row, trials = aligned_row(one), 300
    own = one.rounded(row[None].clone(), np.arange(1))[0]
    hostile = torch.zeros_like(own)
    hostile[0] = half - 1 - int(own[0]) // 2
    negative = [
        int((released(one, residues(total, one.integers.bits).expand(trials, -1)) @ row < 0).sum())
        for total in (hostile, hostile + own)
    ]
    claim = profiles.profile(experiment.privacy_target.mechanism)
    at_least = 1 - float(upper_limit(trials - negative[1], trials, alpha=ALPHA / 2))
    assert at_least <= float(upper_limit(negative[0], trials, alpha=ALPHA / 2)) + float(claim(0.0))


@pytest.mark.parametrize("edge", [1e-9, 0.1])
def test_coins_that_fill_a_sum_up_are_counted_before_it_is_reduced(edge):
    """Four slots in a ring of 8, one upload: residue 7 and one more head is residue 0 and no head."""
    coins = private_coins(Simulated(seeds=Seeds(root=0)), edge, slots=4, bits=3)
    now = a_round(torch.full((2000,), 0.5), uploads=1)
    decoded = {residue: coins.server(torch.full((2000,), residue), now) for residue in range(8)}
    heads_added = (decoded[0] + 2.0).round().long()
    assert set(heads_added.tolist()) == {0, 1, 2, 3}
    for residue, released in decoded.items():
        assert torch.equal((released + 2.0).round().long(), (residue + heads_added) % 8)
    trusted = replace(coins, bits=None)
    assert torch.equal(trusted.server(torch.full((2000,), 1.0), now), decoded[1])


@pytest.mark.slow
def test_every_sampler_and_adjacency_of_gaussian_noise_has_an_account_under_secure_sums(tiny_config):
    """Near that of continuous noise on a trusted sum: rounding costs 1% of the bound."""
    found = 0
    for sampling in ("poisson", "fixed", "all"):
        for adjacency in ("add-remove", "zero-out", "replace-one"):
            if (sampling, adjacency) in (("fixed", "add-remove"), ("all", "add-remove")):
                continue  # the first has none anywhere; of the second the number of uploads tells
            settings = (f"federation.sampling={sampling}", f"privacy.adjacency={adjacency}")
            trusted = build(tiny_config(*settings)).privacy_target
            for kind in ("masked", "protocol"):
                privacy_target = build(tiny_config(*settings, f"aggregation.kind={kind}")).privacy_target
                assert isinstance(unsampled(privacy_target.mechanism), DiscreteGaussian)
                assert privacy_target.mechanism.adjacency == trusted.mechanism.adjacency == adjacency
                ours, theirs = (
                    accountant.epsilon(Composed(parts=((one.mechanism, 3),)), delta=privacy_target.delta)
                    for one in (privacy_target, trusted)
                )
                assert theirs < ours < 1.03 * theirs
                found += 1
    assert found == 14


def test_secure_randomness_is_accepted_where_the_default_noise_is_discrete(tiny_config, tmp_path):
    small = ("federation.clients=20", "federation.cohort=4", "federation.rounds=1")
    config = tiny_config("aggregation.kind=protocol", "run.randomness=secure", *small)
    summary = federation.run(build(config), tmp_path / "run").summary
    assert (summary["noise"], summary["noise_placement"], summary["for_release"]) == (
        "discrete-gaussian", "server", True,
    )  # fmt: skip


def test_more_clients_than_the_cap_do_not_show_and_are_accounted(tiny_config, tmp_path):
    """A cap of 14 for 12 expected of 60 is exceeded in a fifth of the rounds: the sum holds 14 uploads all the same."""
    settings = ("aggregation.kind=masked", "privacy.slots=14", "privacy.delta=1e-3", "federation.rounds=4")
    experiment = build(tiny_config(*settings))
    drawn = [len(experiment.method.sampler.sample(experiment.method.randomness, round)) for round in range(30)]
    assert max(drawn) > 14
    for round in range(30):
        assert len(draw_round_cohort(experiment.method, round)) == min(drawn[round], 14)
    for round in (np.argmin(drawn), np.argmax(drawn)):
        _, observed = watched_round(
            replace(experiment.start, round=int(round)), experiment.method, seeds=experiment.seeds, ledger=Book()
        )
        assert observed.participants == 14
    sampling = experiment.privacy_target.mechanism.sampling
    assert sampling == CappedPoissonSampling(probability=0.2, cap=14, clients=60)
    summary = federation.run(experiment, tmp_path / "run").summary
    assert summary["delta_charged_for_failures"] == 0.0
    plain = federation.run(build(tiny_config()), tmp_path / "plain").summary
    assert summary["epsilon"] > plain["epsilon"]


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out"])
def test_the_overfull_event_costs_no_more_than_its_probability(adjacency, epsilon):
    """By enumeration of the cohorts of 5 others, K = 2: beyond K each world releases what only it can release."""
    q, others, slots, variance, modulus = 0.3, 5, 2, 4.0, 64
    size = [math.comb(others, k) * q**k * (1 - q) ** (others - k) for k in range(others + 1)]
    overflow = sum(math.comb(others + 1, k) * q**k * (1 - q) ** (others + 1 - k) for k in range(slots + 1, others + 2))

    def world(shift, takes_part, place):
        masses = np.zeros(modulus + 2)
        for k, mass in enumerate(size):
            for coin, chance in ((1, q), (0, 1 - q)) if takes_part else ((0, 1.0),):
                if k + coin > slots:
                    masses[modulus + place] += mass * chance
                else:
                    masses[:modulus] += mass * chance * law(variance, 3 * k + coin * shift, modulus)
        return masses

    present, absent = world(2, True, 0), world(0, adjacency == "zero-out", 1)
    inside = DiscreteGaussian(dimension=1, l2_bound=2.0, share_variance=variance, adjacency=adjacency)
    claim = float(profiles.profile(subsample(inside, PoissonSampling(probability=q)))(epsilon)) + overflow
    assert hockey_stick(present, absent, epsilon) <= claim
    assert hockey_stick(absent, present, epsilon) <= claim
    assert hockey_stick(present, absent, epsilon) > 0.9 * overflow
