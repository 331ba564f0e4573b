"""A server's rule of one's own: made with the step size, checkpointed by its memory, refused where it is none."""

from dataclasses import dataclass, replace

import pytest
import torch
from refusals import refused

from dpfed import server
from dpfed.errors import ConfigError, RunInterrupted
from dpfed.runs import loop
from dpfed.runs.experiment import build

from ...rounds import only_state as run_round


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
