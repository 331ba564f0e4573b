"""Options of plans: dataclass fields with a help text, and the class that a flat list of them describes.

Each kind of sampling and of mechanism is a class with its own fields. `dpfed budget`, the planner's form, plan files
and `Plan(clients=6000, cohort=100, ...)` name the same fields in one flat list.
"""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, get_type_hints

from accounting import require
from accounting.errors import InvalidParameter

Written = Callable[..., str]
"""Function (name of an option[, value]) -> both as a user writes them, for messages."""


def as_keyword(name: str, *value: object) -> str:
    """Return an option as an argument in Python."""
    return f"{name}={require.shown(value[0])}" if value else name


def option(text: str, default: Any = MISSING, *, alias: str | None = None) -> Any:
    """Declare a dataclass field that is a command-line option too, with this help text and an old name."""
    return field(default=default, metadata={"help": text, "alias": alias})


@dataclass(frozen=True, kw_only=True)
class Option:
    """Option of the command line: type of the values, default (None without one), help text and old name."""

    hint: object
    default: object
    help: str
    alias: str | None = None


def options_of(classes: Iterable[type]) -> dict[str, Option]:
    """Return the options of these classes by name, each from the first class that has it."""
    found: dict[str, Option] = {}
    for one in classes:
        hints = get_type_hints(one)
        for each in fields(one):
            if "help" in each.metadata and each.name not in found:
                default = None if each.default is MISSING else each.default
                found[each.name] = Option(
                    hint=hints[each.name],
                    default=default,
                    help=each.metadata["help"],
                    alias=each.metadata.get("alias"),
                )
    return found


def part_of(chosen: type, word: str, options: dict[str, object], *, written: Written) -> Any:
    """Return an object of the chosen class, or the chosen object with changes, by those options that are its fields.

    These options are removed from `options`. Errors: InvalidParameter for a field that is missing, named with `word`.
    """
    known = fields(chosen)
    taken = {each.name: options.pop(each.name) for each in known if each.name in options}
    if not isinstance(chosen, type):
        return replace(chosen, **taken)
    for each in known:
        if each.default is MISSING and taken.get(each.name) is None:
            raise InvalidParameter(f"{written(each.name)} is missing: {word} needs it.")
    return chosen(**taken)
