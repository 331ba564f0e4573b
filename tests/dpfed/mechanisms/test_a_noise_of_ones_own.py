"""A noise of one's own: a description with its account, a plan, and a stage. It is planned, charged, read and drawn."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import dpfed
from accounting import Adjacency, Gaussian, Ledger, Plan, budget, subsample
from accounting.budget.gaussians import Noise, PlannedMechanism
from accounting.ledger import Release
from accounting.mechanisms import Unsampled, from_dict
from accounting.mechanisms.kinds import Account
from accounting.mechanisms.samplings.planned import Sampler
from dpfed.audit.round.one_round import claim_of
from dpfed.compress.levels import Dense
from dpfed.randomness import Randomness
from dpfed.report.ledger_text import ledger_text
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project, SendAll
from dpfed.stages.stage import Private

SIZE, ROUNDS = 20_000, 3


@dataclass(frozen=True, kw_only=True)
class Pair(Unsampled):
    """Sum with the Gaussian noise of two servers, each of which knows its own noise."""

    first: float
    second: float
    adjacency: Adjacency
    kind: ClassVar[str] = "pair"
    words: ClassVar[str] = "noise of two servers"
    account: ClassVar[Account] = Account(
        renyi=lambda orders, noise: orders * noise.mu**2 / 2, twin=lambda noise, count: (noise.together, 0.0)
    )

    @property
    def together(self):
        return Gaussian(noise_multiplier=math.hypot(self.first, self.second), adjacency=self.adjacency)

    @property
    def mu(self):
        return self.together.mu

    def least_noise_std(self, clip_norm, steps_per_unit):
        return self.together.noise_multiplier * clip_norm

    @classmethod
    def of(cls, z, adjacency):
        return cls(first=0.6 * z, second=0.8 * z, adjacency=adjacency)


@dataclass(frozen=True, kw_only=True)
class PairNoise(Noise):
    """The plan."""

    name: ClassVar[str] = "pair"

    def validated_for(self, setting):
        return self

    def round(self, setting, noise_multiplier, rounds):
        return subsample(Pair.of(noise_multiplier, setting.adjacency), setting.sampler)


@dataclass(frozen=True, kw_only=True)
class TwoServers(Private):
    """The stage, whose draws are those of the description that it charges."""

    noise: Pair
    sampler: Sampler
    randomness: Randomness
    rests_on = (Clip,)

    def mechanism(self, uploads=None):
        return subsample(self.noise, self.sampler.law)

    def server(self, total, now):
        for name, z in (("first", self.noise.first), ("second", self.noise.second)):
            total = total + z * now.clip_norm * self.randomness.normal(len(total), f"noise.{name}", now.number)
        return total

    def release(self, now):
        return Release(
            round=now.number,
            mechanism=self.mechanism(),
            clip_norm=now.clip_norm,
            noise_std=self.noise.least_noise_std(now.clip_norm, 0.0),
            noise_placement="server",
            detail={"dimension": now.projection.sent, "divided_by": self.sampler.expected},
        )


# Other tests list all kinds and plans.
del Unsampled.kinds["pair"]
PlannedMechanism.classes.remove(PairNoise)


@pytest.fixture
def _known(monkeypatch):
    monkeypatch.setitem(Unsampled.kinds, "pair", Pair)


def two_servers(z, s):
    noise = TwoServers(noise=Pair.of(z, Adjacency.ADD_REMOVE), sampler=s.sampler, randomness=s.randomness)
    wire = Encode(scheme=Dense(), seeds=s.seeds, sizes_secret=True)
    return Stages(Project(choice=SendAll(size=s.size)), Clip(), noise, wire)


def test_it_is_planned_as_the_gaussian_of_its_draws():
    plan = Plan(clients=600, cohort=15, mechanism=PairNoise(), delta=1e-5)
    other = Plan(clients=600, cohort=15, delta=1e-5)
    found, z = (budget.noise_multiplier(one, epsilon=2.0, rounds=30) for one in (plan, other))
    assert found == pytest.approx(z, rel=2e-6)
    assert budget.epsilon(plan, noise_multiplier=z, rounds=30) == pytest.approx(2.0, rel=2e-5)


@pytest.mark.usefixtures("_known")
def test_it_is_drawn_charged_and_read(tmp_path):
    settings = {"clients": 600, "cohort": 15, "clip_norm": 0.5, "rounds": ROUNDS, "noise_multiplier": 2.0}
    private = dpfed.ClientLevel(
        **settings,
        randomness="simulated",
        dimension=SIZE,
        ledger=tmp_path / "ledger.jsonl",
        stages=lambda s: two_servers(2.0, s),
    )
    for step in private.rounds():
        noise = step.release(torch.zeros(len(step.cohort), SIZE)) * 15
        assert float(noise.std()) == pytest.approx(1.0, rel=5 / math.sqrt(2 * SIZE))  # false alarm below 1e-6
    ledger = Ledger.read(tmp_path / "ledger.jsonl")
    assert [one.mechanism for one in ledger.releases] == [ledger.releases[0].mechanism] * ROUNDS
    assert from_dict(ledger.releases[0].mechanism.to_dict()) == ledger.releases[0].mechanism
    assert ledger.releases[0].mechanism.mechanism == Pair.of(2.0, "add-remove")
    whole = dpfed.ClientLevel(**settings, randomness="simulated")
    for step in whole.rounds():
        step.release(torch.zeros(len(step.cohort), SIZE))
    assert private.guarantee().epsilon == pytest.approx(whole.guarantee().epsilon, rel=1e-6)
    assert "Rounds 1 to 3: noise of two servers, clip norm 0.5" in str(ledger_text(tmp_path / "ledger.jsonl"))


def test_a_kind_that_this_program_does_not_define_is_refused():
    with pytest.raises(Exception, match="this version does not support this mechanism"):
        from_dict(Pair.of(2.0, Adjacency.ADD_REMOVE).to_dict() | {"adjacency": "add-remove"})


@dataclass(frozen=True, kw_only=True)
class Unscaled(Pair):
    """The same noise, which does not state its size over the sensitivity."""

    mu: ClassVar[None] = None
    account: ClassVar[Account] = Account(
        renyi=lambda orders, noise: orders * noise.together.mu**2 / 2, twin=Pair.account.twin
    )


def test_its_noise_is_audited_although_it_states_no_mu():
    noise = Unscaled.of(2.0, Adjacency.ADD_REMOVE)
    released = Release(round=0, mechanism=noise, clip_norm=0.5, noise_std=1.0, noise_placement="server", detail={})
    claim = claim_of(released, delta=1e-5)
    assert (claim.noise_std, claim.sensitivity) == (1.0, 0.5)
