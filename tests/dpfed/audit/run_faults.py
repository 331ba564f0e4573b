"""Planted faults of whole runs: what is broken in an experiment, and which check of `dpfed audit run` says so.

The broken parts exist in the tests only. Where a class is patched, it is patched while the audit looks, too: what the
audit works out again has the same fault then, and it must be found all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import torch

from accounting.compose import accountant
from accounting.errors import ContradictoryBounds
from accounting.mechanisms.samplings.planned import Cohorts
from dpfed.aggregation.sums import PlainSum, PlainSums
from dpfed.audit.run import audit_run
from dpfed.config.tables import override, parse
from dpfed.mechanisms.correlated import Correlated
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.randomness import Simulated
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip
from dpfed.stages.project import Project, PublicTopMask, fingerprint, top_indices

from .broken_parts import AddsTheSumItself, Changed, RemembersTheSum, clamped, fields_of, tiled
from .run_folders import TABLES

TOPK = ("method.name=fed-smp-topk", "method.keep=0.3", "data.public=200")
ALL = ("federation.sampling=all",)
FIXED = ("federation.sampling=fixed",)
LONG = (*ALL, "federation.rounds=40")
THIRDS = ("federation.cohort=20", "federation.rounds=6")
BINS = (*THIRDS, "federation.sampling=balls-and-bins")
LANES = (*THIRDS, "federation.cohort=15", "federation.rounds=8", "federation.sampling=balls-and-bins",
    "federation.lanes=2", "method.name=dp-fedavg")  # fmt: skip
SECRET_LANES = (*LANES, "federation.lane_secrecy=secret")
TAKEN_BACK = (*THIRDS, "federation.sampling=cyclic", "privacy.buffers=2", "method.name=dp-fedavg")
REFUSED = "refused before round 1"
"""Stands for the check of a fault that a run finds by itself."""
SECURE = ("run.randomness=secure", "privacy.noise=discrete-gaussian")


def same(experiment):
    return experiment


@dataclass(frozen=True)
class RunFault:
    """`broken`: sound experiment to broken one; `patches`: (class, name, function) for the run and its audit."""

    name: str
    check: str
    settings: tuple[str, ...] = ()
    broken: Callable = same
    patches: tuple = ()

    def caught(self, folder, seed, *, confidence=0.95):
        """The checks that fail on a run with the fault."""
        return self._failed(folder, seed, confidence, self.broken, self.patches)

    def twin(self, folder, seed, *, confidence=0.95):
        """The checks that fail on the same run without it."""
        return self._failed(folder, seed, confidence, same, ())

    def _failed(self, folder, seed, confidence, broken, patches):
        with ExitStack() as held:
            for one in patches:
                held.enter_context(patch.object(*one))
            experiment = build(parse(override(TABLES, [*self.settings, f"run.seed={seed}"]), source="test"))
            try:
                federation.run(broken(experiment), folder)
            except ContradictoryBounds:
                return {REFUSED}
            found = audit_run(folder, confidence=confidence)
        return {one.name for one in found.checks if one.passed is False}


def having(**makers):
    """Fields of the method made from the sound ones: name=function of the method."""

    def broken(experiment):
        method = experiment.method
        return replace(experiment, method=replace(method, **{name: make(method) for name, make in makers.items()}))

    return broken


def changing(change):
    """Another chain, made from the sound one."""
    return having(stages=lambda method: change(method.stages))


# --- what is broken


@dataclass(frozen=True, kw_only=True)
class OneClientUnclipped:
    """A stage behind the wire: the first row of every group as if it had not been clipped."""

    def client(self, rows, ids, now):
        rows[:1] *= 3
        return rows

    def server(self, total, now):
        return total


def unclipped(stages):
    return Stages(*stages, OneClientUnclipped())


class SumsARowTwice(PlainSums):
    """Sums that hold one row more than what went in."""

    def open(self, task, *, size, dtype):
        total = torch.zeros(size, dtype=dtype)
        return HoldsARowTwice(replace(task, dropouts={}), total=total, tolerance=self.tolerance)


class HoldsARowTwice(PlainSum):
    def add(self, clients, rows):
        super().add(clients, rows)
        if len(clients):
            super().add(clients[:1], rows[:1])


def summed_twice(experiment):
    return having(aggregation=lambda method: SumsARowTwice(**fields_of(method.aggregation)))(experiment)


def leaking(experiment):
    remembers = RemembersTheSum()
    return having(
        stages=lambda method: Stages(*method.stages, remembers),
        server=lambda method: AddsTheSumItself(**fields_of(method.server), kept=remembers.kept, part=0.05),
    )(experiment)


def with_noise(change):
    def changed(noise):
        return replace(noise, randomness=Changed(noise.randomness, change))

    return changing(lambda stages: stages.replace_stage(GaussianNoise, changed))


def with_count(change):
    """The same of the noise of the adaptive clip's count."""

    def changed(clip):
        adaptive = clip.adaptive
        return replace(clip, adaptive=replace(adaptive, randomness=Changed(adaptive.randomness, change)))

    return changing(lambda stages: stages.replace_stage(Clip, changed))


