"""Mutants: one change at one place of a function of accounting/ or dpfed/, drawn by file and operator.

< is replaced by <= or >, + by -, * by /, `and` by `or`, min by max; a condition is negated, a number moved, a Boolean
inverted, a keyword argument or a call removed, a returned value replaced by None. Docstrings, annotations, assertions,
`raise` statements, decorators and texts are unchanged, as is what runs when a module is imported.
"""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.util
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TURNED = {
    ast.Lt: [ast.LtE, ast.Gt], ast.LtE: [ast.Lt, ast.GtE], ast.Gt: [ast.GtE, ast.Lt], ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In], ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div], ast.Div: [ast.Mult],
    ast.Pow: [ast.Mult], ast.FloorDiv: [ast.Div], ast.Mod: [ast.Mult], ast.And: [ast.Or], ast.Or: [ast.And],
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "ceil": "floor", "floor": "ceil", "minimum": "maximum", "maximum": "minimum",
         "log1p": "log", "expm1": "exp", "any": "all", "all": "any"}  # fmt: skip
NOT_MUTATED = ("dpfed/engines/", "dpfed/audit/others/")  # the quick tests do not have what they run with


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change: `code` is the statement's text before it, `nth` counts what is the same in the file."""

    file: str
    where: str
    code: str
    what: str
    nth: int

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")


@dataclass(frozen=True)
class Place:
    """Where a mutant is in a tree: the node, its statement, and which of the node's changes."""

    node: ast.AST
    statement: ast.stmt
    number: int


def places(file: str, tree: ast.Module) -> Iterator[tuple[Mutant, Place]]:
    """Yield every mutant of a file."""
    seen: dict[tuple[str, ...], int] = {}
    skipped = set(map(id, _left_alone(tree)))
    for where, statement, node in _inside(tree):
        if id(node) in skipped:
            continue
        code = ast.unparse(statement).partition("\n")[0][:200]
        for number, what in enumerate(_words(node)):
            nth = seen.get((where, code, what), 0)
            seen[where, code, what] = nth + 1
            yield Mutant(file=file, where=where, code=code, what=what, nth=nth), Place(node, statement, number)


