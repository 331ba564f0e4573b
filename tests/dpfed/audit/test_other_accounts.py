"""Runs that another account calibrated: one that was less tight gave more noise, which `dpfed audit run` lets pass."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest

from accounting import budget
from accounting.rounding import upwards
from dpfed.audit.run import audit_run

from . import loop_folders, run_folders
from .run_folders import SURE
from .test_run_audit import ALL_CLIENTS, INTEGERS

CHECK = "ledger follows the configuration"
TARGET = ("privacy.noise_multiplier=", "privacy.epsilon=2.0")
WAYS = {
    "gaussian": TARGET,
    "in-two-phases": (*TARGET, "privacy.noise_schedule=[1.2, 0.9]"),
    "shares-charged": (*ALL_CLIENTS, *TARGET, "aggregation.dropout=0.2", "privacy.missing_shares=charged"),
    "discrete-gaussian-shares": ("privacy.noise=discrete-gaussian", *INTEGERS, *TARGET),
    "dithered": ("method.name=dp-dithered", *TARGET),
    "coins": (
        "method.name=fedpm", "mask.edge=0.2", "privacy.noise_multiplier=", "privacy.clip_norm=", "privacy.epsilon=2.0",
        "privacy.slots=30", "privacy.adjacency=zero-out",
    ),
}  # fmt: skip


@contextmanager
def calibrated_with(factor):
    """In it runs get so many times the noise that their epsilon needs."""
    noise, whole, clip = budget.multiplier_for, budget.noise_multiplier, budget.largest_clip
    with (
        patch.object(budget, "multiplier_for", lambda *given, **named: factor * noise(*given, **named)),
        patch.object(budget, "noise_multiplier", lambda *given, **named: factor * whole(*given, **named)),
        patch.object(budget, "largest_clip", lambda *given, **named: clip(*given, **named) / factor),
    ):
        yield


def checks_of(found):
    return {one.name: (one.passed, one.detail) for one in found.checks}


@pytest.mark.slow_but_one_in(6)
@pytest.mark.parametrize("way", WAYS)
def test_more_noise_than_todays_account_needs_passes_and_is_said(tmp_path, way):
    with calibrated_with(1.04):
        folder = run_folders.run(tmp_path / "run", *WAYS[way])
    found = audit_run(folder, confidence=SURE)
    assert found.verdict == "pass", [one for one in found.checks if one.passed is not True]
    passed, detail = checks_of(found)[CHECK]
    assert passed
    privacy_target, today = found.files.promise.privacy_target, found.files.promised_today.privacy_target
    if way == "coins":
        assert privacy_target.clip_norm == pytest.approx(today.clip_norm / 1.04, rel=1e-6)
        assert "the clip norm that the run was calibrated to" in detail
    else:
        assert privacy_target.noise_multiplier == pytest.approx(1.04 * today.noise_multiplier, rel=1e-6)
        assert (
            f"{upwards(privacy_target.noise_multiplier)}; this version requires {upwards(today.noise_multiplier)} only"
            in detail
        )


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("way", WAYS)
def test_noise_that_differs_by_rounding_is_todays(tmp_path, way):
    """Calibrated on another machine, say."""
    with calibrated_with(1 + 1e-12):
        folder = run_folders.run(tmp_path / "run", *WAYS[way])
    found = audit_run(folder, confidence=SURE)
    assert found.verdict == "pass", [one for one in found.checks if one.passed is not True]
    assert "today" not in checks_of(found)[CHECK][1]


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("way", WAYS)
def test_less_noise_than_todays_account_needs_is_found(tmp_path, way):
    """As of a wrong account. Its own budget does not stop such a run before the first round."""
    with calibrated_with(0.96):
        folder = run_folders.run(tmp_path / "run", *WAYS[way])
    assert CHECK in run_folders.failed(folder, confidence=SURE)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian", "skellam"])
def test_a_loop_of_ones_own_with_more_noise_passes(tmp_path, noise):
    with calibrated_with(1.04):
        loop_folders.ran(tmp_path, noise_multiplier=None, epsilon=2.0, noise=noise, randomness="simulated")
    found = audit_run(tmp_path, confidence=SURE)
    assert found.verdict == "pass", [one for one in found.checks if one.passed is not True]
    assert "this version requires" in checks_of(found)["ledger follows the plan"][1]


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian", "skellam"])
def test_a_loop_of_ones_own_with_less_noise_is_found(tmp_path, noise):
    with calibrated_with(0.96):
        loop_folders.ran(tmp_path, noise_multiplier=None, epsilon=2.0, noise=noise, randomness="simulated")
    assert "ledger follows the plan" in loop_folders.failed(tmp_path)


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian", "skellam"])
def test_a_loop_of_ones_own_as_todays_account_calibrates_it(tmp_path, noise):
    """Noise in integers is rounded up to a whole variance, which is no other account."""
    loop_folders.ran(tmp_path, noise_multiplier=None, epsilon=2.0, noise=noise, randomness="simulated")
    assert "today" not in checks_of(audit_run(tmp_path, confidence=SURE))["ledger follows the plan"][1]
