"""What a planted fault is: a sound round and one with a part broken; and the layers of the audit that look at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch

from accounting import gaussian
from accounting.compose import profiles
from accounting.mechanisms import Composed, PoissonSampling, Subsampled
from dpfed.audit.round import bound_checks, noise_checks, round_checks
from dpfed.audit.round.bound_checks import norm_check
from dpfed.audit.round.draw_checks import sampler_check, secure_check
from dpfed.audit.round.method_setting import audited_configuration, round_of
from dpfed.audit.round.noise_checks import draw_noise
from dpfed.audit.round.one_round import OneRound, RandomnessByCallOrder
from dpfed.audit.round.round_audit import claim_of_round, pair_tests, pairs_for_claim
from dpfed.audit.round.round_checks import public_map_check
from dpfed.audit.round.two_worlds import TwoWorlds
from dpfed.audit.round.whole_round import WholeRounds
from dpfed.audit.statistics.rejection import reject_claim
from dpfed.audit.statistics.thresholds import Thresholds, gaussian_threshold
from dpfed.audit.trials import TrialShare
from dpfed.randomness import Simulated
from dpfed.round import Method
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

DELTA = 1e-5
ALPHA = 0.05
Z = 1.4
SMALL = "model.hidden=[2]"  # d = 160


@dataclass(frozen=True, kw_only=True)
class Case:
    """A sound round, its model's layers, and what is broken in it: a sound method to a broken one."""

    sound: OneRound
    layout: tuple
    broken: Callable[[Method], Method] = lambda method: method

    @property
    def one_round(self):
        """The round with its own randomness."""
        return replace(self.sound, method=self.broken(self.sound.method))

    def drawing_from(self, randomness):
        fresh = self.sound.with_randomness(randomness)
        return replace(fresh, method=self.broken(fresh.method))

    def having(self, **parts):
        """Fields of the method made from the sound ones: name=function of the method."""
        before = self.broken

        def broken(sound):
            found = before(sound)
            return replace(found, **{name: make(found) for name, make in parts.items()})

        return replace(self, broken=broken)

    def changing(self, change):
        """Another chain, made from the sound one."""
        return self.having(stages=lambda method: change(method.stages))

    def replacing(self, kind, made):
        """What `made` makes of the stage of this kind in its place."""
        return self.changing(lambda stages: stages.replace_stage(kind, made))


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
        claim = claim_of_round(self.make()[1].one_round, DELTA)
        if self.epsilon is not None:
            return self.claimed or claim.epsilon, self.epsilon
        return claim.epsilon, gaussian.smallest_epsilon(DELTA, mu=self.shift * claim.mu)


@lru_cache
def case(method, *settings, clients=None):
    coins = method == "fedpm"
    experiment = build(audited_configuration(method, [SMALL, *settings], None if coins else Z))
    one = round_of(experiment)
    return Case(sound=one if clients is None else replace(one, clients=clients), layout=experiment.model.layout)


# --- layers


def worlds(pair, trials):
    """The claimed profile against trials of one pair of neighbours."""

    def alarm(case, seed, trials=trials):
        claim = claim_of_round(case.one_round, DELTA)
        (chosen,) = [one for one in pairs_for_claim(case.one_round, claim, case.layout) if one.name == pair]
        world = TwoWorlds.prepare(case.drawing_from(RandomnessByCallOrder(seed)), claim, chosen)
        tests, _ = pair_tests(TrialShare(pair=world, trials=trials, alpha=ALPHA))
        return any(test.rejected for test in tests)

    return Layer(name=f"two worlds: {pair}", trials=trials, alarm=alarm)


