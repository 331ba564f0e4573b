"""Audits of functions that change from call to call, treat clients unlike, raise, or show what is no number."""

import math

import numpy as np
import pytest

import dpfed.audit
from accounting import Adjacency, Gaussian
from dpfed.audit.functions.audit import audit_calls, audit_function
from dpfed.audit.functions.claim import claim_of, largest_gap_ratio
from dpfed.audit.functions.outputs import Worlds, pairs_of_updates
from dpfed.audit.functions.pilots import events_test
from dpfed.errors import ConfigError

from .here import Here, in_this_process

CLAIM = Gaussian(noise_multiplier=1.0, adjacency=Adjacency.ADD_REMOVE)


def clipped(updates):
    return updates / np.maximum(1, np.linalg.norm(updates, axis=1, keepdims=True))


def noise(seed, size, factor=1.0):
    return factor * np.random.default_rng(seed).standard_normal(size)


def sound(updates, seed):
    return clipped(updates).sum(axis=0) + noise(seed, updates.shape[1])


def audited(function, trials=2_000, seed=0, pairs=4):
    found = pairs_of_updates(Adjacency.ADD_REMOVE, clients=4, dimension=8, clip_norm=1.0)[:pairs]  # None: all
    return audit_calls(Here(function), claim_of(CLAIM), found, trials=trials, seed=seed)


def rounds(factor):
    """How often it was called is in the output."""
    calls = []

    def counted(updates, seed):
        calls.append(seed)
        total = clipped(updates).sum(axis=0) + noise(seed, updates.shape[1], factor)
        return {"round": len(calls), "sum": total}

    return counted


def test_a_count_of_calls_hides_nothing():
    """Fault: noise of a quarter. The count is larger in later calls, whichever world they are of."""
    assert audited(rounds(0.25), trials=400, pairs=1).verdict == "fail"
    assert audited(rounds(1.0), trials=400, pairs=1).verdict != "fail"


def test_worlds_come_in_an_order_that_is_drawn():
    """Of 100 calls, 50 of each world in the pilot: one block after the other has probability below 1e-28."""
    called = []

    class Noted(Here):
        def outputs(self, inputs, which, seeds):
            called.append(which)
            return super().outputs(inputs, which, seeds)

    pairs = pairs_of_updates(Adjacency.ADD_REMOVE, clients=4, dimension=8, clip_norm=1.0)[:1]
    audit_calls(Noted(sound), claim_of(CLAIM), pairs, trials=100)
    assert len(called) == 3
    assert all(which != sorted(which) and which != sorted(which, reverse=True) for which in called)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("spared", [0, 1, 2, 3])
def test_a_client_that_is_not_clipped_is_found(spared):
    def all_but_one(updates, seed):
        rows = clipped(updates)
        rows[spared] = updates[spared] if spared < len(updates) else 0
        return rows.sum(axis=0) + noise(seed, updates.shape[1])

    def missing_one(updates, seed):
        return all_but_one(updates, seed) if len(updates) > spared else sound(updates, seed)

    assert audited(missing_one, trials=400).verdict == "fail"


def rounded_up(rows):
    """Every entry becomes as large as the row's largest: norms of 1 become sqrt(d) at most."""
    return np.sign(rows) * np.abs(rows).max(axis=1, keepdims=True)


def without_the_last_layer(rows):
    """The norm that bounds a row leaves the last two entries out."""
    return rows / np.maximum(1, np.linalg.norm(rows[:, :-2], axis=1, keepdims=True)).clip(max=1e9)


def of_sampled_entries(rows):
    """The norm that bounds a row is worked out from every other entry."""
    return rows / np.maximum(1, math.sqrt(2) * np.linalg.norm(rows[:, ::2], axis=1, keepdims=True))


UNEVEN = {
    "rounded up after the clip": lambda rows: rounded_up(clipped(rows)),
    "the last layer is not in the norm": without_the_last_layer,
    "the norm of every other entry": of_sampled_entries,
}


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("fault", UNEVEN)
def test_updates_of_uneven_entries_are_tried(fault, seeded):
    """Noise of 1 for a sensitivity above 1 that entries of equal size, or a single one, do not show."""

    def wrong(updates, seed):
        return UNEVEN[fault](updates).sum(axis=0) + noise(seed if seeded else None, updates.shape[1])

    done = audited(wrong, trials=600, pairs=None)
    assert done.verdict == "fail"
    assert "is claimed and does not hold" in done.as_text()
    moved = [check for check in done.checks if check.name == "distance"]
    assert [check.passed for check in moved] == [False] * seeded


