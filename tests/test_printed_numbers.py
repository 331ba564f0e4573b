"""Nobody rounds an epsilon, a delta, a noise or a lower bound by a format of its own: accounting.rounding does."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWNER = ROOT / "accounting" / "rounding.py"
GUARDED = re.compile(r"epsilon|delta|noise|lower_bound|at_least|sigma|overflow", re.IGNORECASE)
HARMLESS = {"", ",", ",d", "d", "s", "r"}
"""Formats that leave a number as it is."""
NEAREST = {"format", "number", "round"}
"""What rounds to nearest when it is called."""


def names(node):
    """Every name, attribute and key in an expression, but not inside what rounds safely."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("upwards", "downwards"):
        return
    match node:
        case ast.Name():
            yield node.id
        case ast.Attribute():
            yield node.attr
        case ast.Constant(value=str()):
            yield node.value
    for child in ast.iter_child_nodes(node):
        yield from names(child)


def guarded(node):
    return any(GUARDED.search(name) for name in names(node))


def printed_with_a_format_of_their_own(source):
    """(line, what is there) of every guarantee that is formatted in place."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FormattedValue(value=value, format_spec=ast.JoinedStr() as spec) if guarded(value):
                if ast.unparse(spec)[2:-1] not in HARMLESS:
                    yield node.lineno, ast.unparse(value)
            case ast.Call(func=ast.Name(id=name), args=args) if name in NEAREST:
                if any(guarded(arg) for arg in args):
                    yield node.lineno, ast.unparse(node)
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str()), attr="format"), args=args, keywords=more):
                if any(guarded(arg) for arg in (*args, *(one.value for one in more))):
                    yield node.lineno, ast.unparse(node)
            case ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod(), right=right) if guarded(right):
                yield node.lineno, ast.unparse(node)
            case ast.Constant(value=str() as text):
                yield from ((node.lineno, found) for found in in_a_template(text))


def in_a_template(text):
    """Jinja's {{ "%.3g" | format(r.delta) }} and {{ delta | round(3) }}."""
    for found in re.finditer(r"{{(.*?)}}", text, re.DOTALL):
        if re.search(r"\|\s*(format|round)\b", found[1]) and GUARDED.search(found[1]):
            yield found[0]


def files(pattern):
    folders = ("accounting", "dpfed", "experiments", "benchmarks")
    return [file for folder in folders for file in sorted((ROOT / folder).rglob(pattern))]


def test_no_guarantee_is_formatted_in_place():
    found = [
        f"{file.relative_to(ROOT)}:{line}: {what}"
        for file in files("*.py")
        if file != OWNER
        for line, what in printed_with_a_format_of_their_own(file.read_text(encoding="utf-8"))
    ]
    assert not found, "print with accounting.rounding:\n" + "\n".join(found)


def test_no_template_formats_a_guarantee():
    pages = files("*.html")
    assert pages
    assert not [(page, found) for page in pages for found in in_a_template(page.read_text(encoding="utf-8"))]


PLANTED = [
    'f"epsilon {stated.epsilon:.4f}"',
    "f\"{summary['delta']:.4g}\"",
    'f"{answer.noise_multiplier:.6g}"',
    'f"{max(rows, key=lambda row: row.lower_bound).lower_bound:{width}.3f}"',
    "number(record['spent_epsilon'])",
    "round(found.epsilon, 3)",
    '"{:.3f}".format(epsilon)',
    '"%.4f" % epsilon',
    "format(delta, '.3g')",
    "'<td>{{ \"%.3g\" | format(r.delta) }}'",
]


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_format_is_found(fault):
    assert list(printed_with_a_format_of_their_own(f"def show():\n    print({fault})\n"))


@pytest.mark.parametrize(
    "fine",
    ['f"{upwards(epsilon)}"', 'f"{upwards(epsilon):>12}"', 'f"epsilon={epsilon}"', 'f"{int(noise.share_variance):,}"',
     'f"{accuracy:.2%}"', "number(seconds)"],
)  # fmt: skip
def test_what_is_rounded_safely_or_not_at_all_is_no_fault(fine):
    assert not list(printed_with_a_format_of_their_own(f"def show():\n    print({fine})\n"))
