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
    "coins": (
        "method.name=fedpm", "mask.edge=0.2", "privacy.noise_multiplier=", "privacy.clip_norm=", "privacy.epsilon=2.0",
        "privacy.slots=30", "privacy.adjacency=zero-out",
    ),
    "discrete-gaussian-shares": ("privacy.noise=discrete-gaussian", *INTEGERS, *TARGET),
    "dithered": ("method.name=dp-dithered", *TARGET),
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


FACTORS = (1.04, 1 + 1e-12, 0.96)
"""Factors of the noise: by a less tight account, by one on another machine (rounding), by a wrong one."""


def check_audit(folder, factor, check):
    """Assert that the audit of this folder says of the noise what it should. Returns the audit and that."""
    found = audit_run(folder, confidence=SURE)
    ((passed, detail),) = [(one.passed, one.detail) for one in found.checks if one.name == check]
    if factor < 1:
        assert passed is False
    else:
        assert found.verdict == "pass", [one for one in found.checks if one.passed is not True]
        assert ("this version " in detail) == (factor == 1.04)
    return found, detail


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_with_the_noise_of_another_account(tmp_path, way, factor):
    """Audit a run whose noise and budget are both of the other account, so that the run does not stop itself."""
    with calibrated_with(factor):
        folder = run_folders.run(tmp_path / "run", *WAYS[way])
    found, detail = check_audit(folder, factor, CHECK)
    privacy_target, today = found.files.promise.privacy_target, found.files.promised_today.privacy_target
    if factor == 1.04 and way == "coins":
        assert privacy_target.clip_norm == pytest.approx(today.clip_norm / 1.04, rel=1e-6)
        assert "the clip norm that the run was calibrated to" in detail
    elif factor == 1.04:
        assert privacy_target.noise_multiplier == pytest.approx(1.04 * today.noise_multiplier, rel=1e-6)
        assert (
            f"{upwards(privacy_target.noise_multiplier)}; this version requires {upwards(today.noise_multiplier)} only"
            in detail
        )


@pytest.mark.slow_but_one_in(3)
@pytest.mark.parametrize("factor", [*FACTORS, 1])
@pytest.mark.parametrize("noise", ["gaussian", "discrete-gaussian", "skellam"])
def test_a_loop_of_ones_own_with_the_noise_of_another_account(tmp_path, noise, factor):
    """Noise in integers is rounded up to a whole variance, which is no other account."""
    with calibrated_with(factor):
        loop_folders.ran(tmp_path, noise_multiplier=None, epsilon=2.0, noise=noise, randomness="simulated")
    check_audit(tmp_path, factor, "ledger follows the plan")
