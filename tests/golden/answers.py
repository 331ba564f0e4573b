"""Answers of the golden net: what is equal on every processor, and numbers that are equal within a tolerance.

An item of the second layer is stored as a digest of its bits. An item that no grid makes exact, and every item of the
third layer, is stored as eight numbers, a norm and seven sums with fixed signs, and a tolerance relative to that norm.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

ANSWERS = Path(__file__).parent / "answers.jsonl"
DEPENDS = "depends on the processor"
"""Stored for bytes of numbers that differ in their last bits; the same numbers are compared as what is read."""
SAME = 1e-8
"""Largest relative difference of numbers of the ledger, and of epsilon: solved noise differs in the 13th digit."""
LEAST, MOST = 1e-6, 1e-3
"""Smallest and largest tolerance of an item's numbers."""


def item(values: Iterable[Any]) -> dict[str, Any]:
    """Return the digest and the eight numbers of tensors, arrays or bytes, in their order.

    Integers and floats of equal value have equal digests, so that a change of type alone is not seen.
    """
    parts = [_numbers(value) for value in values]
    whole = np.concatenate([np.zeros(0), *parts]) + 0.0  # no negative zeros
    digest = hashlib.sha256(np.array([len(part) for part in parts], dtype="<i8").tobytes() + whole.tobytes())
    return {"bits": digest.hexdigest()[:16], "about": _eight(whole)}


def _numbers(value: Any) -> np.ndarray:
    if isinstance(value, bytes):
        return np.frombuffer(value, dtype=np.uint8).astype(np.float64)
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value, dtype=np.float64).ravel()


def _eight(whole: np.ndarray) -> list[float]:
    """Return the norm, and seven sums with fixed signs, or the values themselves if there are at most seven."""
    shown = whole if len(whole) <= 7 else (whole * _signs(len(whole))).sum(axis=1)
    return [float(f"{one:.9g}") for one in (np.sqrt((whole**2).sum()), *shown)]


def _signs(count: int) -> np.ndarray:
    """Return signs [7, count] of a fixed stream, whose beginning does not depend on `count`."""
    words = np.random.Generator(np.random.Philox(key=1)).integers(0, 128, count, dtype=np.uint8)
    return 1.0 - 2.0 * ((words >> np.arange(7, dtype=np.uint8)[:, None]) & 1)


def distance(before: list[float], now: list[float]) -> float:
    """Return the largest difference of an item's numbers, relative to its norm."""
    norm = max(before[0], now[0])
    if len(before) != len(now):
        return np.inf
    if not np.isfinite(norm):
        return 0.0 if before == now else np.inf
    return max(abs(a - b) for a, b in zip(before, now, strict=True)) / norm if norm else 0.0


def stored() -> dict[str, dict[str, Any]]:
    """Return the stored answers by name."""
    lines = [json.loads(line) for line in ANSWERS.read_text().splitlines()] if ANSWERS.exists() else []
    return {line.pop("name"): line for line in lines}


def store(answers: dict[str, dict[str, Any]], names: Iterable[str]) -> None:
    """Write the answers of these names."""
    lines = [json.dumps({"name": name} | answers[name], sort_keys=True) for name in names if name in answers]
    ANSWERS.write_text("\n".join(lines) + "\n")


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield one line for each value that differs from the stored one."""
    if before == DEPENDS:
        return
    if isinstance(before, dict) and isinstance(now, dict):
        if "bits" in now and "about" in now:
            yield from _item_differences(before, now, path)
            return
        for key in sorted({*before, *now}):
            yield from differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{path}[{place}]")
    elif isinstance(before, float) and isinstance(now, float):
        if abs(before - now) > SAME * max(abs(before), abs(now)):
            yield f"{path}: {before} -> {now}"
    elif before != now:
        yield f"{path}: {str(before)[:300]} -> {str(now)[:300]}"


def _item_differences(before: dict[str, Any], now: dict[str, Any], path: str) -> Iterator[str]:
    if "within" not in before:
        if before.get("bits") != now["bits"]:
            yield f"{path}: bits {before.get('bits')} -> {now['bits']}"
        return
    moved = distance(before["about"], now["about"])
    if moved > before["within"]:
        yield f"{path}: moved by {moved:.2g} of its norm, {before['within']:.2g} is allowed"


def merged(answers: list[Any], exact: bool = True) -> Any:
    """Return the answer to store from those under several sets of instructions, the first being this processor's.

    An item whose bits are equal everywhere is stored as bits if `exact`, else as numbers with ten times the largest
    distance as its tolerance.
    """
    first = answers[0]
    if isinstance(first, dict) and "bits" in first and "about" in first:
        farthest = max(distance(first["about"], other["about"]) for other in answers)
        if exact and len({one["bits"] for one in answers}) == 1:
            return {"bits": first["bits"]}
        return {"about": first["about"], "within": max(LEAST, float(f"{10 * farthest:.2g}"))}
    if isinstance(first, dict):
        found = {key: merged([one[key] for one in answers if key in one], exact and key != "training") for key in first}
        return {key: DEPENDS if key == "bytes" and "within" in one else one for key, one in found.items()}
    return first