def test_uneven_updates_get_no_trials_where_they_show_no_more():
    """Their short pilots take no part of the error probability: the other pairs share all of it."""
    done = audited(sound, trials=6_000, pairs=None)
    assert done.verdict == "pass"
    assert len({one.pair for one in done.tests}) == 8
    assert len(done.only_measured) == 8
    alone = audited(sound, trials=6_000, pairs=8)
    assert {one.test.alpha for one in done.tests} == {one.test.alpha for one in alone.tests}


def farther(factor, std):
    def moved(updates, seed):
        return factor * clipped(updates).sum(axis=0) + noise(seed, updates.shape[1], std)

    return moved


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("std", [20.0, 1.0])
def test_two_calls_with_one_seed_show_how_far_a_client_moves_the_output(std):
    """Planted: a client moves the sum 1.4 times as far as claimed, which 1,000 trials cannot see at noise 20."""
    claim = claim_of(Gaussian(noise_multiplier=std, adjacency=Adjacency.ADD_REMOVE))
    pairs = pairs_of_updates(Adjacency.ADD_REMOVE, clients=4, dimension=8, clip_norm=1.0)[:3]
    done = audit_calls(Here(farther(1.4, std)), claim, pairs, trials=1_000)
    (moved,) = [check for check in done.checks if check.name == "distance"]
    assert moved.passed is False
    assert done.verdict == "fail"
    assert std == 1 or not any(one.rejected for one in done.tests)
    honest = audit_calls(Here(farther(1.0, std)), claim, pairs, trials=1_000)
    assert [check for check in honest.evidence.checks if check.passed is False] == []


@pytest.mark.slow
def test_the_exact_distance_fails_at_the_stated_rate():
    """80 honest functions, and 80 with noise that has no Gaussian tails: 0.1% each is allowed. More than 2 alarms have
    probability below 0.0001 at 2% of 5%."""

    def odd(updates, seed):
        rng = np.random.default_rng(seed)
        return clipped(updates).sum(axis=0) + rng.laplace(size=updates.shape[1]) * 2  # 0.5 in the largest direction

    claim = claim_of(CLAIM)
    pairs = pairs_of_updates(Adjacency.ADD_REMOVE, clients=4, dimension=2, clip_norm=1.0)[:2]
    for function in (sound, odd):
        found = [audit_calls(Here(function), claim, pairs, trials=200, seed=seed) for seed in range(80)]
        alarms = sum(check.passed is False for done in found for check in done.evidence.checks)
        assert alarms <= 2


def leak(kind):
    """The world is in what is no number."""

    def leaking(updates, seed):
        total, there = sound(updates, seed), len(updates) == 4
        seen = {
            "keys": {"there" if there else "not": total},
            "dtype": total.astype(np.float64 if there else np.float32),
            "shape": total[None] if there else total,
            "nothing": [total, None if there else []],
            "infinity": [total, math.inf if there else -math.inf],
            "not a number": [total, math.nan if there else math.inf],
        }
        return seen[kind]

    return leaking


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("kind", ["keys", "dtype", "shape", "nothing", "infinity", "not a number"])
def test_what_is_no_number_is_seen(kind):
    done = audited(leak(kind), trials=400)
    assert done.verdict == "fail"
    assert "does not hold" in done.as_text()


def repeating(updates, seed):
    return clipped(updates).sum(axis=0) + noise(seed % 256, updates.shape[1])


def left_out(updates, seed):
    return sound(updates, seed) if seed % 20 else clipped(updates).sum(axis=0)


def sometimes_raises(updates, seed):
    if len(updates) == 3 and seed % 10 == 0:
        raise ValueError("too few")
    return sound(updates, seed)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("fault", [repeating, left_out, sometimes_raises])
def test_an_event_is_found(fault):
    done = audited(fault, trials=6_000)
    assert done.verdict == "fail"
    assert any(test.rejected and test.score == "events" for test in done.tests)


def test_exceptions_that_come_by_chance_refute_nothing_and_are_noted():
    """One test at 5% of the error probability in all; the seed is one of those that pass."""

    def now_and_then(updates, seed):
        if seed % 7 == 0:
            raise ValueError("by chance")
        return sound(updates, seed)

    done = audited(now_and_then)
    assert done.verdict != "fail"
    (note,) = done.evidence.checks
    assert note.passed is None
    assert "by chance" in note.detail


