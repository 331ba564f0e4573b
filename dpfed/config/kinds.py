"""Which noise a method's uploads can have, where they can have one only. Asked when a configuration is parsed."""

from __future__ import annotations


def noise_of_method(name: str) -> str | None:
    """coins of masks, the quantiser's own error; None where [privacy] says."""
    from dpfed.methods.catalogue import every_method  # a method's facts are plain values, and loaded without torch

    facts = every_method().get(name)
    if facts is None:
        return None
    return "coins" if facts.coins else "dithered" if facts.dithered else None