def check(name, trials=0, unit="draws"):
    """One of the cheap checks."""

    def alarm(case, seed, trials=trials):
        claim = claim_of_round(case.one_round, DELTA)
        fresh, own = (
            case.drawing_from(RandomnessByCallOrder(seed)),
            case.drawing_from(Simulated(seeds=Seeds(root=seed))),
        )
        size = case.one_round.method.clients.course.size
        found = {
            "empty round": lambda: round_checks.empty_round_check(case.one_round, claim),
            "public map": lambda: public_map_check(case.one_round),
            "sampler": lambda: sampler_check(case.one_round.method.sampler, Simulated(seeds=Seeds(root=seed)), trials),
            "norm": lambda: norm_check(fresh, claim, size),
            "floor": lambda: bound_checks.floor_check(fresh, claim, size),
            "seeds": lambda: noise_checks.seeds_check(own, claim, size),
            "noise": lambda: noise_checks.size_check(draw_noise(fresh, claim, size, trials)),
            "tails": lambda: noise_checks.tail_check(draw_noise(fresh, claim, size, trials)),
            "coordinates": lambda: noise_checks.coordinates_check(draw_noise(fresh, claim, size, trials)),
        }
        outcome = found[name]()
        return outcome is not None and not outcome.passed

    return Layer(name=f"check: {name}", trials=trials, alarm=alarm, unit=unit)


def two_rounds(trials):
    """What two rounds tell together of a client in the first: the difference of their sums, at twice the charge."""

    def alarm(case, seed, trials=trials):
        claim = claim_of_round(case.one_round, DELTA)
        profile = profiles.profile(Composed(parts=((claim.mechanism, 2),)))
        size = case.one_round.method.clients.course.size
        loud, zeros = torch.full((size,), 10.0), torch.zeros(size)
        scores = [[], []]
        for trial in range(trials):
            one = case.drawing_from(Simulated(seeds=Seeds(root=trials * seed + trial)))
            rounds = [WholeRounds(one_round=replace(one, state=replace(one.state, round=t))) for t in (0, 1)]
            updates = (loud if trial % 2 else zeros, zeros)
            first, second = (
                one.released_sum(one.run(one.moves(update, zeros), one.smallest_cohort()))
                for one, update in zip(rounds, updates, strict=True)
            )
            scores[trial % 2].append(float((first - second).sum()) / size**0.5 / claim.noise_std)
        mu = claim.mu / 2**0.5
        cut = gaussian_threshold(mu, trials=trials // 2, alpha=ALPHA)
        values = tuple(2**0.5 * value for value in cut.values)
        return reject_claim(
            *scores, profile, alpha=ALPHA, thresholds=Thresholds(values=values, origin="N(0, 2) and N(mu, 2)")
        ).rejected

    return Layer(name="two worlds, two rounds together", trials=trials, alarm=alarm)


def sampled_worlds(trials, *, clients=20, cohort=2):
    """All others at -C, one at +C or not there: the cohort is drawn in every trial by the sampler that runs."""

    def alarm(case, seed, trials=trials):
        sampler, stream = case.one_round.method.sampler, RandomnessByCallOrder(seed)
        claim = claim_of_round(case.one_round, DELTA)
        q = sampler.law.probability
        profile = profiles.profile(Subsampled(mechanism=claim.mechanism, sampling=PoissonSampling(probability=q)))
        scores = []
        for population in (clients - 1, clients):
            there = replace(sampler, clients=population)
            net = np.array([_net(there, stream, t, clients) for t in range(trials // 2)])
            noise = np.asarray(stream.normal(trials // 2, "noise").double())
            scores.append(net * claim.mu + noise + cohort * claim.mu)
        cut = Thresholds(values=(2.5,), origin="fixed beforehand")
        return reject_claim(*scores, profile, alpha=ALPHA, thresholds=cut).rejected

    return Layer(name="two worlds, cohort drawn", trials=trials, alarm=alarm)


def _net(sampler, stream, number, clients):
    """Of unit rows: -1 for each of the others that is drawn, +1 for the last client."""
    drawn = sampler.sample(stream, number)
    return int((drawn == clients - 1).sum()) - int((drawn < clients - 1).sum())


def secure_draws(source_of):
    """Draws for releases: fresh ones, or those of `source_of(case)`."""

    def alarm(case, seed, trials=0):
        return not secure_check(source_of(case)).passed

    return Layer(name="check: secure draws", trials=0, alarm=alarm)