def test_events_are_tested_at_the_stated_rate():
    """300 tests of about the worst events that the claim allows; more than 28 alarms at 5% have probability 0.001."""
    claim, rng = claim_of(CLAIM), np.random.default_rng(1)
    rates = 0.05, 0.0041  # of a guess of its own world, and of the other's: Phi(Phi^-1(0.05) - 1) = 0.00408

    def guesses(world):
        drawn = rng.choice([1.0, -1.0, 0.0], size=1_000, p=[*rates, 1 - sum(rates)])
        return drawn if world else -drawn

    alarms = sum(events_test(guesses(0), guesses(1), claim, alpha=0.05).rejected for _ in range(300))
    assert alarms <= 28
    rates = 0.05, 0.0005
    assert sum(events_test(guesses(0), guesses(1), claim, alpha=0.05).rejected for _ in range(20)) >= 10


@pytest.mark.slow
def test_false_alarms_of_sound_functions_that_have_events():
    """60 audits of a function that raises, repeats and counts; more than 9 alarms have probability 0.002 at 5%."""

    def odd(updates, seed):
        if seed % 11 == 0:
            raise ValueError("by chance")
        total = sound(updates, seed)
        return {"sum": np.round(total)[: 1 + seed % 2], "kind": None if seed % 3 else []}

    assert sum(audited(odd, trials=400, seed=seed, pairs=2).verdict == "fail" for seed in range(60)) <= 9


def test_the_seed_of_the_noise_may_not_be_shown():
    done = audited(lambda updates, seed: {"sum": sound(updates, seed), "seed": seed}, trials=200)
    assert done.verdict == "fail"
    assert "the seed of the noise is in the output" in done.as_text()
    other = np.random.default_rng(0)
    unrelated = audited(lambda updates, seed: [sound(updates, int(other.integers(2**31))), seed], trials=200)
    assert unrelated.verdict != "fail"


def test_no_pass_where_a_gap_is_seen_and_not_settled():
    """Sound scores are at most this far apart: here those of a Gaussian, and of its sign."""
    from dataclasses import replace

    assert 1.0 <= largest_gap_ratio(0.1) < 1.01
    sign = (1 - 2 * 0.00135) / math.sqrt(0.00135 * (1 - 0.00135))  # of shift 6: it errs with probability Phi(-3)
    assert sign / 6 < largest_gap_ratio(6.0) < 1.5 * sign / 6
    done = audited(sound, trials=6_000, pairs=1)
    assert done.verdict == "pass"
    far = replace(done.evidence, tests=tuple(replace(test, gap=3.5) for test in done.evidence.tests))
    assert far.verdict == "inconclusive"
    assert "3.5 times" in far.as_text()


class Batch:
    """An input of a class that only this module has."""

    def __init__(self, rows):
        self.rows = rows


def writes(given, seed, factor=1.0):
    state, batch = given
    state += clipped(batch.rows - state).sum(axis=0) + noise(seed, 8, factor)
    return state


def writes_with_half(given, seed):
    return writes(given, seed, 0.5)


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize(("step", "fails"), [(writes, False), (writes_with_half, True)])
def test_a_step_may_write_on_what_it_is_given(step, fails):
    rows = np.zeros((4, 8))
    rows[-1] = 100.0
    worlds = [Worlds(name="a record", one=(np.zeros(8), Batch(rows)), other=(np.zeros(8), Batch(rows[:-1])))]
    assert (dpfed.audit.upload(step, claim=CLAIM, worlds=worlds, trials=600).verdict == "fail") == fails


def draws(given, seed):
    rows, rng = given
    return clipped(rows).sum(axis=0) + rng.standard_normal(8)


@in_this_process
def test_a_generator_in_the_input_is_not_put_back():
    rows = np.full((4, 8), 100.0)
    rng = np.random.default_rng(3)
    worlds = [Worlds(name="a record", one=(rows, rng), other=(rows[:-1], rng))]
    assert dpfed.audit.upload(draws, claim=CLAIM, worlds=worlds, trials=400).verdict != "fail"


def raises_for_few(updates, seeds):
    if updates.shape[1] == 3:
        raise ValueError("too few clients")
    return [sound(one, int(seed)) for one, seed in zip(updates, seeds, strict=True)]


@in_this_process
def test_batches_that_fail_are_outputs_as_well():
    pair = pairs_of_updates(Adjacency.ADD_REMOVE, clients=4, dimension=8, clip_norm=1.0)[:1]
    done = audit_function(raises_for_few, claim=CLAIM, worlds=pair, trials=400, batched=True, arrays="numpy")
    assert done.verdict == "fail"
    assert any("too few clients" in check.detail for check in done.checks)


def test_inputs_that_cannot_be_sent_are_one_clear_error():
    worlds = [Worlds(name="a generator", one=(k for k in "ab"), other=None)]
    with pytest.raises(ConfigError, match="an input of the function under audit cannot be sent"):
        audit_function(sound, claim=CLAIM, worlds=worlds)
