"""pytest plugin of the package: the fixture `dp_replay`. Nothing heavy is loaded until a test calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dpfed.audit.replays.audit import Call
    from dpfed.audit.replays.pairs import Pair
    from dpfed.audit.replays.verdict import ReplayAudit


@pytest.fixture
def dp_replay() -> Callable[..., ReplayAudit]:
    """Return the replay audit as a test: `dp_replay(call)` fails with the first difference (`dpfed.audit.replay`)."""

    def check(
        call: Call, pairs: Sequence[Pair] | int | None = None, seed: int = 0, rounds: int | None = None
    ) -> ReplayAudit:
        from dpfed.audit import replay

        found = replay(call, pairs, seed, rounds=rounds)
        if found.verdict != "pass":
            pytest.fail(found.as_text(), pytrace=False)
        return found

    return check
