"""Server rules: the noisy step, the Beta posterior with its reset schedules, and rules of a user's own."""

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
from refusals import refused

from dpfed import server
from dpfed.errors import ConfigError, RunInterrupted
from dpfed.runs import loop
from dpfed.runs.experiment import build
from dpfed.server.rules import Averaging, BetaPosterior, ServerState

from ...rounds import only_state as run_round

THETA = torch.tensor([0.5, 0.2, 0.9])


def state(theta=THETA):
    return ServerState(round=0, broadcast=theta, clip_norm=1.0)


def rounds(rule, sums, count=4):
    """Broadcasts after each round in which `count` masks came with these sums."""
    now, seen = state(), []
    for ones in sums:
        move = torch.tensor(ones) / count - now.broadcast
        now = rule.step(now, move, count=count)
        seen.append(now.broadcast)
    return seen, now


def test_reset_in_every_round_is_the_mean_mask():
    seen, _ = rounds(BetaPosterior(reset_every=1), [[1.0, 0.0, 4.0], [3.0, 2.0, 1.0]])
    torch.testing.assert_close(seen[0], torch.tensor([0.25, 0.0, 1.0]))
    torch.testing.assert_close(seen[1], torch.tensor([0.75, 0.5, 0.25]))


def test_without_resets_it_is_the_mode_over_all_masks():
    seen, now = rounds(BetaPosterior(reset_every=0), [[1.0, 0.0, 4.0], [3.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(seen[2], torch.tensor([4.0, 2.0, 5.0]) / 12)
    torch.testing.assert_close(now.memory["alpha"] + now.memory["beta"], torch.full((3,), 14.0))


def test_every_second_round_forgets_the_two_before():
    seen, _ = rounds(BetaPosterior(reset_every=2), [[4.0] * 3, [0.0] * 3, [1.0] * 3, [1.0] * 3])
    torch.testing.assert_close(torch.stack(seen)[:, 0], torch.tensor([1.0, 0.5, 0.25, 0.25]))


def test_a_stronger_prior_pulls_to_one_half():
    seen, _ = rounds(BetaPosterior(prior=3.0), [[4.0, 0.0, 2.0]])
    torch.testing.assert_close(seen[0], torch.tensor([6.0, 2.0, 4.0]) / 8)


def test_no_masks_and_a_flat_prior_leave_theta():
    """Mode 0/0: theta stays, no NaN."""
    after = BetaPosterior().step(state(), torch.zeros(3), count=0)
    assert torch.equal(after.broadcast, THETA)


def test_edges_hold_in_both_rules():
    move = torch.tensor([9.0, -9.0, 0.0])
    for rule in (BetaPosterior(edge=0.1), Averaging(edge=0.1)):
        torch.testing.assert_close(rule.step(state(), move, count=5).broadcast, torch.tensor([0.9, 0.1, 0.9]))


def test_momentum_adds_up_and_is_part_of_the_state():
    rule = Averaging(learning_rate=0.5, momentum=0.5)
    first = rule.step(state(), torch.ones(3), count=1)
    second = rule.step(first, torch.ones(3), count=1)
    torch.testing.assert_close(second.broadcast - THETA, torch.full((3,), 0.5 + 0.75))
    forgot = rule.step(replace(first, memory={}), torch.ones(3), count=1)
    assert not torch.equal(second.broadcast, forgot.broadcast)


def test_running_statistics_are_averaged_whatever_the_step():
    rule = Averaging(learning_rate=0.1, momentum=0.5, averaged=torch.tensor([1]))
    state_now = state()
    for _ in range(2):
        before = state_now.broadcast
        state_now = rule.step(state_now, torch.tensor([1.0, 0.3, -0.2]), count=1)
        torch.testing.assert_close(state_now.broadcast[1], before[1] + 0.3)
    assert not torch.isclose(state_now.broadcast[0], torch.tensor(0.5 + 2 * 0.1))


@dataclass(frozen=True, kw_only=True)
class SignSteps:
    """Steps of one size along the signs of all mean updates so far."""

    learning_rate: float
    momentum: float = 0.0

    def step(self, state, mean_move, *, count):
        total = state.memory.get("total", torch.zeros_like(mean_move)) + mean_move
        moved = state.broadcast + self.learning_rate * total.sign()
        return replace(state, round=state.round + 1, broadcast=moved, memory={"total": total})


def test_it_is_the_servers_step(tiny_config):
    server.register("signs")(SignSteps)
    made = build(tiny_config("server.rule=signs", "server.learning_rate=0.25"))
    after = run_round(made.start, made.method, seeds=made.seeds, ledger=None)
    moves = (after.broadcast - made.start.broadcast).abs()
    torch.testing.assert_close(moves, torch.full_like(moves, 0.25))


def test_a_run_with_it_goes_on_to_the_bit(tiny_config, tmp_path):
    server.register("signs")(SignSteps)
    config = tiny_config("server.rule=signs", "server.learning_rate=0.05")
    whole = loop.run(build(config), tmp_path / "whole")
    refused(RunInterrupted, "", lambda: loop.run(build(config), tmp_path / "parts", stop=iter([False, True]).__next__))
    resumed = loop.run(build(config), tmp_path / "parts", resume=True)
    assert [line["test_loss"] for line in resumed.metrics] == [line["test_loss"] for line in whole.metrics]


@pytest.mark.parametrize("after", [lambda state: None, lambda state: replace(state, broadcast=state.broadcast + 1)])
def test_a_rule_that_forgets_the_number_of_the_round_ends_the_run(tiny_config, after):
    """The same round would be run again and again, with the same cohort and noise."""

    class Forgets(SignSteps):
        def step(self, state, mean_move, *, count):
            return after(state)

    server.register("forgets")(Forgets)
    made = build(tiny_config("server.rule=forgets"))
    refused(
        ConfigError, "must return a state of round 1", run_round, made.start, made.method, seeds=made.seeds, ledger=None
    )


@pytest.mark.parametrize(("factor", "noise"), [(1.0, "coins"), (4.0, "coins"), (4.0, "gaussian")])
def test_a_rule_may_raise_the_clip_norm_only_where_the_noise_follows_it(tiny_config, factor, noise):
    """Moves of .05, .2 and .8 were charged as three of .05: epsilon .0331 was stated, and is 3.0444."""

    class Moves(SignSteps):
        def step(self, state, mean_move, *, count):
            return replace(super().step(state, mean_move, count=count), clip_norm=factor * state.clip_norm)

    server.register("moves")(Moves)
    signs = ("method.name=stochastic-sign", "method.options.bound=0.05", "privacy.noise=coins", "privacy.clip_norm=.05")
    more, without = (signs, ["privacy"]) if noise == "coins" else ((), [])
    made = build(tiny_config("server.rule=moves", *more, without=without))
    second = run_round(made.start, made.method, seeds=made.seeds, ledger=None)
    again = partial(run_round, second, made.method, seeds=made.seeds, ledger=None)
    if noise == "coins" and factor > 1:
        refused(ConfigError, "no server.rule may raise clip_norm", again)
    else:
        again()


def test_what_is_no_rule_is_refused(tiny_config):
    with pytest.raises(ConfigError, match=r"server.rule='sings': known are step, adam, yogi, adagrad, posterior"):
        build(tiny_config("server.rule=sings"))
    refused(ConfigError, "is the name of an existing", lambda: server.register("step")(SignSteps))
    server.register("none")(lambda **_: 3)
    refused(ConfigError, "gives int, which has no step", lambda: build(tiny_config("server.rule=none")))
    server.register("fails")(lambda **_: 1 / 0)
    refused(ConfigError, "cannot be made: ZeroDivisionError", lambda: build(tiny_config("server.rule=fails")))
    server.register("signs")(SignSteps)
    with pytest.raises(ConfigError, match="with masks: this rule is for updates"):
        build(tiny_config("method.name=fedpm", "server.rule=signs", without=["privacy"]))
