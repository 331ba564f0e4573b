"""Reset of encoder state that a decoder in this process could reuse; a real server has only the bytes."""

from __future__ import annotations

from dpfed.compress import mask_schemes, sparse


def forget() -> None:
    """Clear the state; call it before the client or server half is timed."""
    sparse._last_subset.cache_clear()
    mask_schemes._remembered_noise.cache_clear()
