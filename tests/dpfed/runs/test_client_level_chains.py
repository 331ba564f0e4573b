"""`dpfed.ClientLevel` with a chain of stages of one's own: charged for what it does, or refused."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from private_loops import D, level, releases, rows
from reference.own_schemes import Honest, SharesAScale
from refusals import refused

from accounting import Adjacency, Gaussian, Ledger
from accounting.budget import Everyone, Poisson
from dpfed import compress
from dpfed.compress.levels import Dense, Qsgd
from dpfed.engines.round_terms import RoundTerms
from dpfed.errors import ConfigError, RunError
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.randomness import Secure, Simulated
from dpfed.runs import loop as federation
from dpfed.runs.client_level.plan import ClippedUpload
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project, RandomSharedMask, SendAll


def masked(kept, s):
    return Stages(Project(choice=RandomSharedMask(size=s.size, kept=kept)), *s.private(kept))


@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian"])
def test_a_chain_of_ones_own(tiny_config, tmp_path, noise):
    """Fed-SMP's, as a run has it: the same lines."""
    config = tiny_config("method.name=fed-smp-randk", "method.k=90", f"privacy.noise={noise}")
    experiment = build(config)
    federation.run(experiment, tmp_path / "run")
    size = experiment.model.size
    private = level(tmp_path, noise=noise, dimension=size, stages=partial(masked, 90))
    weights = experiment.start.broadcast.clone()
    for step in private.rounds():
        moves = experiment.method.clients.train(weights, step.cohort, number=step.round, seeds=experiment.seeds)
        found = step.release(moves)
        assert int((found != 0).sum()) <= 90
        weights = weights + found
    assert Ledger.read(private.ledger).entries == Ledger.read(tmp_path / "run" / "ledger.jsonl").entries
    refused(RunError, "stages was own, is whole update", level, tmp_path, noise=noise, dimension=size)


def noisy(s, noise_multiplier=1.0, adjacency=None, **changes):
    adjacency = adjacency or s.privacy_target(s.size).mechanism.adjacency
    noise = Gaussian(noise_multiplier=noise_multiplier, adjacency=adjacency)
    return GaussianNoise(**{"noise": noise, "sampler": s.sampler, "randomness": s.randomness} | changes)


def chain(s, *middle, **encode):
    return Stages(Project(choice=SendAll(size=s.size)), *middle, Encode(scheme=Dense(), seeds=s.seeds, **encode))


SEEDED = Simulated(seeds=Seeds(root=0))


UNSOUND = [
    (lambda s: chain(s, Clip(), noisy(s, sampler=Poisson(cohort=6).cohorts(60))), "cohorts are drawn by"),
    (lambda s: chain(s, Clip(), noisy(s, sampler=Everyone().cohorts(60))), "cohorts are drawn by"),
    (lambda s: chain(s, Clip(), noisy(s, randomness=Secure())), "last bits of floating-point noise"),
    (lambda s: chain(s, Clip()), "no stage makes it private"),
    (lambda s: chain(s, noisy(s)), "right before"),
    (lambda s: chain(s, Clip(), noisy(s), noisy(s)), "one is charged"),
    (lambda s: chain(s, Clip(), noisy(s), feedback=60), "changes rows|stored compression error"),
]


@pytest.mark.parametrize(("stages", "complaint"), UNSOUND, ids=range(len(UNSOUND)))
def test_a_chain_that_is_not_charged_for_what_it_does_is_refused(tmp_path, stages, complaint):
    """Planted faults: each would run, and state an epsilon that is not true."""
    refused(ConfigError, complaint, level, tmp_path / "new", dimension=D, stages=stages)
    assert not (tmp_path / "new").exists()


def test_a_continued_loop_keeps_the_noise_of_its_chain(tmp_path):
    """Five rounds of noise 1 and 145 of noise 4 spent 3.3646 of a budget of 2.7: all were counted as the last ones."""
    plan = {"dimension": D, "noise_multiplier": 4.0, "epsilon": 2.7, "rounds": 150}
    loud, quiet = (lambda s, z=z: chain(s, Clip(), noisy(s, noise_multiplier=z)) for z in (1.0, 4.0))
    for step in level(tmp_path, stages=loud, **plan).rounds():
        step.release(rows(step))
        break
    refused(RunError, "noise_multiplier was 1.0, is 4.0", level, tmp_path, stages=quiet, **plan)
    assert next(level(tmp_path, stages=loud, **plan).rounds()).round == 1


