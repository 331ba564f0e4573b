"""What a planted fault is: a sound round and one with a part broken; and the layers of the audit that look at it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from unittest.mock import patch

from accounting import gaussian
from dpfed.audit.round import bound_checks, noise_checks, round_checks
from dpfed.audit.round.bound_checks import norm_check
from dpfed.audit.round.method_setting import audited_configuration, round_of
from dpfed.audit.round.noise_checks import draw_noise
from dpfed.audit.round.one_round import OneRound, RandomnessByCallOrder
from dpfed.audit.round.round_audit import claim_of_round
from dpfed.audit.round.round_checks import public_map_check, sampler_check, secure_check
from dpfed.randomness import Simulated
from dpfed.round import Method
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds

DELTA = 1e-5
Z = 1.4
SMALL = "model.hidden=[2]"  # d = 160


few_cohorts = patch.object(round_checks, "sampler_check", partial(round_checks.sampler_check, rounds=20))
"""Decorator of a test of audits whose fault is in no sampler: its check draws 20 cohorts in place of 200."""


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
        """Replaces the stage of this kind by what `made` makes of it."""
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
        return claim.epsilon, gaussian.smallest_epsilon(DELTA, mu=self.shift * claim.sensitivity / claim.noise_std)


@lru_cache
def case(method, *settings):
    coins = method == "fedpm"
    experiment = build(audited_configuration(method, [SMALL, *settings], None if coins else Z))
    return Case(sound=round_of(experiment), layout=experiment.model.layout)


# --- layers


def check(name, trials=0, unit="draws"):
    """One of the cheap checks."""

    def alarm(case, seed, trials=trials):
        claim = claim_of_round(case.one_round, DELTA)
        fresh, own = (
            case.drawing_from(RandomnessByCallOrder(seed)),
            case.drawing_from(Simulated(seeds=Seeds(root=seed))),
        )
        who = case.one_round.method.sampler
        source = Simulated(seeds=Seeds(root=seed))
        found = {
            "empty round": lambda: round_checks.empty_round_check(case.one_round),
            "public map": lambda: public_map_check(case.one_round),
            "sampler": lambda: sampler_check(who, lambda number: who.sample(source, number), trials),
            "norm": lambda: norm_check(fresh, claim),
            "floor": lambda: bound_checks.floor_check(fresh, claim),
            "seeds": lambda: noise_checks.seeds_check(own, claim),
            "noise": lambda: noise_checks.size_check(draw_noise(fresh, claim, trials)),
            "count": lambda: noise_checks.count_check(fresh, claim),
            "tails": lambda: noise_checks.tail_check(draw_noise(fresh, claim, trials)),
            "coordinates": lambda: noise_checks.coordinates_check(draw_noise(fresh, claim, trials)),
        }
        outcome = found[name]()
        return outcome is not None and not outcome.passed

    return Layer(name=f"check: {name}", trials=trials, alarm=alarm, unit=unit)


def secure_draws(source_of):
    """Draws for releases: fresh ones, or those of `source_of(case)`."""

    def alarm(case, seed, trials=0):
        return not secure_check(source_of(case)).passed

    return Layer(name="check: secure draws", trials=0, alarm=alarm)
