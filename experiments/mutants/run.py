"""Random mutants of accounting/, each run against the tests of its module.

    python experiments/mutants/run.py --mutants 600 --seed 1 --out /tmp/mutants.jsonl

A mutant has one change at one place of the syntax tree: < replaced by <= or >, + by -, * by /, `and` by `or`, min by
max, a condition negated, a number changed, a Boolean inverted, a keyword argument or a call removed, or a returned
value replaced. Docstrings, annotations, assertions, `raise` statements, decorators, silenced warnings and texts are
unchanged. Places are drawn at random over all modules, at least --least in each.

One process loads numpy, scipy, dp-accounting and pytest; each mutant is a fork of it that loads `accounting` with the
changed module and runs the module's tests (TESTS, else tests/accounting/test_MODULE.py) until the first failure. The
quickest tests come first, up to --tests seconds in all; tests of more than --most seconds are omitted. "killed": a test
failed, an import failed, or a test hangs (takes --hang times its usual time). "survived": all tests passed; omitted
tests might have failed.

    python experiments/mutants/run.py --again /tmp/mutants.jsonl --tests 40 --most 20 --out /tmp/again.jsonl

A second stage for survivors of the first: it runs all tests of the module's files, then those of every module that
imports it, directly or indirectly, quickest first, up to --tests seconds. "killed by wider tests": one of them failed.
The stage requires an unchanged `accounting/`; tests may be newer.

mutmut and cosmic-ray are not used: mutmut changes neither decorated functions, nor properties, nor code outside
functions, and first runs the whole suite under its tracer; cosmic-ray starts an interpreter for every mutant, which
takes three seconds of imports.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.util
import itertools
import json
import math
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = {
    "accountant": ["test_accountant", "test_ends_of_domains"],
    "adjacency": ["test_gaussian", "test_mechanisms", "test_budget"],
    "attacks": ["test_attacks", "test_lower_bound", "test_ends_of_domains"],
    "bernoulli_sum": ["test_bernoulli_sum", "test_coin_pairs"],
    "coin_cells": ["test_coin_cells", "test_bernoulli"],
    "coin_laws": ["test_coin_laws", "test_bernoulli_sum", "test_coin_cells"],
    "coin_sums": ["test_coin_sums", "test_bernoulli_sum"],
    "coins": ["test_mechanisms", "test_coins", "test_bernoulli"],
    "durable": ["test_ledger", "test_ledger_growth"],
    "entries": ["test_ledger", "test_ledger_growth"],
    "fed_smp": ["test_golden"],
    "hash_chain": ["test_ledger", "test_ledger_growth"],
    "debias": ["test_debias", "test_number_types"],
    "fixed_size": ["test_fixed_size", "test_number_types"],
    "ledger": ["test_ledger", "test_ledger_growth", "test_project"],
    "mechanisms": ["test_mechanisms", "test_ends_of_domains"],
    "project": ["test_project", "test_ledger_growth"],
    "loss_grid": ["test_pld", "test_ends_of_domains"],
    "majorant": ["test_majorant", "test_coin_cells", "test_bernoulli"],
    "pld": ["test_pld", "test_ends_of_domains"],
    "poisson": ["test_poisson", "test_pld", "test_number_types"],
    "profiles": ["test_profiles", "test_ends_of_domains"],
    "subsampling": ["test_subsampling", "test_number_types"],
    "round_settings": ["test_poisson_rdp", "test_fixed_size_rdp"],
    "require": ["test_mechanisms", "test_gaussian", "test_budget", "test_ledger"],
}
LOADED = [
    "dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp", "hypothesis", "mpmath", "pytest", "scipy.fft",
    "scipy.integrate", "scipy.optimize", "scipy.special", "scipy.stats",
]  # fmt: skip
NOT_MUTATED = {"__init__", "errors"}
TURNED = {
    ast.Lt: [ast.LtE, ast.Gt], ast.LtE: [ast.Lt, ast.GtE], ast.Gt: [ast.GtE, ast.Lt], ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In], ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div], ast.Div: [ast.Mult],
    ast.Pow: [ast.Mult], ast.FloorDiv: [ast.Div], ast.Mod: [ast.Mult], ast.And: [ast.Or], ast.Or: [ast.And],
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "ceil": "floor", "floor": "ceil", "minimum": "maximum", "maximum": "minimum",
         "log1p": "log", "expm1": "exp", "any": "all", "all": "any"}  # fmt: skip


def changes(tree: ast.Module) -> Iterator[tuple[int, str, ast.Module]]:
    """Yield every mutant of a module: line, description of the change, and a function that returns the changed tree."""
    nodes = [node for node in ast.walk(tree) if hasattr(node, "lineno") or isinstance(node, ast.arguments)]
    skipped = set(map(id, _left_alone(tree)))
    for index, node in enumerate(nodes):
        if id(node) in skipped:
            continue
        for number, words in enumerate(_words(node)):
            yield getattr(node, "lineno", 0), words, (index, number)


def mutated(source: str, place: tuple[int, int]) -> ast.Module:
    """Return the tree of a module with one change."""
    tree = ast.parse(source)
    nodes = [node for node in ast.walk(tree) if hasattr(node, "lineno") or isinstance(node, ast.arguments)]
    node, number = nodes[place[0]], place[1]
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, _changed(node, number))
            elif isinstance(value, list) and any(one is node for one in value):
                setattr(parent, name, [_changed(node, number) if one is node else one for one in value])
    return ast.fix_missing_locations(tree)


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


class Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loader of one module of accounting from a changed tree."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name, self.tree = name, tree

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        return importlib.util.spec_from_loader(name, self, origin=str(ROOT / (name.replace(".", "/") + ".py")))

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(compile(self.tree, module.__spec__.origin, "exec"), module.__dict__)


def tests_of(module: str) -> list[str]:
    return [f"tests/accounting/{name}.py" for name in TESTS.get(module, [f"test_{module}"])]


def wider_tests_of(module: str, sources: dict[str, str]) -> list[str]:
    """Return the tests of the module, then those of all modules that import it."""
    imported = {name: set(_imports(ast.parse(source))) for name, source in sources.items()}
    users = [module]
    for user in users:
        users += [name for name, names in imported.items() if user in names and name not in {*users, "__init__"}]
    files = dict.fromkeys(file for user in users for file in tests_of(user))
    return [file for file in files if Path(file).exists()]


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "accounting":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("accounting."):
            yield node.module.removeprefix("accounting.")


class Measuring:
    """Pytest plugin that writes the processor seconds of each test to a file; infinite above `most`."""

    def __init__(self, most: float, report: Path) -> None:
        self.most, self.report = most, report
        self.took: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        signal.signal(signal.SIGPROF, too_slow)
        signal.setitimer(signal.ITIMER_PROF, self.most)
        began = time.process_time()
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self.took[item.nodeid] = max(self.took.get(item.nodeid, 0.0), time.process_time() - began)

    def pytest_runtest_makereport(self, item, call) -> None:
        if call.excinfo is not None:
            self.took[item.nodeid] = math.inf

    def pytest_sessionfinish(self) -> None:
        self.report.write_text(json.dumps(self.took))


class TooSlow(BaseException):
    """Exception for a timeout that no test catches."""


def too_slow(*_: object) -> None:
    raise TooSlow


class Quickest:
    """Pytest plugin that orders tests: the `first` files, then by speed, up to `seconds` in all."""

    def __init__(self, seconds: float, took: dict[str, float], first: list[str], failed: Path) -> None:
        self.seconds, self.took, self.first, self.failed = seconds, took, first, failed
        failed.write_text("")

    def pytest_collection_modifyitems(self, items: list) -> None:
        items.sort(key=self._order)
        ends = list(itertools.accumulate(self.took.get(item.nodeid, math.inf) for item in items))
        items[:] = [item for item, end in zip(items, ends, strict=True) if end <= self.seconds]

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.failed.write_text(report.nodeid)

    def _order(self, item) -> tuple[bool, bool, float]:
        seconds = self.took.get(item.nodeid, math.inf)
        return math.isinf(seconds), item.nodeid.split("::")[0] not in self.first, seconds


def in_a_fork(module: str, tree: ast.Module | None, plugin: object, cpu: int, files: list[str]) -> tuple[bool, float]:
    """Return True if a test failed, and the processor seconds."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        if tree is not None:
            sys.meta_path.insert(0, Changed(f"accounting.{module}", tree))
        import pytest

        options = [
            "-x",
            "-q",
            "--assert=plain",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=--import-mode=importlib",
        ]
        with contextlib.suppress(BaseException):
            os._exit(int(pytest.main([*options, *files], plugins=[plugin])))
        os._exit(1)
    _, status, used = os.wait4(child, 0)
    return status != 0, used.ru_utime + used.ru_stime


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mutants", type=int, default=600)
    options.add_argument("--least", type=int, default=5)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--tests", type=float, default=10.0)
    options.add_argument("--most", type=float, default=2.0)
    options.add_argument("--hang", type=int, default=5)
    options.add_argument("--only", nargs="*", default=[])
    options.add_argument("--again", type=Path, help="the survivors of this file, against wider tests")
    options.add_argument("--out", type=Path, default=Path("/tmp/mutants.jsonl"))
    given = options.parse_args()
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    for name in LOADED:  # forks share these modules
        importlib.import_module(name)

    sources = {path.stem: path.read_text() for path in sorted(Path("accounting").glob("*.py"))}
    drawn = survivors(given.again) if given.again else draw(sources, given)
    done = given.out.read_text().splitlines() if given.out.exists() else []
    known = {(line["module"], *line["place"]) for line in map(json.loads, done)}
    killed = "killed by wider tests" if given.again else "killed"
    with open(given.out, "a") as out:
        for module, line, words, place in drawn:
            if (module, *place) in known or (given.only and module not in given.only):
                continue
            files = wider_tests_of(module, sources) if given.again else tests_of(module)
            took = {test: seconds for file in files for test, seconds in durations(file, given).items()}
            plugin = Quickest(given.tests, took, tests_of(module), given.out.with_suffix(".failed"))
            cpu = int(given.hang * min(given.tests, sum(filter(math.isfinite, took.values()))) + 15)
            began = time.perf_counter()
            failed, used = in_a_fork(module, mutated(sources[module], place), plugin, cpu, files)
            code = sources[module].splitlines()[line - 1].strip()
            record = {"module": module, "line": line, "what": words, "place": place, "code": code}
            record |= {"outcome": killed if failed else "survived", "by": plugin.failed.read_text()}
            record |= {"cpu": round(used, 2)}
            out.write(json.dumps(record | {"wall": round(time.perf_counter() - began, 1)}) + "\n")
            out.flush()
    return 0


