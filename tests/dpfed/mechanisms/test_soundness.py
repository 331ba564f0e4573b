"""A chain whose charge would not cover what it does is refused, whatever stage is moved, left out or put in."""

import itertools
from dataclasses import replace

import pytest
from refusals import refused

from dpfed import compress
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import Coins
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import Integers
from dpfed.mechanisms.soundness import require_sound
from dpfed.randomness import Simulated
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.clip import AdaptiveClip, Clip, ClipMoves, DropNotFinite, FixedClip, Weigh
from dpfed.stages.encode import Encode
from dpfed.stages.wires import Words

from ...rounds import preset, with_after, with_before

NOISE = ("privacy.epsilon=", "privacy.noise_multiplier=1")  # none is searched
SHARES = ("federation.sampling=fixed", "privacy.placement=clients", "privacy.adjacency=zero-out")
CHAINS = {
    "server": ("fed-smp-randk-digits", *NOISE),
    "shares": ("fed-smp-randk-digits", *NOISE, *SHARES),
    "integers": ("fed-smp-randk-digits", *NOISE, "aggregation.kind=masked"),
    "decoded first": ("qsgd-digits", "privacy.clip_norm=1", "privacy.noise_multiplier=1"),
    "uploads": ("qsgd-digits", "privacy.clip_norm=1", "privacy.noise_multiplier=1", "privacy.release=uploads"),
    "coins": ("fedpm-private-digits", "federation.rounds=2", "privacy.epsilon=", "privacy.clip_norm=0.1"),
}


def chain(name):
    return build(preset(*CHAINS[name])).method.stages


class Built(dict):
    def __missing__(self, name):
        return self.setdefault(name, chain(name))


@pytest.fixture(scope="module")
def chains():
    return Built()


def weigh(stages):
    return Weigh(weights=None)


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("name", CHAINS)
def test_built_chains_are_sound(chains, name):
    require_sound(chains[name])


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_without_its_bound_or_its_noise_is_refused(chains, name):
    stages = chains[name]
    for kind in (Clip, ClipMoves, Integers, type(stages.private)):
        if stages.find(kind) is not None:
            refused(ConfigError, "chain", require_sound, stages.without(kind))


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("name", CHAINS)
def test_weights_between_bound_and_noise_are_refused(chains, name):
    stages = chains[name]
    refused(ConfigError, "right before", require_sound, with_before(stages, type(stages.private), weigh(stages)))


@pytest.mark.parametrize("name", ["server", "shares", "integers", "decoded first", "coins"])
def test_a_stage_that_changes_bounded_rows_is_refused(chains, name):
    stages = chains[name]
    refused(ConfigError, "changes rows", lambda: require_sound(with_after(stages, type(stages.private), weigh(stages))))


def test_a_lossy_code_behind_the_noise_of_a_sum_is_refused(chains):
    lossy = Encode(scheme=compress.get("qsgd"), seeds=Seeds(root=0))
    stages = chains["server"].replace_stage(Encode, lambda stage: lossy)
    refused(ConfigError, "Encode changes rows", require_sound, stages)
    require_sound(chains["uploads"])  # there it is post-processing


def test_a_count_that_is_not_charged_is_refused(chains):
    draws = Simulated(seeds=Seeds(root=0))
    counted = AdaptiveClip(quantile=0.5, rate=0.2, count_noise_std=5.0, cohort=65.0, randomness=draws)
    for name in ("server", "shares", "integers", "decoded first", "uploads"):
        stages = chains[name].replace_stage(Clip, lambda stage: Clip(adaptive=counted))
        refused(ConfigError, "the count that moves the clip norm", require_sound, stages)
    project, clip, *others = chains["server"]
    second = Stages(project, clip, Clip(adaptive=counted), *others)
    refused(ConfigError, "the count that moves the clip norm", require_sound, second)


@pytest.mark.parametrize("counts", ["DropNotFinite", "FixedClip", "Clip"])
def test_rows_that_two_stages_count_have_no_adaptive_clip(counts):
    stages = build(preset(*CHAINS["server"], "privacy.adaptive.quantile=0.5")).method.stages
    require_sound(stages)
    before = {"DropNotFinite": DropNotFinite(), "FixedClip": FixedClip(norm=5.0), "Clip": stages.find(Clip)}[counts]
    refused(ConfigError, "charged for one of them", require_sound, with_before(stages, Clip, before))


def test_a_second_release_is_refused(chains):
    stages = chains["server"]
    noise = stages.find(GaussianNoise)
    refused(ConfigError, "two stages make it private", require_sound, with_after(stages, Encode, noise_like(noise)))


def test_votes_and_numbers_of_uploads_that_decode_a_noisy_sum_are_refused(chains):
    stages = chains["decoded first"].replace_stage(Encode, lambda stage: replace(stage, majority=True))
    refused(ConfigError, "Encode decodes the noisy sum", require_sound, stages)
    coins = with_before(chains["server"], Clip, Coins(randomness=None))
    refused(ConfigError, "Coins decodes the noisy sum", require_sound, coins)


def noise_like(noise):
    return replace(noise, noise=replace(noise.noise, noise_multiplier=2 * noise.noise.noise_multiplier))


def test_continuous_noise_in_a_ring_is_refused(chains):
    words = Words(size=10, bits=12)
    with pytest.raises(ConfigError, match="hides no wrap-around"):
        require_sound(chains["server"].replace_stage(Encode, lambda stage: words))


def test_two_rings_are_refused(chains):
    stages = chains["integers"].replace_stage(Words, lambda stage: replace(stage, bits=stage.bits - 1))
    refused(ConfigError, "the same bits", require_sound, stages)


def test_of_all_orders_only_sound_ones_pass(chains):
    """All orders of the four stages of a private chain through a lossy code: the one that is built, and no other."""
    project, *others = chains["decoded first"]
    passed = []
    for order in itertools.permutations(others):
        try:
            require_sound(Stages(project, *order))
        except ConfigError:
            continue
        passed.append([type(stage).__name__ for stage in order])
    assert passed == [["Encode", "Clip", "GaussianNoise"]]
    assert GaussianNoise.__name__ == passed[0][-1]