def integers(s, **changes):
    """The chain of integer noise, with changes of its noise."""
    clip, rounding, noise, words = s.private(s.size)
    return Stages(Project(choice=SendAll(size=s.size)), clip, rounding, replace(noise, **changes), words)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"placement": "clients"}, "need a cohort of known size"),
        ({"placement": "clients", "slots": 60}, "1 shares of noise for cohorts"),  # no loop fills sums up
        ({"shares": 6}, "the server draws one share"),
        ({"shares": 900, "placement": "clients", "sampling": "all"}, "900 shares of noise for cohorts"),
        ({"randomness": Secure()}, "draws 'secure' randomness, but the loop has 'simulated'"),
    ],
)
def test_integer_noise_of_ones_own_is_refused_where_less_is_drawn_than_charged(changes, complaint):
    changes, how = dict(changes), {"noise": "discrete-gaussian", "adjacency": "zero-out", "dimension": D}
    shares, how["sampling"] = changes.pop("shares", 1), changes.pop("sampling", "poisson")

    def made(s):
        return integers(s, noise=replace(s.private(s.size)[2].noise, shares=shares), **changes)

    refused(ConfigError, complaint, level, stages=made, **how)


@pytest.mark.parametrize("shares", [2, 900])
def test_gaussian_shares_of_ones_own_are_at_most_those_of_a_cohort(shares):
    def made(s):
        return chain(s, Clip(), noisy(s, placement="clients", shares=shares, adjacency=Adjacency.ZERO_OUT))

    how = {"sampling": "all", "adjacency": "zero-out", "dimension": D, "stages": made}
    if shares == 2:
        level(**how)
    else:
        refused(ConfigError, "900 shares", level, **how)


def test_a_chain_with_its_own_noise_is_charged_for_that(tmp_path):
    private = level(tmp_path, dimension=D, stages=lambda s: chain(s, Clip(), noisy(s, noise_multiplier=0.7)))
    releases(private)
    assert not any("your own" in note for note in private.guarantee().notes)
    own = level(dimension=D, stages=lambda s: chain(s, type("MyClip", (Clip,), {})(), noisy(s)))
    assert any("MyClip bounds updates" in note for note in own.guarantee().notes)
    assert {one.noise_std for one in Ledger.read(private.ledger).releases} == {0.7}
    plain = level(noise_multiplier=0.7)
    releases(plain)
    assert private.guarantee().epsilon == plain.guarantee().epsilon


def test_uploads_that_are_releases_are_charged_before_they_are_read(tmp_path):
    def seen(s):
        return chain(s, Clip(), noisy(s, placement="uploads", adjacency=Adjacency.ZERO_OUT))

    private = level(tmp_path, dimension=D, stages=seen, adjacency="zero-out")
    for step in private.rounds():
        if step.round == 1:
            refused(ConfigError, "", step.release, rows(step)[1:])
            assert len(Ledger.read(private.ledger).releases) == 2
        step.release(rows(step))
    assert [one.round for one in Ledger.read(private.ledger).releases] == [0, 1, 2]


def test_a_scheme_of_ones_own_may_not_mix_the_rows():
    """One update set the scale of all: under a clip norm of 1 it moved a sum of 20 by 2.2."""
    compress.register("mixes")(SharesAScale)
    compress.register("honest")(Honest)

    class Derived(Qsgd):
        def encode(self, x, *, seed):
            return super().encode(x / x.abs().max().clamp_min(1e-30), seed=seed)

    refused(ConfigError, "client 0 sends another payload alone", level, dimension=D, compress="mixes")

    def through(own, s):
        encode = Encode(scheme=own, seeds=s.seeds)
        return Stages(Project(choice=SendAll(size=s.size)), ClippedUpload(encode=encode), *s.private(s.size))

    for own in (compress.get("mixes"), Derived(levels=7)):
        refused(ConfigError, "sends another payload alone", level, dimension=D, stages=partial(through, own))
    assert releases(level(dimension=D, compress="honest"))


@pytest.mark.parametrize(("scheme", "options"), [("dense", {}), ("topk", {"keep": 0.5}), ("qsgd", {"levels": 7})])
def test_keep_and_compress_do_what_nodes_of_flower_do(scheme, options):
    """The bytes that `client_mod` of a node would send, decoded, are released as by keep= alone."""
    kept = 10

    def sent(step):
        found = rows(step)
        for place, client in enumerate(step.cohort.tolist()):
            terms = RoundTerms(
                round=step.round, client=client, clip_norm=1.0, dimension=D, kept=kept, seed=3, scheme=scheme,
                options=json.dumps(options),
            )  # fmt: skip
            found[place] = terms.decode(terms.encode(found[place]))
        return found

    alike = {"seed": 3, "keep": 0.25, "dimension": D}
    whole = releases(level(compress=scheme, options=options, **alike))
    by_nodes = releases(level(**alike), sent)
    for one, other in zip(whole, by_nodes, strict=True):
        assert int((one != 0).sum()) == kept
        assert torch.allclose(one, other, atol=1e-5)
    refused(ConfigError, "give dimension=", level, keep=0.25)
    refused(ConfigError, "stages with keep", lambda: level(stages=partial(masked, 3), **alike))
    for shared in ({"compress": "shared-randk"}, {"compress": "shared-topk", "options": {"indices": torch.arange(3)}}):
        refused(ConfigError, "as with keep=", partial(level, dimension=D), **shared)