def survivors(path: Path) -> list:
    records = map(json.loads, path.read_text().splitlines())
    return [(one["module"], one["line"], one["what"], one["place"]) for one in records if one["outcome"] == "survived"]


def durations(file: str, given: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of each test of an unchanged file, cached for the next start."""
    report = given.out.with_suffix(f".{Path(file).stem}.json")
    if not report.exists():
        in_a_fork("", None, Measuring(given.most, report), 1200, [file])
        if not any(map(math.isfinite, json.loads(report.read_text()).values())):
            raise SystemExit(f"no test of {file} passes without a change in {given.most} s")
    return json.loads(report.read_text())


def draw(sources: dict[str, str], given: argparse.Namespace) -> list:
    """Return the mutants to run in random order, with a minimum per module."""
    generator = random.Random(given.seed)
    places = {
        module: [(module, *change) for change in changes(ast.parse(source))]
        for module, source in sources.items()
        if module not in NOT_MUTATED and (not given.only or module in given.only)
    }
    drawn, rest = [], []
    for found in places.values():
        generator.shuffle(found)
        drawn += found[: given.least]
        rest += found[given.least :]
    drawn += generator.sample(rest, min(len(rest), max(given.mutants - len(drawn), 0)))
    generator.shuffle(drawn)
    print(f"{sum(map(len, places.values()))} mutants in {len(places)} modules, {len(drawn)} of them drawn")
    return drawn


if __name__ == "__main__":
    sys.exit(main())