def drawn(count: int, seed: int) -> list[Mutant]:
    """Draw mutants, half from each package, one a file: files by their number of places, then the kind of change."""
    generator, found = random.Random(seed), []
    for package in ("accounting", "dpfed"):
        files = {}
        for path in sorted((ROOT / package).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if not name.startswith(NOT_MUTATED):
                files[name] = [mutant for mutant, _ in places(name, ast.parse(path.read_text()))]
        for _ in range(count // 2):
            name = generator.choices(list(files), [len(of_file) for of_file in files.values()])[0]
            kinds: dict[str, list[Mutant]] = {}
            for mutant in files.pop(name):
                kinds.setdefault(mutant.what.split()[-1], []).append(mutant)
            found.append(generator.choice(kinds[generator.choice(sorted(kinds))]))
    return found


def changed(mutants: list[Mutant], change: Callable[[ast.Module, int, Place], None]) -> dict[str, ast.Module]:
    """Return the trees of the mutants' modules after `change(tree, number of the mutant, its place)`."""
    trees = {one.file: ast.parse((ROOT / one.file).read_text()) for one in mutants if (ROOT / one.file).exists()}
    found = {file: dict(places(file, tree)) for file, tree in trees.items()}
    for number, mutant in enumerate(mutants):
        if place := found.get(mutant.file, {}).get(mutant):
            change(trees[mutant.file], number, place)
    return {file: ast.fix_missing_locations(tree) for file, tree in trees.items()}


def is_there(mutant: Mutant) -> bool:
    """Return whether the file still has the statement."""
    path = ROOT / mutant.file
    return path.exists() and mutant in dict(places(mutant.file, ast.parse(path.read_text())))


def mutate(tree: ast.Module, _: int, place: Place) -> None:
    """Make the change."""
    _replace(tree, place.node, _changed(place.node, place.number))


def report(tree: ast.Module, number: int, place: Place) -> None:
    """Call `__reached__(number)` before the statement."""
    probe = ast.Expr(ast.Call(ast.Name("__reached__", ast.Load()), [ast.Constant(number)], []))
    for parent in ast.walk(tree):
        for body in (getattr(parent, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(body, list) and any(one is place.statement for one in body):
                body.insert([one is place.statement for one in body].index(True), probe)
                return


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finder and loader of modules from changed trees."""

    def __init__(self, trees: dict[str, ast.Module]) -> None:
        self.trees = {file.removesuffix(".py").replace("/", "."): tree for file, tree in trees.items()}

    def find_spec(self, name, path, target=None):
        if name not in self.trees:
            return None
        return importlib.util.spec_from_file_location(name, ROOT / (name.replace(".", "/") + ".py"), loader=self)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.trees[module.__name__], module.__spec__.origin, "exec", dont_inherit=True), module.__dict__)


def _inside(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, ast.AST]]:
    """Yield the nodes in bodies of functions, with the function's name and the nearest statement."""

    def walk(node: ast.AST, where: str, statement: ast.stmt | None, inside: bool) -> Iterator:
        if inside and statement is not None:
            yield where, statement, node
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST):
                    continue
                named = isinstance(node, ast.FunctionDef | ast.ClassDef)
                below = f"{where}.{node.name}" if named and name == "body" else where
                within = inside or (isinstance(node, ast.FunctionDef) and name == "body")
                yield from walk(child, below, child if isinstance(child, ast.stmt) else statement, within)

    yield from walk(tree, "", None, False)


def _left_alone(tree: ast.Module) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
            yield from ast.walk(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "errstate":
            yield from ast.walk(node)
        for decorator in getattr(node, "decorator_list", []):
            yield from ast.walk(decorator)
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if annotation is not None:
                yield from ast.walk(annotation)


def _words(node: ast.AST) -> list[str]:
    match node:
        case ast.Compare(ops=[op]) | ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            return [f"{type(op).__name__} -> {new.__name__}" for new in TURNED.get(type(op), [])]
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            return [f"{type(node.op).__name__} dropped"]
        case ast.Constant(value=bool()):
            return [f"{node.value} turned"]
        case ast.Constant(value=int() | float()):
            return [f"{node.value} moved"]
        case ast.If() | ast.IfExp() | ast.While():
            return ["condition negated"]
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return ["None returned"]
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in NAMES:
            return [f"{name} -> {NAMES[name]}"]
        case ast.Call(keywords=[*keywords]) if keywords:
            return [f"{keyword.arg} dropped" for keyword in keywords if keyword.arg]
        case ast.Expr(value=ast.Call()):
            return ["call dropped"]
    return []


def _changed(node: ast.AST, number: int) -> ast.AST:
    new = copy.deepcopy(node)
    match new:
        case ast.Compare():
            new.ops = [TURNED[type(node.ops[0])][number]()]
        case ast.BinOp() | ast.BoolOp() | ast.AugAssign():
            new.op = TURNED[type(node.op)][number]()
        case ast.UnaryOp():
            return new.operand
        case ast.Constant(value=bool()):
            new.value = not new.value
        case ast.Constant(value=int()):
            new.value += 1
        case ast.Constant():
            new.value = new.value * 2 if new.value else 1.0
        case ast.If() | ast.IfExp() | ast.While():
            new.test = ast.UnaryOp(op=ast.Not(), operand=new.test)
        case ast.Return():
            new.value = ast.Constant(value=None)
        case ast.Name():
            new.id = NAMES[new.id]
        case ast.Attribute():
            new.attr = NAMES[new.attr]
        case ast.Call():
            named = [keyword for keyword in new.keywords if keyword.arg]
            new.keywords.remove(named[number])
        case ast.Expr():
            return ast.Pass()
    return new


def _replace(tree: ast.Module, node: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(one is node for one in value):
                setattr(parent, name, [new if one is node else one for one in value])


def read(path: Path) -> list[Mutant]:
    """Read the mutants of a file."""
    return [Mutant(**one) for one in json.loads(path.read_text())]
