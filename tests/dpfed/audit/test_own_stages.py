"""Stages and maps of users' own under the audit of a method: faults that no look at the chain shows, and sound ones.

The audits are seeded; a correct round is failed with probability at most 5%, what is planted here always.
"""

from dataclasses import dataclass

import pytest
import torch
from reference.own_schemes import Honest

from dpfed import compress, methods, stages
from dpfed.audit.round.method_setting import audit_upload
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip
from dpfed.stages.project import Project, SharedMask, top_indices
from dpfed.stages.stage import Map

from .fault_layers import few_cohorts

SMALL = "model.hidden=[2]"
PRIVATE = (SMALL, "privacy.clip_norm=1", "privacy.noise_multiplier=1")
COINS = (SMALL, "privacy.clip_norm=0.3", "privacy.epsilon=100.0")  # a clip norm as it is: calibrating one takes seconds
UPLOADS = (*PRIVATE, "privacy.release=uploads")


class Plain:
    def client(self, rows, ids, now):
        return rows

    def server(self, total, now):
        return total


class DividesByTheLargest(Plain):
    """One client's entry scales the rows of all."""

    def client(self, rows, ids, now):
        return rows / rows.abs().max().clamp_min(1e-30)


class DividesByTheFirst(Plain):
    """The scale of the first rows that ever came."""

    scale = None

    def client(self, rows, ids, now):
        self.scale = torch.linalg.vector_norm(rows, dim=1).mean() if self.scale is None else self.scale
        return rows / self.scale.clamp_min(1e-6)


class DividesByUploads(Plain):
    def server(self, total, now):
        return total * 4 / max(now.uploads, 1)


class AddsThePlainSum(Plain):
    kept = 0.0

    def client(self, rows, ids, now):
        self.kept = rows.sum(dim=0)
        return rows

    def server(self, total, now):
        return total + 0.1 * self.kept


class Doubles(Plain):
    def server(self, total, now):
        return 2 * total


@dataclass(frozen=True, kw_only=True)
class NoiseAnywhere(GaussianNoise):
    """Noise of one's own that asks for no bound right before it, nor that nothing follows."""

    rests_on = ()


def doubled_before_the_noise(s):
    choice = stages.SendAll(size=s.size)
    noise = s.noise(choice)
    own = NoiseAnywhere(**{name: getattr(noise, name) for name in noise.__dataclass_fields__})
    return Stages(Project(choice=choice), Clip(), own, Doubles(), s.encode(choice))


class Halved(Plain):
    """Sound: clients send half of their updates."""

    def client(self, rows, ids, now):
        return rows / 2

    def server(self, total, now):
        return total * 2


class Shrinks(Plain):
    """Sound: a threshold on the noisy sum."""

    def server(self, total, now):
        return total.sign() * (total.abs() - 0.5).clamp_min(0)


@dataclass(frozen=True, kw_only=True)
class TopOfPrivateSamples:
    s: object
    sent = 100
    downlink_bits = 0

    def for_round(self, weights, number, seeds):
        own = self.s.clients
        update = own.train_on(own.inputs[:64], own.labels[:64], weights, number=number, seeds=seeds, purpose="mask")
        return SharedMask(size=self.s.size, indices=top_indices(update[None], self.sent)[0], scale=1.0)


@dataclass(frozen=True, kw_only=True)
class Sketch(Map):
    """Sound: a count sketch by public hashes, one of which no coordinate has."""

    size: int
    sent = 100
    downlink_bits = 0

    def for_round(self, weights, number, seeds):
        return self

    @property
    def _hashes(self):
        return torch.nn.functional.one_hot(torch.arange(self.size) % (self.sent - 1), self.sent).float()

    def forward(self, updates, clients):
        return updates @ self._hashes

    def adjoint(self, total):
        return self._hashes @ total

    def restrict(self, broadcast):
        return broadcast @ self._hashes


def with_stage(stage):
    return lambda s: s.updates(stages.SendAll(size=s.size), stage())


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(
    ("makes", "settings", "failed"),
    [
        (doubled_before_the_noise, PRIVATE, {"norm", "linear", "distance", "single rounds"}),
        (with_stage(DividesByTheLargest), PRIVATE, {"linear"}),
        (with_stage(DividesByTheLargest), UPLOADS, {"rows"}),
        (with_stage(DividesByTheFirst), PRIVATE, {"linear"}),
        (with_stage(DividesByUploads), PRIVATE, {"state"}),
        (with_stage(AddsThePlainSum), PRIVATE, {"state"}),
        (lambda s: s.updates(TopOfPrivateSamples(s=s)), PRIVATE, {"public map"}),
        (with_stage(Shrinks), PRIVATE, set()),
        (lambda s: s.updates(Sketch(size=s.size)), PRIVATE, set()),
        (with_stage(Halved), (*PRIVATE, "privacy.noise=discrete-gaussian"), set()),
    ],
    ids=range(10),
)
@few_cohorts
def test_stages_and_maps_of_ones_own_under_audit(makes, settings, failed):
    methods.register("mine")(makes)
    done = audit_upload("mine", settings=settings, draws=2_000)
    assert {check.name for check in done.checks if check.passed is False} == failed
    assert done.verdict == ("fail" if failed else "pass")


@few_cohorts
def test_a_code_in_front_of_the_clip_does_not_hide_who_scales_whom():
    compress.register("honest")(Honest)
    methods.register("mine", scheme="honest")(with_stage(DividesByTheLargest))
    assert audit_upload("mine", settings=PRIVATE, draws=2_000).verdict == "fail"


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("settings", [COINS, (*COINS, "method.keep=0.5")])
@few_cohorts
def test_masks_of_ones_own_with_any_probabilities_pass(settings):
    methods.register("mine", masks=True)(lambda s: s.coins(s.coordinates_of_signs()))
    assert audit_upload("mine", settings=settings, draws=2_000).verdict == "pass"
