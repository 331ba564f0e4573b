"""Planted faults of whole runs are caught by the check that is about them; the same run without the fault passes."""

import pytest

from .run_faults import FAULTS
from .run_folders import SURE


@pytest.mark.slow_but_one_in(24)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught_and_its_twin_is_not(tmp_path, fault):
    """The twin at a confidence at which no seed fails by chance."""
    assert fault.check in fault.caught(tmp_path / "broken", seed=1)
    assert fault.twin(tmp_path / "sound", seed=1, confidence=SURE) == set()


def test_tiled_noise_is_caught_with_every_seed(tmp_path):
    (tiled,) = [one for one in FAULTS if one.name == "noise tiled over coordinates"]
    for seed in range(8):
        assert tiled.check in tiled.caught(tmp_path / str(seed), seed=seed)
