"""Options of plans: dataclass fields with a help text, and construction of objects from a flat list of options.

Each kind of sampling and of mechanism is a class with its own fields. `dpfed budget`, the planner's form, plan files
and `Plan(clients=6000, cohort=100, ...)` name these fields in one flat list.
"""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, get_type_hints

from accounting import require
from accounting.errors import InvalidParameter

OptionFormat = Callable[..., str]
"""Function (name of an option[, value]) -> the option as the user writes it, for error messages."""


def as_keyword(name: str, *value: object) -> str:
    """Format an option as a Python keyword argument."""
    return f"{name}={require.short_repr(value[0])}" if value else name


def option(text: str, default: object = MISSING, *, alias: str | None = None) -> Any:
    """Declare a dataclass field that is also a command-line option. text: its help text; alias: its old name."""
    return field(default=default, metadata={"help": text, "alias": alias})


@dataclass(frozen=True, kw_only=True)
class Option:
    """Command-line option: type, default (None if it has no default), help text and old name."""

    hint: object
    default: object
    help: str
    alias: str | None = None


def options_of(classes: Iterable[type]) -> dict[str, Option]:
    """Return the options of these classes by name. Of equal names the first class counts."""
    found: dict[str, Option] = {}
    for one in classes:
        hints = get_type_hints(one)
        for each in fields(one):
            if "help" in each.metadata and each.name not in found:
                default = None if each.default is MISSING else each.default
                found[each.name] = Option(hint=hints[each.name], default=default, **each.metadata)
    return found


def object_from_options(chosen: type, word: str, options: dict[str, object], *, written: OptionFormat) -> Any:
    """Return an object of the class `chosen`, or the object `chosen` with changed fields, from those options that are
    its fields.

    These options are removed from `options`. word: the choice that needs the fields, for messages. Errors:
    InvalidParameter for a missing field.
    """
    known = fields(chosen)
    field_values = {each.name: options.pop(each.name) for each in known if each.name in options}
    if not isinstance(chosen, type):
        return replace(chosen, **field_values)
    for each in known:
        if each.default is MISSING and field_values.get(each.name) is None:
            raise InvalidParameter(f"{written(each.name)} is missing: {word} needs it.")
    return chosen(**field_values)