def silent(values):
    return values * 0.0


REAL = Cohorts.sample


def by_another_law(self, randomness, number, **changed):
    return REAL(replace(self, law=replace(self.law, **changed)), randomness, number)


def once(self, randomness, number):
    """The cohort of the first round in every one."""
    return REAL(self, randomness, 0)


def with_repeats(self, randomness, number):
    drawn = randomness.uniform(self.law.cohort, "cohort", number) * self.clients
    return np.sort(drawn.astype(np.int64))


def until_one_comes(self, randomness, number):
    again = 0
    while not len(drawn := REAL(self, randomness, number + 10**6 * again)):
        again += 1
    return drawn


def mostly_the_same(self, randomness, number):
    """One of ten clients comes three times as often as it should."""
    drawn = REAL(self, randomness, number)
    often = np.arange(0, self.clients, 10)
    extra = often[randomness.uniform(len(often), "more", number) < 2 * self.law.probability]
    return np.union1d(drawn, extra)


def first_bins(self, randomness, number):
    """The bins of the first epoch in all."""
    return REAL(self, randomness, number % self.law.bins)


def another_lane(self, randomness, number):
    """A client of the other lane in the place of one of this lane."""
    drawn = REAL(self, randomness, number)
    return np.sort(np.append(drawn[1:], drawn[0] ^ 1)) if number == 5 and len(drawn) else drawn


def published_lanes(self, randomness, number):
    """Lanes that are called secret and follow from ids, so that all can compute them."""
    return by_another_law(self, randomness, number, secret_lanes=False)


