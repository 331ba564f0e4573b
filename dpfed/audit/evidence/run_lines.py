"""The lines of a run's files: objects of JSON from strangers, taken apart by kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from accounting import require
from accounting.errors import InvalidParameter
from dpfed.errors import RunError

Value = TypeVar("Value")

LARGEST = 1e100
"""Numbers beyond it come from no run, and their squares would overflow."""


class Unavailable(RunError):
    """Evidence that a check needs is missing or cannot be read; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class SumNoise:
    """Noise of a sum, in the units that it was added in: mean square over `entries`, of `draws` shares added up; and,
    None in runs of versions that did not write them, what `dpfed.diagnostics.noise_facts` keeps besides."""

    mean_square: float
    entries: int
    draws: int
    digest: str
    largest: float | None = None
    correlation: float | None = None
    probe: int | float | None = None


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Products of a round's vectors with one direction (`dpfed.round_probes`)."""

    added: int | float | None
    summed: int | float
    bits: int | None
    filled: float
    released: float
    moved: float
    before: float
    before_norm: float
    after: float


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Coordinates that public samples chose (`dpfed.stages.maps.SharedMask.facts`)."""

    samples: str
    kept: int
    shown: str


@dataclass(frozen=True, kw_only=True)
class RoundLine:
    """A line of diagnostics.jsonl. `largest_norm`: of a bounded row, over the clip norm; None if unknown.
    `noise_known`: false where the noise was the clients' and only they have seen it. `members`: of the cohort, as
    `dpfed.participation.members` writes them. What has a default is None in runs of versions that did not write it."""

    round: int
    cohort: int
    participants: int
    arrived: int
    largest_norm: float | None
    divisor: float | None
    noise: SumNoise | None
    aborted: bool
    noise_known: bool = True
    members: str | None = None
    counted: int | None = None
    clipped: int | None = None
    longest_added: float | None = None
    probes: Probes | None = None
    chosen: Chosen | None = None
    uplink_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class PublishedLine:
    """A line of metrics.jsonl."""

    round: int
    test_accuracy: float | None
    epsilon: float | None
    clip_norm: float | None
    aborted: bool
    uplink_megabytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class CanaryLine:
    """A line of canaries.jsonl: `score` is about 1 for a canary that was present, about 0 for one that was not."""

    round: int
    canary: int
    present: bool
    score: float
    norm: float


class JsonValues:
    """One JSON object whose values are asked for by kind."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self._where = values, where

    def whole(self, key: str) -> int:
        return self._checked(key, lambda value: require.count(at_least=0, **{key: value}))

    def real(self, key: str) -> float:
        return self._checked(key, lambda value: _in_reach(require.real("a finite number", **{key: value})))

    def size(self, key: str) -> float:
        return self._checked(key, lambda value: _in_reach(require.nonnegative(**{key: value})))

    def real_or_none(self, key: str) -> float | None:
        return None if self._value(key) is None else self.real(key)

    def exact(self, key: str) -> int | float:
        """A number as it stands: integers of 64 bits are not rounded."""
        value = self._value(key)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64:
            return value
        return self.real(key)

    def held(self, key: str) -> bool:
        """True if there is such a value, and it is not null."""
        return self.values.get(key) is not None

    def flag(self, key: str) -> bool:
        value = self._value(key)
        if not isinstance(value, bool):
            raise Unavailable(f"{self._where}: {key} must be true or false.")
        return value

    def inner(self, key: str) -> JsonValues | None:
        value = self._value(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise Unavailable(f"{self._where}: {key} must be an object.")
        return JsonValues(value, f"{self._where}, {key}")

    def text(self, key: str) -> str:
        value = self._value(key)
        if not isinstance(value, str):
            raise Unavailable(f"{self._where}: {key} must be a string.")
        return value

    def _value(self, key: str) -> Any:
        if key not in self.values:
            raise Unavailable(f"{self._where}: has no {key!r}. The run was made by a version that did not write it.")
        return self.values[key]

    def _checked(self, key: str, check: Callable[[Any], Value]) -> Value:
        try:
            return check(self._value(key))
        except InvalidParameter as error:
            raise Unavailable(f"{self._where}: {error}") from None


def _in_reach(value: float) -> float:
    if not abs(value) < LARGEST:
        raise InvalidParameter(f"{value:g}: must be below {LARGEST:g}.")
    return value


def json_object(text: str, where: str) -> Mapping[str, Any]:
    try:
        record = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"{where}: is not JSON ({str(error)[:100]}).") from None
    if not isinstance(record, dict):
        raise Unavailable(f"{where}: is not a JSON object.")
    return record


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def published_from(record: JsonValues) -> PublishedLine:
    return PublishedLine(
        round=record.whole("round"),
        test_accuracy=record.real_or_none("test_accuracy"),
        epsilon=record.real_or_none("epsilon"),
        clip_norm=record.real_or_none("clip_norm"),
        aborted="aborted" in record.values,
        uplink_megabytes=record.real_or_none("uplink_megabytes") if record.held("uplink_megabytes") else None,
    )


def round_from(record: JsonValues) -> RoundLine:
    noise = record.inner("noise")
    aborted = record.values.get("aborted") is not None
    return RoundLine(
        round=record.whole("round"),
        cohort=record.whole("cohort"),
        participants=record.whole("participants"),
        arrived=record.whole("arrived"),
        largest_norm=None if record.values.get("largest_norm") is None else record.size("largest_norm"),
        divisor=record.real_or_none("divisor"),
        noise=None if noise is None else _noise_from(noise),
        aborted=aborted,
        noise_known=record.flag("noise_known") if "noise_known" in record.values else True,
        members=record.text("members") if record.held("members") else None,
        counted=record.whole("counted") if record.held("counted") else None,
        clipped=record.whole("clipped") if record.held("clipped") else None,
        longest_added=record.size("longest_added") if record.held("longest_added") else None,
        probes=_probes_from(record.inner("probes")) if record.held("probes") else None,
        chosen=_chosen_from(record.inner("map")) if record.held("map") else None,
        uplink_bytes=record.whole("uplink_bytes") if record.held("uplink_bytes") else None,
    )


def _probes_from(record: JsonValues | None) -> Probes:
    assert record is not None
    return Probes(
        added=record.exact("added") if record.held("added") else None,
        summed=record.exact("summed"),
        bits=record.whole("bits") if record.held("bits") else None,
        filled=record.real("filled") if record.held("filled") else 0.0,
        released=record.real("released"),
        moved=record.real("moved"),
        before=record.real("before"),
        before_norm=record.size("before_norm"),
        after=record.real("after"),
    )


def _chosen_from(record: JsonValues | None) -> Chosen:
    assert record is not None
    return Chosen(samples=record.text("samples"), kept=record.whole("kept"), shown=record.text("shown"))


def _noise_from(record: JsonValues) -> SumNoise:
    return SumNoise(
        mean_square=record.size("mean_square"),
        entries=record.whole("entries"),
        draws=record.whole("draws"),
        digest=record.text("digest"),
        largest=record.size("largest") if record.held("largest") else None,
        correlation=record.size("correlation") if record.held("correlation") else None,
        probe=record.exact("probe") if record.held("probe") else None,
    )


def seen_from(record: JsonValues) -> CanaryLine:
    return CanaryLine(
        round=record.whole("round"),
        canary=record.whole("canary"),
        present=record.flag("present"),
        score=record.real("score"),
        norm=record.size("norm"),
    )
