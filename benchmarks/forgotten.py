"""What an encoder leaves for the decoder of the same process, thrown away: a server has the bytes only."""

from __future__ import annotations

from dpfed.compress import mask_schemes, sparse


def forget() -> None:
    """Call before an end is timed."""
    sparse._last_subset.cache_clear()
    mask_schemes._remembered_noise.cache_clear()