def a_lane_for_each_epoch(self, randomness, number):
    """Secret lanes drawn anew in every epoch."""
    return REAL(self, Simulated(seeds=Seeds(root=17 + number // self.law.bins)), number)


def lanes_by_others(self, randomness, number):
    """Secret lanes by the places of clients among those of the epoch's first round."""
    drawn = REAL(self, randomness, number)
    return np.sort((drawn + number // self.law.bins * self.clients // 2) % self.clients)


def kept_for_ever(self, randomness, number):
    """Secret lanes and bins of another run."""
    return REAL(self, Simulated(seeds=Seeds(root=17)), number)


def lanes_in_another_order(self, randomness, number):
    """Lanes counted from the start of epochs, in turn from the first and from the last."""
    return REAL(self, randomness, number ^ (number // self.law.bins % 2))


def skipping(self, randomness, number):
    """From the second epoch's second round on, those of the epoch after."""
    return REAL(self, randomness, number + self.law.bins if number > self.law.bins else number)


def once_more(self, randomness, number):
    """Every client in one round more than is charged."""
    return by_another_law(self, randomness, number, participations=self.law.participations + 1)


def hardly_resting(self, randomness, number):
    """A rest that is a round shorter than is charged."""
    return by_another_law(self, randomness, number, separation=self.law.separation - 1)


def too_soon(self, randomness, number):
    """A public order of two thirds of the period."""
    return by_another_law(self, randomness, number, period=self.law.period - 1)


def not_taken_back(self, fresh, number, drawn_in):
    return fresh.clone()


def of_private_samples(self, weights, number, seeds):
    """Coordinates by the clients' samples, under the name of the public ones."""
    inputs, labels = self.trainer.inputs[:200], self.trainer.labels[:200]
    update = self.trainer.train_on(inputs, labels, weights, number=number, seeds=seeds, purpose="public.shuffle")
    sound = REAL_MASK(self, weights, number, seeds)
    return replace(
        sound, indices=top_indices(update[None], self.kept)[0], chosen_by=fingerprint(self.inputs, self.labels)
    )


REAL_MASK = PublicTopMask.for_round


def private_public_set(experiment):
    clients = experiment.method.clients
    private = {"inputs": clients.inputs[:200], "labels": clients.labels[:200]}
    theirs = changing(
        lambda stages: stages.replace_stage(
            Project, lambda project: replace(project, choice=replace(project.choice, **private))
        )
    )
    return theirs(experiment)


def from_the_seed(experiment):
    """Secure by name, drawn from run.seed."""
    named = SecureByName(seeds=Seeds(root=experiment.config.run.seed))
    return having(randomness=lambda method: named)(experiment)


class SecureByName(Simulated):
    @property
    def name(self):
        return "secure"


def delta_doubled(experiment):
    return replace(
        experiment, privacy_target=replace(experiment.privacy_target, delta=2 * experiment.privacy_target.delta)
    )


REAL_BOUND = accountant._bound_by_accountant


def at_twice_delta(mechanism, delta, *rest):
    return REAL_BOUND(mechanism, 2 * delta, *rest)


BOUNDED, SUMS, STEP = "rows are bounded", "sums are of what went in", "model moves by what was released"
MEMBERS, SHAPE = "members follow the sampler", "noise is shaped as charged"
MASK = "coordinates are chosen by public data"


def drawn(name, sample, settings=(), check=MEMBERS):
    """A fault of the sampler."""
    return RunFault(name, check, settings, patches=((Cohorts, "sample", sample),))


FAULTS = (
    RunFault("a client of a group is not clipped", BOUNDED, broken=changing(unclipped)),
    RunFault(
        "the same, on integers under masks", BOUNDED, settings=("aggregation.kind=masked",), broken=changing(unclipped)
    ),
    RunFault("a row is summed twice", SUMS, broken=summed_twice),
    RunFault("a twentieth of the noiseless sum moves the model", STEP, broken=leaking),
    drawn("a fixed-size cohort drawn once", once, FIXED),
    drawn("a Poisson cohort drawn once", once),
    drawn("a fixed-size sampler with repeats", with_repeats, FIXED),
    drawn(
        "a tenth of the clients comes three times as often",
        mostly_the_same,
        ("federation.rounds=60", "federation.cohort=6"),
    ),
    drawn(
        "an empty Poisson cohort drawn again",
        until_one_comes,
        ("federation.rounds=40", "federation.cohort=1", "privacy.noise_multiplier=8.0"),
        check="cohort sizes follow the sampler",
    ),
    RunFault(
        "a top-k mask from private samples",
        MASK,
        settings=TOPK,
        patches=((PublicTopMask, "for_round", of_private_samples),),
    ),
    RunFault("clients' samples as the public ones", MASK, settings=TOPK, broken=private_public_set),
    RunFault(
        "secure draws from the seed", "cohorts follow the seed only if simulated", settings=SECURE, broken=from_the_seed
    ),
    RunFault("delta doubled", "summary names what ran", broken=delta_doubled),
    RunFault(
        "an account at twice delta",
        REFUSED,
        settings=("privacy.accountant=best",),
        patches=((accountant, "_bound_by_accountant", at_twice_delta),),
    ),
    RunFault("noise tiled over coordinates", SHAPE, settings=ALL, broken=with_noise(tiled)),
    RunFault(
        "shares of noise tiled over coordinates",
        SHAPE,
        settings=(*ALL, "privacy.placement=clients", "privacy.adjacency=zero-out"),
        broken=with_noise(tiled),
    ),
    RunFault("noise clamped at 3.5 standard deviations", SHAPE, settings=LONG, broken=with_noise(clamped)),
    RunFault(
        "the adaptive clip's count without noise",
        "counts are noised",
        settings=("privacy.adaptive.quantile=0.5",),
        broken=with_count(silent),
    ),
    drawn("balls-and-bins: the bins of the first epoch in every one", first_bins, BINS),
    drawn("lanes: a lane changed", another_lane, LANES),
    drawn("lanes: counted from the start of an epoch, in another order", lanes_in_another_order, LANES),
    drawn("secret lanes: those of the ids", published_lanes, SECRET_LANES),
    drawn("secret lanes: a lane for each epoch", a_lane_for_each_epoch, SECRET_LANES),
    drawn("secret lanes: by who else takes part", lanes_by_others, SECRET_LANES),
    RunFault("lanes: nothing is taken back", SUMS, settings=LANES, patches=((Correlated, "noise", not_taken_back),)),
    drawn("balls-and-bins: an epoch skipped from its second round on", skipping, BINS),
    drawn("allocation: a participation too many", once_more, (*THIRDS, "federation.sampling=allocation")),
    drawn(
        "min-separation: a rest that is too short",
        hardly_resting,
        (*THIRDS, "federation.sampling=min-separation", "federation.separation=3"),
    ),
    drawn("correlated noise: clients come too soon", too_soon, TAKEN_BACK),
    RunFault(
        "correlated noise: nothing is taken back",
        SUMS,
        settings=TAKEN_BACK,
        patches=((Correlated, "noise", not_taken_back),),
    ),
)
