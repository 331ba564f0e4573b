"""Flower's strategies and mods under audit, in this process."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "experiments" / "audit-field"))
from accountant_settings import SETTINGS
from accountants import audit_accountant
from flower_strategies import CASES, audit_flower

pytest.importorskip("flwr", reason="flwr is not installed: pip install -c constraints-flower.txt -e '.[flower]'")

CASE = {case.name: case for case in CASES}
GROSS = {
    "server-fixed, unequal examples": "far beyond the clip norm",
    "client-fixed, mod forgotten": "far beyond the clip norm",
    "server-fixed, replace-one": "far beyond the clip norm",
    "server-fixed, add-remove": "others opposite, at the clip norm",
}


def rows(*norms, size=16):
    return np.stack([np.full(size, norm / size**0.5) for norm in norms]).astype(np.float32)


@pytest.mark.parametrize("name", ["server-fixed", "client-fixed"])
def test_a_round_is_the_mean_of_clipped_updates_with_the_noise_of_its_seed(name):
    """Two seeds show the noise; without it, by the difference of two inputs, the mean is that of clipped rows."""
    run = CASE[name].make()
    given, other = rows(0.5, 0.0, 0.0, 7.0), rows(0.5, 0.0, 0.0, 0.0)
    seen, without = (np.concatenate(run(updates, 3)) for updates in (given, other))
    np.testing.assert_allclose(seen - without, rows(1.0)[0] / 4, atol=1e-6)
    assert np.abs(np.concatenate(run(given, 4)) - seen).max() > 0.01


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("name", GROSS)
def test_a_claim_that_is_easily_lost_is_refuted(name):
    done = audit_flower(CASE[name], trials=400, only=GROSS[name])
    assert not CASE[name].sound
    assert done.verdict == "fail"


@pytest.mark.slow
@pytest.mark.parametrize("name", [case.name for case in CASES if case.name not in GROSS])
def test_every_other_case_is_as_its_code_says(name):
    """A sound one fails with the stated probability, whatever the trials; a false claim gets all of its trials."""
    done = audit_flower(CASE[name], trials=1_000 if CASE[name].sound else None)
    assert (done.verdict == "fail") == (not CASE[name].sound)


def test_sound_use_is_not_refuted():
    """It is with a probability of at most 5%: of seeds 0 to 12, by 0."""
    done = audit_flower(CASE["server-fixed"], trials=200, only="far beyond the clip norm", seed=1)
    assert done.verdict == "inconclusive"
    assert done.score_gap == pytest.approx(1.0, abs=0.25)


def test_the_accountant_of_flower_is_asked_as_the_command_does():
    """A tenth of the settings: what it refuses is no answer, what it states is a number for each of the others."""
    found = audit_accountant("flower", settings=[one for one in SETTINGS if one.rounds <= 1000][::8], seconds=30.0)
    assert not found.cases_with("error")
    assert len(found.cases_with("right")) + len(found.cases_with("loose")) + len(found.cases_with("refuted")) >= 3
    assert all(case.setting.adjacency == "replace-one" for case in found.cases_with("refuted"))


def test_an_update_of_zeros_divides_by_zero():
    """What the audit sends next to nothing for; if this fails, Flower has mended it."""
    from flwr.supercore.differential_privacy import clip_inputs_inplace

    with pytest.raises(ZeroDivisionError):
        clip_inputs_inplace([np.zeros(3)], 1.0)


def test_noise_of_adaptive_clipping_has_the_size_of_the_next_norm():
    """All clipped: the norm falls by e^-(1 - 1/2) at a learning rate of 1, and with it the noise of this very round."""
    run = CASE["server-adaptive"].make()
    seen = np.array([np.concatenate(run(rows(*[50.0] * 4), seed)) for seed in range(150)])
    norm, noise = seen[:, -1], seen[:, :-1] - rows(1.0)[0]
    claimed = (1 - (2 * 2.0) ** -2) ** -0.5 / 4
    ratio = np.sqrt((noise**2).mean(axis=1)) / (claimed * norm)
    assert ratio.mean() == pytest.approx(1.0, abs=0.05)
    assert norm.mean() < 0.8
