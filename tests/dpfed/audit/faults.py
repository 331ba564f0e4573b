"""Planted faults: each a round that keeps its claim (the twin) and the same round with one part broken.

The broken parts exist here only. `alarm` of a layer says whether that layer of the audit refutes a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from accounting import accountant, gaussian, profiles
from accounting.adjacency import Adjacency
from accounting.mechanisms import Composed, Gaussian, PoissonSampling, Subsampled
from dpfed.audit import round_checks
from dpfed.audit.method_setting import configured, round_of
from dpfed.audit.one_round import PUBLIC_SEEDS, OneRound
from dpfed.audit.one_stream import OneStream
from dpfed.audit.rejection import reject_claim
from dpfed.audit.sampler_check import sampler_check
from dpfed.audit.thresholds import Thresholds, claimed_gaussian
from dpfed.audit.two_worlds import TwoWorlds
from dpfed.audit.upload import claimed, pairs_of, tested
from dpfed.build import build
from dpfed.compress.fixed_point import Encoded
from dpfed.compress.sparse import TopK
from dpfed.parts import Parts
from dpfed.privacy.clip import clip_rows, drop_not_finite
from dpfed.randomness import Simulated
from dpfed.sampling import FixedSizeCohorts, PoissonCohorts
from dpfed.seeds import Seeds

DELTA = 1e-5
ALPHA = 0.05
Z = 1.4
SMALL = "model.hidden=[2]"  # d = 160
KEPT = 40


@dataclass(frozen=True, kw_only=True)
class Case:
    """A sound round, its model's layers, and what is broken in it: sound parts to broken ones."""

    sound: OneRound
    layout: tuple
    broken: Callable[[Parts], Parts] = lambda parts: parts

    @property
    def one(self):
        """The round with its own randomness."""
        return replace(self.sound, parts=self.broken(self.sound.parts))

    def drawing_from(self, randomness):
        fresh = self.sound.with_randomness(randomness)
        return replace(fresh, parts=self.broken(fresh.parts))

    def having(self, **parts):
        """Parts made from the sound ones: name=function of Parts."""
        before = self.broken

        def broken(sound):
            found = before(sound)
            return replace(found, **{name: make(found) for name, make in parts.items()})

        return replace(self, broken=broken)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer of the audit. `alarm(case, seed, trials)` says whether it refutes the round; trials = 0: it draws
    nothing at random. `unit`: what is counted."""

    name: str
    trials: int
    alarm: Callable[[Case, int, int], bool]
    unit: str = "trials"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`shift`: the true distance of neighbours over noise, in units of the claimed one (None: `epsilon` says all)."""

    name: str
    make: Callable[[], tuple[Case, Case]]
    layers: tuple[Layer, ...]
    shift: float | None = None
    epsilon: float | None = None
    claimed: float | None = None

    def epsilons(self) -> tuple[float, float]:
        """Claimed and true, at DELTA."""
        claim = claimed(self.make()[1].one, DELTA)
        if self.epsilon is not None:
            return self.claimed or claim.epsilon, self.epsilon
        return claim.epsilon, gaussian.smallest_epsilon(DELTA, mu=self.shift * claim.mu)


@lru_cache
def case(method, *settings, clients=None):
    coins = method == "fedpm"
    experiment = build(configured(method, [SMALL, *settings], None if coins else Z))
    one = round_of(experiment)
    return Case(sound=one if clients is None else replace(one, clients=clients), layout=experiment.model.layout)


# --- layers


def worlds(pair, trials):
    """The claimed profile against trials of one pair of neighbours."""

    def alarm(case, seed, trials=trials):
        claim = claimed(case.one, DELTA)
        (chosen,) = [one for one in pairs_of(case.one, claim, case.layout) if one.name == pair]
        world = TwoWorlds.of(case.drawing_from(OneStream(seed)), claim, chosen)
        return any(test.test.rejected for test in tested([world], trials=trials, alpha=ALPHA))

    return Layer(name=f"two worlds: {pair}", trials=trials, alarm=alarm)


def check(name, trials=0, unit="draws"):
    """One of the cheap checks."""

    def alarm(case, seed, trials=trials):
        claim = claimed(case.one, DELTA)
        fresh = case.drawing_from(OneStream(seed))
        size = case.one.parts.local.course.size
        if name == "empty round":
            return not round_checks.empty_round_check(case.one, claim).passed
        if name == "sampler":
            return not sampler_check(case.one.parts.sampler, Simulated(seeds=Seeds(root=seed))).passed
        if name == "noise":
            return not round_checks.noise_check(fresh, claim, size, trials).passed
        found = {"norm": round_checks.norm_check, "floor": round_checks.floor_check}
        if name == "seeds":
            own = case.drawing_from(Simulated(seeds=Seeds(root=seed)))
            return not round_checks.seeds_check(own, claim, size).passed
        return not found[name](fresh, claim, size).passed

    return Layer(name=f"check: {name}", trials=trials, alarm=alarm, unit=unit)


