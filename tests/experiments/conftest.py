from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpfed.config import own_code

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
OWN_CODE = (EXPERIMENTS / "participation" / "last_characters.py", EXPERIMENTS / "accuracy" / "ideas.py")


@pytest.fixture
def _own_code() -> Iterator[None]:
    """Make the experiments' own methods and data known, as --load does."""
    for path in OWN_CODE:
        runpy.run_path(str(path))
    yield
    for path in OWN_CODE:
        own_code.forget_file(str(path))
