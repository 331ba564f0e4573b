"""Text as samples of next-character prediction, in LEAF's 80 characters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WINDOW = 80
"""Characters that a prediction sees."""

VOCABULARY = (
    "\n !\"&'(),-.0123456789:;>?" + "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "[]" + "abcdefghijklmnopqrstuvwxyz" + "}"
)  # the 80 of LEAF (Caldas et al. 2018), in its order
_SPACE = VOCABULARY.index(" ")
_CODES = np.full(256, _SPACE, dtype=np.uint8)
for _code, _letter in enumerate(VOCABULARY):
    _CODES[ord(_letter)] = _code


def codes(text: str) -> NDArray[np.uint8]:
    """Each character's place in VOCABULARY; characters that are not in it count as spaces."""
    points = np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
    places: NDArray[np.uint8] = _CODES[np.minimum(points, len(_CODES) - 1)]
    return places


def windows(text: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Every run of WINDOW characters [n, WINDOW] and the character after it [n]; none in a text of up to WINDOW."""
    places = codes(text)
    if len(places) <= WINDOW:
        return np.empty((0, WINDOW), dtype=np.uint8), np.empty(0, dtype=np.uint8)
    return np.lib.stride_tricks.sliding_window_view(places, WINDOW)[:-1], places[WINDOW:]
