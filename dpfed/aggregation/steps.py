"""The steps of a secure sum at which a client may drop out."""

from __future__ import annotations

from enum import StrEnum


class ProtocolStep(StrEnum):
    """The step before which a client drops out, in the order of time; LATE: its input arrives after UPLOAD is closed.

    ADVERTISE and SHARE: it is left out from the start. UPLOAD: its masks are taken out of the sum. UNMASK: its input
    stays in the sum. LATE: as UPLOAD, and its input stays hidden behind its own mask.
    """

    ADVERTISE = "advertise"
    SHARE = "share"
    UPLOAD = "upload"
    LATE = "late"
    UNMASK = "unmask"

    @property
    def sends(self) -> bool:
        """Whether the client still trains and sends its input, in time or not."""
        return self in (ProtocolStep.UNMASK, ProtocolStep.LATE)
