"""Count what the docstrings of privacy functions state. Prints Markdown.

    python benchmarks/docstrings.py [--missing]

The script counts the names in every `__all__` of `accounting` and in that of `dpfed.audit`, and the mechanisms and
cohorts of `dpfed` (`MECHANISMS`). A part is a label in the text ("Claim:", "Source:", "Shapes:", "Units:", "Errors:",
"Adjacency:", "Direction of error:") or an example that doctest runs. `applicable` returns the parts that a name needs.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints

PARTS = {
    "docstring": r".",
    "claim": r"\bClaim\b[^.:]*:",
    "source": r"\bSource:",
    "shapes": r"\bShapes?:",
    "units": r"\bUnits?:",
    "errors": r"\bErrors:",
    "adjacency": r"\bAdjacency:",
    "direction of error": r"\bDirection of error:",
    "example": r"^\s*>>> ",
}
"""Pattern of each part of a docstring."""

BOUND = ("claim", "source", "errors", "adjacency", "direction of error", "example")
MECHANISM = ("claim", "source", "adjacency", "example")
STATEMENT = ("claim", "direction of error", "example")
FORMULA = ("source", "errors", "example")
STATEMENTS = ("Guarantee", "Budget", "Ledger", "Planned", "Histories", "NoiseSchedule", "Adding")
"""Classes that state an epsilon or a part of one."""
FORMULAS = ("buffered", "column", "inverse", "square_root", "divergence", "worst_divergence")
"""Functions of numbers alone, without neighbours."""
AUDITS = ("audit", "replay", "upload")
"""Functions of `dpfed.audit` with a verdict; all other names of `dpfed.audit` declare inputs for them."""
HELPERS = ("floor_of",)
"""Functions that read or check arguments of bounds and are no bounds themselves."""
MECHANISMS = {
    "dpfed.mechanisms.bernoulli": ("PrivateCoins",),
    "dpfed.mechanisms.correlated": ("Correlated",),
    "dpfed.mechanisms.dithered": ("DitheredNoise",),
    "dpfed.mechanisms.gaussian": ("GaussianNoise",),
    "dpfed.mechanisms.integers": ("IntegerNoise",),
    "accounting.mechanisms.samplings.planned": ("Cohorts",),
}
"""Classes of a run that draw noise or cohorts, by module."""

_LENGTHS = ("clip", "noise_std", "sensitivity", "l2_bound", "variance", "noise_multiplier", "factors", "scale")
"""Ends of the names of parameters that have a unit."""


@dataclass(frozen=True, kw_only=True)
class Name:
    """A public name, its object and the package that exports it."""

    module: str
    name: str
    thing: Any

    @property
    def docstring(self) -> str:
        """Docstring of the object itself, not of its class or of a base class; "" if there is none."""
        if inspect.isclass(self.thing) or inspect.isroutine(self.thing) or inspect.ismodule(self.thing):
            return (
                str(vars(self.thing).get("__doc__") or "") if inspect.isclass(self.thing) else self.thing.__doc__ or ""
            )
        return _docstring_of_constant(self.module, self.name)


def names() -> list[Name]:
    """Return all counted names, each object once."""
    found: dict[int, Name] = {}
    for module in _modules("accounting"):
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            found.setdefault(id(thing), Name(module=module.__name__, name=name, thing=thing))
    audit = importlib.import_module("dpfed.audit")
    for module, offered in {audit.__name__: audit.__all__, **MECHANISMS}.items():
        for name in offered:
            thing = getattr(importlib.import_module(module), name)
            found.setdefault(id(thing), Name(module=module, name=name, thing=thing))
    return list(found.values())


def _modules(package: str) -> Iterator[Any]:
    top = importlib.import_module(package)
    yield top
    for one in pkgutil.walk_packages(top.__path__, f"{package}."):
        yield importlib.import_module(one.name)


def _docstring_of_constant(module: str, name: str) -> str:
    """Return the string after the assignment of a name, in the module that assigns it."""
    body = ast.parse(inspect.getsource(importlib.import_module(module))).body
    body += [line for one in body if isinstance(one, ast.If) for line in one.body]  # imports under TYPE_CHECKING
    for one, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(one, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in one.names):
            return _docstring_of_constant(str(one.module), name)
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            text = after.value if isinstance(after, ast.Expr) else None
            return str(text.value) if isinstance(text, ast.Constant) else ""
    return ""


def applicable(name: Name) -> tuple[str, ...]:
    """Return the parts that this docstring needs.

    Modules, constants, types, protocols, exceptions and a cache of files (`kept`) need only the docstring. Functions
    with a bound need every part. Mechanisms and samplings, as exact descriptions, need no direction of error. All other
    classes, and functions that read descriptions, need an example. Signature and code decide on shapes, units, errors.
    """
    thing, parts = name.thing, ["docstring"]
    is_class = inspect.isclass(thing)
    is_code = _is_more_than_type(thing) if is_class else inspect.isfunction(thing)
    if not is_code or name.name == "kept":
        return tuple(parts)
    parts += _of_kind(name)
    given = {key: str(hint) for key, hint in _annotations(thing).items() if "ClassVar" not in str(hint)}
    if any(re.search(r"ndarray|Array|Floats", hint) for hint in given.values()):
        parts.append("shapes")
    if any(key.endswith(_LENGTHS) for key in given):
        parts.append("units")
    if "errors" not in parts and re.search(r"\braise\b|\brequire\.", _code(thing)):
        parts.append("errors")
    return tuple(parts)


def _of_kind(name: Name) -> tuple[str, ...]:
    thing = name.thing
    if name.name in STATEMENTS:
        return STATEMENT
    if inspect.isclass(thing):
        described = any(isinstance(word := getattr(thing, key, None), str) and word for key in ("kind", "name"))
        return MECHANISM if described or name.module in MECHANISMS else ("example",)
    if name.name in FORMULAS:
        return FORMULA
    if name.module == "dpfed.audit":
        return BOUND if name.name in AUDITS else ("example",)
    reads = thing.__module__ == "accounting.mechanisms.descriptions" or thing.__module__.endswith(
        (".kinds", ".correlated", ".sampling")
    )
    return ("example",) if reads or name.name in HELPERS else BOUND


def _is_more_than_type(thing: type[Any]) -> bool:
    return not issubclass(thing, Exception) and not getattr(thing, "_is_protocol", False)


def _annotations(thing: Any) -> dict[str, Any]:
    try:
        return dict(get_type_hints(thing))
    except NameError:  # a name under TYPE_CHECKING
        return dict(getattr(thing, "__annotations__", {}))


def _code(thing: Any) -> str:
    """Return the code of a function, or of the constructor of a class."""
    if not inspect.isclass(thing):
        return inspect.getsource(thing)
    makers = [
        getattr(thing, key) for key in ("__init__", "__post_init__") if inspect.isfunction(getattr(thing, key, None))
    ]
    return "".join(inspect.getsource(one) for one in makers if one.__code__.co_filename != "<string>")


def has(name: Name, part: str) -> bool:
    """Return True if the docstring of a name has a part."""
    return re.search(PARTS[part], name.docstring, re.MULTILINE) is not None


def counts() -> dict[str, tuple[int, int]]:
    """Return, for each part, the number of names that have it and of those that need it."""
    needs = [(name, applicable(name)) for name in names()]
    return {
        part: (
            sum(part in parts and has(name, part) for name, parts in needs),
            sum(part in parts for _, parts in needs),
        )
        for part in PARTS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true", help="list the names that lack a part")
    chosen = parser.parse_args()
    print("| part | names with it | names that need it | |\n|---|--:|--:|--:|")
    for part, (having, needing) in counts().items():
        print(f"| {part} | {having} | {needing} | {having / needing:.0%} |")
    if chosen.missing:
        for name in names():
            if missing := [part for part in applicable(name) if not has(name, part)]:
                print(f"{name.module}.{name.name}: {', '.join(missing)}")


if __name__ == "__main__":
    main()
