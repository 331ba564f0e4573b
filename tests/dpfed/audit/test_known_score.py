"""Power of the two makers of scores, on the same planted faults of a round."""

import numpy as np
import pytest
from scipy.stats import norm

from dpfed.audit.functions import audit as functions
from dpfed.audit.functions import pilots
from dpfed.audit.functions.claim import claim_of
from dpfed.audit.functions.learnt_scores import LearntScore
from dpfed.audit.functions.outputs import COLUMNS_BEFORE, Output
from dpfed.audit.functions.worlds import Worlds
from dpfed.audit.round.one_round import RandomnessByCallOrder
from dpfed.audit.round.round_audit import claim_of_round, pair_tests, pairs_for_claim, shares_of_trials
from dpfed.audit.round.two_worlds import TwoWorlds
from dpfed.audit.round.whole_round import WholeRounds
from dpfed.stages.clip import Clip, clip_rows, count_clipped

from .broken_rounds import with_less_noise
from .fault_layers import DELTA, case

TRIALS, SEEDS = 400, 3
ALPHA = 0.05


class ClipsLoosely(Clip):
    """Half as much again as the clip norm."""

    def client(self, rows, ids, now):
        return count_clipped(clip_rows(rows, 1.5 * now.clip_norm), now)


class RoundAsFunction:
    """A round as a function of (moves, cohort) that returns the released sum, random anew in every call."""

    def __init__(self, one):
        self._rounds = WholeRounds(one_round=one)

    def outputs(self, inputs, which, seeds):
        seen = []
        for world in which:
            done = self._rounds.run(*inputs[world])
            seen.append(Output(numbers=self._rounds.released_sum(done).numpy(), kind=0))
        return seen


def with_known_scores(prepared, claim):
    """Pilots that know the score of each pair, and its distribution if the claim holds, from the quiet round."""
    grid = norm.ppf((np.arange(400) + 0.5) / 400)

    def pilot_of(trial, pair, trials, *, short=False):
        world = prepared[pair.name]
        base, direction = world.base.numpy(), world.direction.numpy()

        def scores(table):
            return (table[:, COLUMNS_BEFORE:-2] - base) @ direction / claim.noise_std

        shifted = grid + min(world.gap, 1.0) * claim.mu
        score = LearntScore(kind="filter", score_rows=scores, pilot=(grid, shifted))
        return pilots.Pilot(scores=[score], events=None, noise_follows_seed=False, shows_seed=False)

    return pilot_of


def found_by_both(made, seed, monkeypatch):
    """True for the round's audit, and for that of the round as a function, if the trials refute the claim."""
    claim = claim_of_round(made.one_round, DELTA)
    pairs = pairs_for_claim(made.sound, claim, made.layout)[:1]
    worlds = [TwoWorlds.prepare(made.drawing_from(RandomnessByCallOrder(seed)), claim, pair) for pair in pairs]
    shares = shares_of_trials(worlds, trials=TRIALS, alpha=ALPHA, seed=seed)
    by_round = any(test.rejected for share in shares for test in pair_tests(share)[0])
    rounds = WholeRounds(one_round=made.sound)
    inputs = [
        Worlds(
            name=world.pair.name,
            one=(rounds.moves(world.pair.tested_update, world.pair.common_update), rounds.cohort(False)),
            other=(
                rounds.moves(world.pair.neighbour_update, world.pair.common_update),
                rounds.cohort(world.pair.neighbour_update is None),
            ),
        )
        for world in (share.pair for share in shares)
    ]
    prepared = {world.pair.name: world for world in worlds}
    monkeypatch.setattr(pilots, "pilot_of", with_known_scores(prepared, claim))
    calls, known = (
        RoundAsFunction(made.drawing_from(RandomnessByCallOrder(seed))),
        claim_of(claim.mechanism, delta=DELTA),
    )
    done = functions.audit_calls(calls, known, inputs, trials=TRIALS, seed=seed)
    return by_round, any(test.rejected for test in done.tests)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["less noise", "looser clip", "sound", "slightly less noise"])
def test_a_round_as_a_function_finds_as_much_with_the_known_score(fault, monkeypatch):
    """Planted in dp-fedavg: noise short by 40% and by 30%, and a clip at 1.5 C; three seeds of 400 trials each."""
    made = {
        "sound": lambda: case("dp-fedavg"),
        "less noise": lambda: with_less_noise(case("dp-fedavg"), 0.6),
        "slightly less noise": lambda: with_less_noise(case("dp-fedavg"), 0.7),
        "looser clip": lambda: case("dp-fedavg").replacing(Clip, lambda clip: ClipsLoosely()),
    }[fault]()
    found = np.array([found_by_both(made, seed, monkeypatch) for seed in range(1, SEEDS + 1)]).sum(axis=0)
    if fault == "sound":
        assert found.tolist() == [0, 0]
    else:
        assert found[1] >= max(found[0], 1)
