"""Pytest plugin: in place of running tests, shows each mutant to the tests that reach it, in forks of one process.

MUTANTS names the file with the mutants, REACHED what reaching.py wrote, KILLED the file with a line for each, FIRST
(optional) an earlier such file, whose killers are tried first. Tests come in order of nearness to the mutant's file,
then of speed, up to SECONDS in all.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import resource
import signal
import types
from pathlib import Path

import mutants
import pytest
from _pytest.runner import runtestprotocol

_HANG = 3  # times the usual processor time, and 10 s


def pytest_runtestloop(session) -> bool:
    """Run the mutants."""
    if session.testsfailed:
        raise session.Failed(f"{session.testsfailed} files were not collected")
    for package in ("accounting", "dpfed"):
        for path in sorted((mutants.ROOT / package).rglob("*.py")):
            left_out = path.stem == "__main__" or str(path.relative_to(mutants.ROOT)).startswith(mutants.NOT_MUTATED)
            if not left_out:
                importlib.import_module(str(path.relative_to(mutants.ROOT).with_suffix("")).replace("/", "."))
    gc.unfreeze()  # tests/conftest.py freezes what collection made, and `swap` looks for functions among all objects
    items = {item.nodeid: item for item in session.items}
    lines = [json.loads(line) for path in Path(os.environ["REACHED"]).glob("*.jsonl") for line in _lines(path)]
    tests = {one["test"]: one for one in lines if one.get("test") in items and one["passed"]}
    all_mutants = mutants.read(Path(os.environ["MUTANTS"]))
    before = _killers(Path(os.environ["FIRST"])) if "FIRST" in os.environ else {}
    out = Path(os.environ["KILLED"])
    done = {json.loads(line)["number"] for line in _lines(out)} if out.exists() else set()
    for number, mutant in enumerate(all_mutants):
        if number in done:
            continue
        outcome, by, shown = "gone", "", []
        if mutants.is_there(mutant):
            reaching = [one for one in tests.values() if number in one["reached"]]
            shown = _chosen(mutant, reaching, before.get(number), float(os.environ.get("SECONDS", "40")))
            outcome, by = _in_a_fork(mutant, [items[one["test"]] for one in shown], sum(map(_cost, shown)))
            if not by:
                outcome = "nothing shown: the change could not be made" if shown else "not reached"
            elif outcome == "killed" and _in_a_fork(None, [items[by]], 30)[0] == "killed":
                outcome = "nothing shown: the test fails without a change"
        with out.open("a") as file:
            file.write(json.dumps({"number": number, "outcome": outcome, "by": by, "tests": len(shown)}) + "\n")
        print(number, mutant.file, mutant.what, outcome, by, flush=True)
    return True


def _killers(path: Path) -> dict[int, str]:
    return {line["number"]: line["by"] for line in map(json.loads, _lines(path))}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()  # a file that is left open is a failure of the next test


def _cost(test: dict) -> float:
    return sum(test.get(phase, 0.0) for phase in ("setup", "call", "teardown"))


def _in_common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def _chosen(mutant: mutants.Mutant, reaching: list[dict], first: str | None, seconds: float) -> list[dict]:
    own = Path(mutant.file).parts[:-1]

    def order(test: dict) -> tuple[bool, int, float]:
        parts = Path(test["test"].partition("::")[0]).parts[1:-1]
        return test["test"] != first, -_in_common(own, parts), _cost(test)

    chosen, total = [], 0.0
    for test in sorted(reaching, key=order):
        if total + _cost(test) <= seconds:
            chosen.append(test)
            total += _cost(test)
    return chosen


def _in_a_fork(mutant: mutants.Mutant | None, items: list[pytest.Item], usual: float) -> tuple[str, str]:
    """Return whether a test failed, and which."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            _show(mutant, items, usual, writing)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        names = pipe.read().split("\n")
    _, status = os.waitpid(child, 0)
    return ("survived" if names[-1] == "all passed" and not status else "killed"), next(
        (name for name in reversed(names) if "::" in name), ""
    )


def _show(mutant: mutants.Mutant | None, items: list[pytest.Item], usual: float, writing: int) -> None:
    cpu = int(_HANG * usual + 10)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    signal.alarm(6 * cpu)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    if mutant is not None:
        swap(mutant)
    for item, following in zip(items, [*items[1:], None], strict=True):
        os.write(writing, f"{item.nodeid}\n".encode())
        if any(report.failed for report in runtestprotocol(item, nextitem=following, log=False)):
            os._exit(1)
    os.write(writing, b"all passed")


def swap(mutant: mutants.Mutant) -> None:
    """Give the function that holds the mutant its changed code, wherever it is referred to."""
    old = _functions_of(compile((mutants.ROOT / mutant.file).read_text(), mutant.file, "exec", dont_inherit=True))
    tree = mutants.changed([mutant], mutants.mutate)[mutant.file]
    new = _functions_of(compile(tree, mutant.file, "exec", dont_inherit=True))
    changed = {place: new[place] for place, code in old.items() if code != new[place]}
    assert len(changed) == 1, changed
    end = f"/{mutant.file}"
    found = 0
    for function in gc.get_objects():
        if type(function) is types.FunctionType and function.__code__.co_filename.endswith(end):
            code = function.__code__
            if new_code := changed.get((code.co_qualname, code.co_firstlineno)):
                function.__code__ = new_code.replace(co_filename=code.co_filename)
                found += 1
    assert found, mutant


def _functions_of(module: types.CodeType) -> dict[tuple[str, int], types.CodeType]:
    """Return the code of functions of a module and its classes, not of functions inside functions."""
    found = {}
    for code in module.co_consts:
        if isinstance(code, types.CodeType) and code.co_flags & 0x2:  # a function's, not a class's
            found[code.co_qualname, code.co_firstlineno] = code
        elif isinstance(code, types.CodeType):
            found |= _functions_of(code)
    return found
