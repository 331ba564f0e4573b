"""Reading of records: JSON objects of untrusted files, validated key by key against the fields of a class."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from accounting.ledger.regular_file import LARGEST_LINES, open_input, read_text
from dpfed.errors import RunError

LONGEST_LINE = 2**24
"""Largest number of bytes of a line in a JSON-lines file; a parsed line takes several times its length in memory."""

LARGEST = 1e100
"""Bound on the magnitude of a number in a record; squares of larger numbers could overflow."""

Count = Annotated[int, Field(strict=True, ge=0, lt=1 << 64)]
Real = Annotated[float, Field(strict=True, gt=-LARGEST, lt=LARGEST)]
Size = Annotated[float, Field(strict=True, ge=0, lt=LARGEST)]
Exact = Annotated[int, Field(strict=True, gt=-(1 << 64), lt=1 << 64)] | Real
"""Integer of up to 64 bits, not rounded to a float, or a real number."""
Flag = Annotated[bool, Field(strict=True)]
Word = Annotated[str, Field(strict=True, max_length=1000)]
Text = Annotated[str, Field(strict=True)]
Texts = Annotated[tuple[Text, ...], Field(fail_fast=True)]
"""Texts that are validated up to the first error only, so that errors need no more memory than the file."""

SCORES = ("test_", "best_test_", "last_test_", "validation_")
"""Prefixes of the keys of scores, such as test_accuracy, test_loss, and test_NAME of a user-defined metric."""

_MOST_SCORES = 1000

Kind = TypeVar("Kind")


class Unavailable(RunError):
    """Missing or unreadable evidence; the message names the file."""


class InvalidRecord(Unavailable):
    """A value that no version of this package writes; the message names file, line and key."""


class RoundLine(Protocol):
    """Record of a round in a JSON-lines file."""

    @property
    def round(self) -> int:
        """Number of the round, counted from 1."""

    def to_dict(self) -> Mapping[str, object]:
        """Return the JSON object of this line."""


RoundLineKind = TypeVar("RoundLineKind", bound=RoundLine)


def validated_record(kind: type[Kind], values: Mapping[str, object], where: str) -> Kind:
    """Return an instance of the dataclass `kind` with these values; keys that are no fields of `kind` are ignored.

    Values whose key has a prefix in `SCORES` are collected in the field `scores`, if `kind` has it.

    where: file and line, for error messages
    """
    scores = scores_of(values)
    if len(scores) > _MOST_SCORES:
        raise InvalidRecord(f"{where}: has {len(scores)} scores, must have at most {_MOST_SCORES}.")
    try:
        return _cached_validator(kind).validate_python({**values, "scores": scores})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        parts = [str(part) for part in first["loc"] if part != "scores"]
        key = ".".join(part for part in parts if part.isidentifier() or part.isdecimal())[:100]
        if first["type"] == "missing":
            raise Unavailable(
                f"{where}: has no {key!r}. The run was made by a version that did not write it."
            ) from None
        words = first["msg"].replace("Input should", "must").replace("valid tuple", "list")
        words = re.sub("dictionary or an instance of .*", "JSON object", words)
        words = re.sub("1[0-9]{99,}", f"{LARGEST:g}", words)
        raise InvalidRecord(f"{where}, {key}: {words}.") from None


_ADAPTERS: dict[type[object], TypeAdapter[Any]] = {}


def _cached_validator(kind: type[Kind]) -> TypeAdapter[Kind]:
    """Return the cached validator of a class."""
    return _ADAPTERS.setdefault(kind, _ADAPTERS.get(kind) or TypeAdapter(kind))


def scores_of(values: Mapping[str, object]) -> dict[str, object]:
    """Return the scores in a JSON object: the values whose key has a prefix in `SCORES`."""
    return {key: value for key, value in values.items() if key.startswith(SCORES)}


def json_object(text: str, where: str) -> dict[str, object]:
    """Return the JSON object in a text. Raises Unavailable for a text that is not a JSON object."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"{where}: is not JSON ({str(error)[:100]}).") from None
    if not isinstance(found, dict):
        raise InvalidRecord(f"{where}: is not a JSON object.")
    return found


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def text_of_file(file: Path, *, at_most: int) -> str:
    """Return the text of a file. Raises Unavailable if it is not a regular text file of at most `at_most` bytes."""
    try:
        return read_text(file, at_most=at_most)
    except OSError as error:
        raise Unavailable(f"{file.name}: cannot be read ({error.strerror or error}).") from None
    except ValueError as error:
        raise Unavailable(f"{file.name}: is not text ({str(error)[:100]}).") from None


def read_lines(file: Path, kind: type[RoundLineKind], *, running: bool = False) -> list[RoundLineKind]:
    """Return the lines of a JSON-lines file as records of the class `kind`.

    Raises Unavailable if the file cannot be read, or if a line is not a record of this class.

    running: True drops an unfinished last line, left by a crash or a process that is writing; False raises Unavailable
        for it
    """
    found: list[RoundLineKind] = []
    try:
        with open_input(file, at_most=LARGEST_LINES) as lines:
            while line := lines.readline(LONGEST_LINE):
                place = f"{file.name}, line {len(found) + 1}"
                if not line.endswith(b"\n"):
                    if len(line) == LONGEST_LINE:
                        raise Unavailable(f"{place}: has more than {LONGEST_LINE - 1:,} bytes. No run writes that.")
                    if running:
                        break
                    raise Unavailable(f"{place}: was not written to its end.")
                found.append(validated_record(kind, json_object(line.decode(), place), place))
    except OSError as error:
        raise Unavailable(f"{file.name}: cannot be read ({error.strerror or error}).") from None
    except UnicodeDecodeError as error:
        raise Unavailable(f"{file.name}: is not text ({str(error)[:100]}).") from None
    return found
