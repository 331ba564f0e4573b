"""pytest plugin of the package: the fixture `dp_replay`. Large modules are imported only when a test calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dpfed.audit.replays.audit import Call
    from dpfed.audit.replays.pairs import Pair
    from dpfed.audit.verdict import Verdict


@pytest.fixture
def dp_replay() -> Callable[..., Verdict]:
    """Return `dp_replay(call)`, which runs a replay audit and fails the test with the first difference."""

    def check(
        call: Call, pairs: Sequence[Pair] | int | None = None, seed: int = 0, rounds: int | None = None
    ) -> Verdict:
        from dpfed.audit import replay

        found = replay(call, pairs, seed, rounds=rounds)
        if found.verdict != "pass":
            pytest.fail(found.as_text(), pytrace=False)
        return found

    return check
