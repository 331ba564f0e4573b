"""Planted faults of whole runs are caught by the check that is about them; the same run without the fault passes."""

from unittest.mock import patch

import pytest

from accounting.mechanisms.samplings.planned import Cohorts
from dpfed.audit.run import audit_run
from dpfed.runs.experiment import build
from dpfed.runs.loop import run

from .run_faults import FAULTS, SECRET_LANES, kept_for_ever
from .run_folders import SURE


@pytest.mark.slow_but_one_in(24)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught_and_its_twin_is_not(tmp_path, fault):
    """The twin at a confidence at which no seed fails by chance."""
    assert fault.check in fault.caught(tmp_path / "broken", seed=1)
    assert fault.twin(tmp_path / "sound", seed=1, confidence=SURE) == set()


def test_secret_lanes_and_bins_of_another_run_are_found(tmp_path, tiny_config):
    with patch.object(Cohorts, "sample", kept_for_ever):
        run(build(tiny_config(*SECRET_LANES)), tmp_path / "run")
    failed = {one.name for one in audit_run(tmp_path / "run").checks if one.passed is False}
    assert failed == {"cohorts follow the seed only if simulated"}


def test_tiled_noise_is_caught_with_every_seed(tmp_path):
    (tiled,) = [one for one in FAULTS if one.name == "noise tiled over coordinates"]
    for seed in range(3):
        assert tiled.check in tiled.caught(tmp_path / str(seed), seed=seed)
