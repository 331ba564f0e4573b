"""A round's line in diagnostics.jsonl: what the operator may look at and must not publish."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpfed.participation import members
from dpfed.participation.canaries import CanaryScore

INTERRUPTED = "interrupted after its charge; nothing of it was used"
"""What ledgers' readers find of a round of a schedule that a crash ended: charged, and without a result."""


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """No epsilon covers these numbers.

    cohort, members:       clients that were drawn, canaries not counted, and which (`dpfed.participation.members`)
    counted:               of the cohort's rows; None where clients do not say which were inside the bound
    failed:                clients (records, where these are private) whose training raised, and ended nothing
    participants, arrived: uploads that were asked for and that are in the sum, with those of clients that only fill up
    aborted:               why the round has no result, if it has none; others get no more than `NO_RESULT`
    divisor:               what the sum was divided by
    noise:                 of the sum, in the units it was added in (`dpfed.diagnostics.noise_facts`)
    typical_norm, near_the_ends, longest_added, probes: what was added up and what became of it (`Watch`)
    map:                   the coordinates of the round, where public data chose them (`dpfed.stages.maps.Map.facts`)
    canaries:              their scores, which have a file of their own
    """

    cohort: int
    members: str
    participants: int
    counted: int | None = None
    clipped: int | None = None
    not_finite: int = 0
    failed: int = 0
    uplink_bytes: int | None = None
    arrived: int = 0
    largest_norm: float | None = None
    typical_norm: float | None = None
    aborted: str | None = None
    divisor: float | None = None
    noise: dict[str, Any] | None = None
    noise_known: bool = False
    near_the_ends: int | None = None
    longest_added: float | None = None
    probes: dict[str, Any] | None = None
    map: dict[str, Any] | None = None
    canaries: tuple[CanaryScore, ...] = ()

    @classmethod
    def without_result(cls, drawn: NDArray[np.int64], clients: int, why: str) -> RoundRecord:
        """Of a round that was drawn, and that nobody has seen a result of."""
        return cls(cohort=len(drawn), members=members.written(drawn, clients), participants=len(drawn), aborted=why)

    def line(self, number: int, seconds: float) -> dict[str, Any]:
        """Of round `number`; its time, too, tells how many took part."""
        kept = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "canaries"}
        return {"round": number, **kept, "seconds": seconds}

    def canary_lines(self, number: int) -> list[dict[str, Any]]:
        return [{"round": number, **asdict(score)} for score in self.canaries]
