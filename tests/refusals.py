"""A refusal in one line."""

import pytest


def refused(error, words, call, /, *given, **named):
    """Check that the call raises `error` with matching words, any where there are none."""
    with pytest.raises(error, match=words or None):
        call(*given, **named)
