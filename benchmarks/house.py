"""Figures of the code: size, import cycles, and the functions called in one small run. Prints Markdown.

    python benchmarks/house.py [--root .] [--no-trace]

Code lines are neither blank, nor comments, nor docstrings; docstrings are no statements either. All imports count,
including those in functions and under TYPE_CHECKING. The trace is a two-round run of the preset fed-smp-randk-digits:
functions and files of both packages from the first call to the summary; comprehensions and lambdas are not counted.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tempfile
import tokenize
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

PACKAGES = ("accounting", "dpfed")
OPENERS = re.compile(
    r"^(What|Of|Whether|How|Where|Who|Whom|Whose|As|So|Which|None|Those|That|By|If|With|Without|Such|Its|All that"
    r"|The one that|Until|From)\b"
)
"""First words of a docstring that begins without a noun or a verb."""
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def modules(root: Path) -> dict[str, Path]:
    """Return the files of both packages by module name."""
    files = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    """Yield the docstrings of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else []:
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one


def code_lines(text: str, tree: ast.AST) -> int:
    """Return the number of lines with code."""
    documented = {line for one in docstrings(tree) for line in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    used: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            used |= set(range(token.start[0], token.end[0] + 1))
    return len(used - documented)


def imported(tree: ast.AST, known: Mapping[str, Path]) -> set[str]:
    """Return the modules of both packages that a file imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            deeper = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (deeper & known.keys()) or {node.module}
            found |= {node.module} if deeper - known.keys() else set()
    return found & known.keys()


def circles(graph: Mapping[str, set[str]]) -> list[int]:
    """Return the sizes of the sets of modules that import each other, largest first."""
    left, sizes = {name: set(found) - {name} for name, found in graph.items()}, []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            inside = _reachable_both_ways(left, error.args[1][0])
            sizes.append(len(inside))
            left = {name: found - inside for name, found in left.items() if name not in inside}
        else:
            return sorted(sizes, reverse=True)


def _reachable_both_ways(graph: Mapping[str, set[str]], start: str) -> set[str]:
    backwards: dict[str, set[str]] = {name: set() for name in graph}
    for name, found in graph.items():
        for other in found & graph.keys():
            backwards[other].add(name)
    return _reachable(graph, start) & _reachable(backwards, start)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found, todo = {start}, [start]
    while todo:
        new = (graph[todo.pop()] & graph.keys()) - found
        found |= new
        todo += new
    return found


def figures(root: Path) -> dict[str, Any]:
    """Return the figures of the files below `root`."""
    known, totals, graph = modules(root), dict[str, int](), {}
    for name, path in known.items():
        text = path.read_text()
        tree = ast.parse(text)
        graph[name] = imported(tree, known)
        nodes = list(ast.walk(tree))
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        counts = {
            "code lines": code_lines(text, tree),
            "statements": sum(isinstance(node, ast.stmt) for node in nodes) - len(list(docstrings(tree))),
            "classes with a field noise_multiplier": sum(_has_multiplier(one) for one in classes),
            "Any": sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes),
            "isinstance": sum(getattr(call.func, "id", "") == "isinstance" for call in calls),
            "imports inside functions": sum(
                isinstance(inner, ast.Import | ast.ImportFrom) for one in functions for inner in ast.walk(one)
            ),
            "docstrings that open without a noun or a verb": sum(
                bool(OPENERS.match(one.value.value.strip()))  # type: ignore[attr-defined]  # docstrings are constants
                for one in docstrings(tree)
            ),
        }
        totals = {key: totals.get(key, 0) + count for key, count in counts.items()}
    found = circles(graph)
    return {
        "files": len(known),
        **totals,
        "arguments of dpfed audit": _arguments_of_audit(root),
        "lines of tests": sum(path.read_text().count("\n") for path in (root / "tests").rglob("*.py")),
        "import circles (files in each)": ", ".join(map(str, found)) or "none",
    }


def _arguments_of_audit(root: Path) -> int:
    """Return the number of arguments of `dpfed audit`, without those that its command line does not read."""
    tree = ast.parse((root / "dpfed" / "cli" / "audit.py").read_text())
    command = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "audit_anything")
    given = [*command.args.args, *command.args.kwonlyargs]
    return sum("parse=False" not in ast.unparse(one.annotation) for one in given if one.annotation is not None)


def _has_multiplier(node: ast.ClassDef) -> bool:
    return any(
        isinstance(one, ast.AnnAssign) and getattr(one.target, "id", "") == "noise_multiplier" for one in node.body
    )


def traced(root: Path) -> tuple[int, int]:
    """Return the numbers of files and of functions called in a two-round run of fed-smp-randk-digits."""
    sys.path.insert(0, str(root))
    import dpfed

    inside, seen = tuple(str(root / package) for package in PACKAGES), set()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(inside) and not code.co_name.startswith("<"):
            seen.add((code.co_filename, code.co_firstlineno))

    with tempfile.TemporaryDirectory() as folder:
        dpfed.run("fed-smp-randk-digits", {"federation.rounds": 1}, out=Path(folder) / "first")  # loads all modules
        sys.setprofile(note)
        try:
            dpfed.run("fed-smp-randk-digits", {"federation.rounds": 2}, out=Path(folder) / "run")
        finally:
            sys.setprofile(None)
    return len({file for file, _ in seen}), len(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--no-trace", action="store_true", help="only what the files show")
    chosen = parser.parse_args()
    root = chosen.root.resolve()
    print("| figure | |\n|---|--:|")
    for name, value in figures(root).items():
        print(f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value} |")
    if not chosen.no_trace:
        files, functions = traced(root)
        print(f"| files of a traced two-round run | {files} |\n| functions of a traced two-round run | {functions} |")


if __name__ == "__main__":
    main()