def two_rounds(trials):
    """What two rounds tell together of a client in the first: the difference of their sums, at twice the charge."""

    def alarm(case, seed, trials=trials):
        claim = claimed(case.one, DELTA)
        profile = profiles.profile(Composed(parts=((claim.mechanism, 2),)))
        size = case.one.parts.local.course.size
        loud, nobody = torch.full((size,), 10.0), torch.zeros(size)
        scores = [[], []]
        for trial in range(trials):
            one = case.drawing_from(Simulated(seeds=Seeds(root=trials * seed + trial)))
            rounds = [replace(one, state=replace(one.state, round=t)) for t in (0, 1)]
            sums = [
                one.own(update, np.zeros(1, dtype=np.int64))
                for one, update in zip(rounds, (loud if trial % 2 else nobody, nobody), strict=True)
            ]
            first, second = (one.released(total)[0] for one, total in zip(rounds, sums, strict=True))
            scores[trial % 2].append(float((first - second).sum()) / size**0.5 / claim.noise_std)
        mu = claim.mu / 2**0.5
        cut = claimed_gaussian(mu, trials=trials // 2, alpha=ALPHA)
        values = tuple(2**0.5 * value for value in cut.values)
        return reject_claim(
            *scores, profile, alpha=ALPHA, thresholds=Thresholds(values=values, origin="N(0, 2) and N(mu, 2)")
        ).rejected

    return Layer(name="two worlds, two rounds together", trials=trials, alarm=alarm)


def sampled_worlds(trials, *, clients=20, cohort=2):
    """All others at -C, one at +C or not there: the cohort is drawn in every trial by the sampler that runs."""

    def alarm(case, seed, trials=trials):
        sampler, stream = case.one.parts.sampler, OneStream(seed)
        one = case.drawing_from(stream)
        claim = claimed(case.one, DELTA)
        q = sampler.law.probability
        profile = profiles.profile(Subsampled(mechanism=claim.mechanism, sampling=PoissonSampling(probability=q)))
        size = one.parts.local.course.size
        row = one.own(torch.full((size,), 10.0), np.zeros(1, dtype=np.int64))[0]
        scores = []
        for population in (clients - 1, clients):
            there = replace(sampler, clients=population)
            net = [_net(there, stream, t, clients) for t in range(trials // 2)]
            totals = torch.tensor(net, dtype=torch.float32)[:, None] * row
            along = one.released(totals) @ (row / row.norm())
            scores.append(along.double().numpy() / claim.noise_std + cohort * claim.mu)
        cut = Thresholds(values=(2.5,), origin="fixed beforehand")
        return reject_claim(*scores, profile, alpha=ALPHA, thresholds=cut).rejected

    return Layer(name="two worlds, cohort drawn", trials=trials, alarm=alarm)


def _net(sampler, stream, number, clients):
    """Of unit rows: -1 for each of the others that is drawn, +1 for the last client."""
    drawn = sampler.sample(stream, number)
    return int((drawn == clients - 1).sum()) - int((drawn < clients - 1).sum())


# --- broken parts


class Claimed:
    """Does what one privacy does, and charges what another would."""

    def __init__(self, acts, claims):
        self._acts, self._claims = acts, claims

    def __getattr__(self, name):
        return getattr(self._acts, name)

    def release(self, *arguments):
        return self._claims.release(*arguments)


class Delegating:
    def __init__(self, inner, *rest):
        self._inner, self._rest = inner, rest

    def __getattr__(self, name):
        return getattr(self._inner, name)


class ClipsBeforeTheScale(Delegating):
    """Clips updates, then takes them times d/k."""

    def bound(self, rows, norm):
        (scale,) = self._rest
        clipped = clip_rows(rows.div_(scale), norm)
        clipped.rows.mul_(scale)
        return clipped


class ClipsEveryLayer(Delegating):
    """The whole clip norm for every layer."""

    def bound(self, rows, norm):
        (layout,) = self._rest
        for block in layout:
            rows[:, block.start : block.stop] = clip_rows(rows[:, block.start : block.stop].clone(), norm).rows
        return drop_not_finite(rows)


class Unbounded(Delegating):
    def bound(self, rows, norm):
        return drop_not_finite(rows)


class ClipsBeforeTheMap(Delegating):
    """A round's map that clips the update, in place of what is sent."""

    def for_round(self, *arguments):
        return ClippedFirst(self._inner.for_round(*arguments), *self._rest)


class ClippedFirst(Delegating):
    def forward(self, updates, clients):
        return self._inner.forward(clip_rows(updates, *self._rest).rows, clients)


class ChosenBeforeTheNoise(Delegating):
    """Keeps the k largest entries of the row as it was before the noise."""

    def share(self, rows, clients, norm, round):
        kept = torch.zeros_like(rows).scatter_(1, rows.abs().topk(KEPT, dim=1).indices, 1.0)
        return self._inner.share(rows, clients, norm, round) * kept


class ChargesNothingForNobody(Delegating):
    def release(self, norm, round, sent, uploads):
        return self._inner.release(norm, round, sent, uploads) if uploads else None


class HalfCharged(Delegating):
    """Counts C as what replacing a client changes."""

    def release(self, *arguments):
        release = self._inner.release(*arguments)
        half = Gaussian(noise_multiplier=2 * release.mechanism.noise_multiplier, adjacency=Adjacency.REPLACE_ONE)
        return replace(release, mechanism=half)


class ForgetsTheRound(Delegating):
    """Randomness that is the same in every round."""

    def normal(self, count, purpose, *path, device="cpu"):
        return self._inner.normal(count, purpose, *path[1:], device=device)


class RoundsAwayFromZero(Delegating):
    """Rounds every entry up in magnitude, and redraws nothing."""

    def encode(self, rows, *, clip_norm, rotation_seed, randomness, clients, round):
        signs = self._inner._signs(rotation_seed, rows)
        turned = torch.stack([self._inner._rotated(row, signs) for row in rows]) * self._inner.steps_per_unit
        return Encoded(integers=(turned.sign() * turned.abs().ceil()).int(), gave_up=0)


@dataclass(frozen=True, kw_only=True)
class FixedSizeCalledPoisson:
    clients: int
    cohort: int

    @property
    def law(self):
        return PoissonCohorts(clients=20, cohort=self.cohort).law

    @property
    def expected(self):
        return float(self.cohort)

    def sample(self, randomness, round):
        return FixedSizeCohorts(clients=self.clients, cohort=self.cohort).sample(randomness, round)


@dataclass(frozen=True, kw_only=True)
class PoissonOfFixedRate:
    """The twin: a client more or less leaves everybody's coin as it was."""

    clients: int
    cohort: int

    @property
    def law(self):
        return PoissonCohorts(clients=20, cohort=self.cohort).law

    @property
    def expected(self):
        return float(self.cohort)

    def sample(self, randomness, round):
        return np.flatnonzero(randomness.uniform(self.clients, "cohort", round) < self.law.probability)


# --- faults

SHARES = ("privacy.placement=clients",)
UPLOADS = ("privacy.release=uploads", "privacy.adjacency=zero-out")


def shares_too_small():
    twin = case("dp-fedavg", *SHARES)
    return twin, twin.having(privacy=lambda parts: replace(parts.privacy, shares=16))


def no_clip_after_the_scale():
    twin = case("fed-smp-randk")
    scale = twin.one.map.scale
    return twin, twin.having(privacy=lambda parts: ClipsBeforeTheScale(parts.privacy, scale))


def half_the_sensitivity():
    twin = case("dp-fedavg", "privacy.adjacency=replace-one")
    return twin, twin.having(privacy=lambda parts: HalfCharged(parts.privacy))


def clip_by_layer():
    twin = case("dp-fedavg")
    return twin, twin.having(privacy=lambda parts: ClipsEveryLayer(parts.privacy, twin.layout))


def noise_lost_with_dropouts():
    """Shares sized for four, of which two arrive."""
    twin = case("dp-fedavg", *SHARES, "aggregation.tolerance=0.5")
    return twin, twin.having(privacy=lambda parts: replace(parts.privacy, shares=None))


def _with_less_noise(parts, factor):
    return Claimed(replace(parts.privacy, noise_multiplier=factor * Z), parts.privacy)


def noise_short():
    twin = case("dp-fedavg")
    return twin, twin.having(privacy=lambda parts: _with_less_noise(parts, 0.99))


def noise_again():
    twin = case("dp-fedavg")
    return twin, twin.having(
        privacy=lambda parts: replace(parts.privacy, randomness=ForgetsTheRound(parts.privacy.randomness))
    )


def fixed_size_called_poisson():
    twin = case("dp-fedavg")
    return (
        twin.having(sampler=lambda parts: PoissonOfFixedRate(clients=20, cohort=2)),
        twin.having(sampler=lambda parts: FixedSizeCalledPoisson(clients=20, cohort=2)),
    )


def _top_of_noisy():
    return case("dp-fedavg", *UPLOADS).having(code=lambda parts: replace(parts.code, scheme=TopK(k=KEPT)))


def chosen_before_the_noise():
    twin = _top_of_noisy()
    return twin, twin.having(privacy=lambda parts: ChosenBeforeTheNoise(parts.privacy))


def noise_for_fewer_entries():
    twin = _top_of_noisy()
    share = math.sqrt(KEPT / twin.one.parts.local.course.size)
    return twin, twin.having(privacy=lambda parts: _with_less_noise(parts, share))


def no_floor():
    twin = case("fedpm")
    return twin, twin.having(code=lambda parts: replace(parts.code, edge=0.0))


def no_clip_of_scalars():
    twin = case("fedscalar", "method.shared=true")
    norm = twin.one.state.clip_norm
    return twin, twin.having(
        map=lambda parts: ClipsBeforeTheMap(parts.map, norm), privacy=lambda parts: Unbounded(parts.privacy)
    )


def weighted_by_examples():
    twin = case("dp-fedavg")
    return twin, twin.having(client_weights=lambda parts: np.tile([2.0, 0.5, 0.5, 1.0], PUBLIC_SEEDS))


def empty_round_is_free():
    twin = case("dp-fedavg")
    return twin, twin.having(privacy=lambda parts: ChargesNothingForNobody(parts.privacy))


def biased_rounding():
    twin = case("dp-fedavg", "privacy.noise=discrete-gaussian", "aggregation.steps=5")
    return twin, twin.having(
        code=lambda parts: replace(parts.code, fixed_point=RoundsAwayFromZero(parts.code.fixed_point))
    )


def _sampled(multiplier):
    """Epsilon of a tenth of the clients; a shift of 2C with the probability of being drawn is half the multiplier."""
    inside = Gaussian(noise_multiplier=multiplier, adjacency=Adjacency.ADD_REMOVE)
    return accountant.epsilon(Subsampled(mechanism=inside, sampling=PoissonSampling(probability=0.1)), delta=DELTA)


FAULTS = (
    Fault(
        name="shares of noise z C / r, not / sqrt(r), r = 4",
        make=shares_too_small,
        shift=2.0,
        layers=(worlds("dense", 600), check("noise", 5_000)),
    ),
    Fault(
        name="rand-k: clipped before the scale d/k",
        make=no_clip_after_the_scale,
        shift=2.5,
        layers=(worlds("one entry", 400), check("norm")),
    ),
    Fault(
        name="replace-one charged as a move of C, not 2C",
        make=half_the_sensitivity,
        shift=2.0,
        layers=(worlds("dense", 600), check("norm")),
    ),
    Fault(
        name="the whole clip norm for every one of 4 layers",
        make=clip_by_layer,
        shift=2.0,
        layers=(worlds("equal norm in every layer", 600), check("norm")),
    ),
    Fault(
        name="2 of 4 shares of noise lost, charged as whole",
        make=noise_lost_with_dropouts,
        shift=2**0.5,
        layers=(worlds("dense", 3_000), check("noise", 20_000)),
    ),
    Fault(name="noise 1% short", make=noise_short, shift=1 / 0.99, layers=(check("noise", 300_000),)),
    Fault(
        name="the same noise in every round",
        make=noise_again,
        epsilon=math.inf,
        layers=(two_rounds(60), check("seeds", 10, "rounds")),
    ),
    Fault(
        name="fixed-size cohorts charged as Poisson",
        make=fixed_size_called_poisson,
        epsilon=_sampled(Z / 2),
        claimed=_sampled(Z),
        layers=(sampled_worlds(20_000), check("sampler", 200, "cohorts")),
    ),
    Fault(
        name="top-k chosen before the noise",
        make=chosen_before_the_noise,
        epsilon=math.inf,
        layers=(worlds("other entries on top", 60), check("noise", 5_000)),
    ),
    Fault(
        name="top-k by noisy values, noise for k entries only",
        make=noise_for_fewer_entries,
        shift=2.0,
        layers=(worlds("one entry", 600), check("noise", 5_000)),
    ),
    Fault(
        name="coins without a floor",
        make=no_floor,
        epsilon=math.inf,
        layers=(worlds("all up from certainty", 300), check("floor", 30_000, "tosses")),
    ),
    Fault(
        name="FedScalar: the update clipped, not the scalar",
        make=no_clip_of_scalars,
        shift=160**0.5,
        layers=(worlds("along the map", 60), check("norm")),
    ),
    Fault(
        name="clients weighted by their examples (here 2 to 1)",
        make=weighted_by_examples,
        shift=2.0,
        layers=(worlds("dense", 600), check("norm")),
    ),
    Fault(
        name="a round without clients is not charged",
        make=empty_round_is_free,
        epsilon=math.inf,
        layers=(check("empty round"),),
    ),
    Fault(
        name="rounding up in magnitude",
        make=biased_rounding,
        shift=1.4046,
        layers=(worlds("dense", 1_500), check("norm")),
    ),
)
