"""Run the checks that pyOpenSci's editor makes before a review, as far as files can answer them.

    python paper/pyopensci.py

The list is that of their editor's template and of the review template's part on README and metadata (read in November
2026: github.com/pyOpenSci/software-submission). Prints one line each; the exit status is 1 if a check fails that does
not wait for the owner of the repository.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
OWNER = "waits for the owner: "


def text(name: str) -> str:
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def has(name: str, *patterns: str) -> bool:
    return all(re.search(one, text(name), re.IGNORECASE | re.MULTILINE) for one in patterns)


def undocumented() -> list[str]:
    """Return the names of the public API without a docstring."""
    import accounting
    import dpfed

    found = []
    for package in (dpfed, accounting):
        for name in package.__all__:
            one = getattr(package, name)
            if callable(one) and not getattr(one, "__doc__", None):
                found.append(f"{package.__name__}.{name}")
    return found


def without_annotations() -> list[str]:
    """Return functions of the packages whose result has no annotation."""
    return [
        f"{file.relative_to(ROOT)}:{one.lineno}"
        for folder in ("dpfed", "accounting")
        for file in (ROOT / folder).rglob("*.py")
        for one in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.returns is None
    ]


def checks() -> list[tuple[str, bool]]:
    """Return (check, passed) pairs; those that begin with OWNER cannot be passed by files of this repository."""
    project = tomllib.loads(text("pyproject.toml"))["project"]
    pages = len(list((ROOT / "docs" / "tutorials").glob("*.md")))
    return [
        ("the package can be imported", bool(import_module("dpfed"))),
        (OWNER + "it can be installed from PyPI or conda-forge", False),
        ("README installs it", has("README.md", r"pip install|make demo")),
        ("README states the need and the audience", has("README.md", r"\bfor (people|researchers|teams|those)\b|who ")),
        ("README has a short example", has("README.md", r"^```")),
        ("README links the documentation and tutorials", has("README.md", r"docs/", r"tutorials/")),
        ("README names related packages, or links the comparison", has("README.md", r"docs/beside\.md")),
        ("README says how to cite", has("README.md", r"CITATION\.cff|dpfed cite")),
        (OWNER + "README has badges of CI, docs, version and Python", has("README.md", r"!\[.*\]\(https://.*badge")),
        ("documentation: installation and first steps", has("docs/quickstart.md", r"^# ")),
        (f"documentation: {pages} tutorials", pages >= 3),
        ("documentation: reference of the API", has("docs/reference.md", r"^# ")),
        ("every public name has a docstring", not undocumented()),
        ("every function has its types", not without_annotations()),
        (
            "statement of need and state of the field in paper.md",
            has("paper/paper.md", "# Statement of need", "# State of the field"),
        ),
        ("paper.md cites what paper.bib has", citations_match()),
        ("CONTRIBUTING explains set-up, tests and issues", has("CONTRIBUTING.md", "make test", "issue")),
        ("code of conduct", bool(text("CODE_OF_CONDUCT.md"))),
        ("licence approved by the OSI", project["license"] == "Apache-2.0" and "Apache License" in text("LICENSE")),
        ("changelog", bool(text("CHANGELOG.md"))),
        ("security policy", bool(text("SECURITY.md"))),
        ("CITATION.cff with title, version, authors", has("CITATION.cff", "^title:", "^version:", "^authors:")),
        (
            OWNER + "CITATION.cff and pyproject.toml have the address of the repository",
            has("CITATION.cff", "^repository-code:"),
        ),
        (
            "metadata: authors, classifiers, versions of Python",
            {"authors", "classifiers", "requires-python"} <= set(project),
        ),
        (
            "tests run in CI, on every Python that is named",
            has(".github/workflows/ci.yml", "make test", r"3\.11.*3\.14"),
        ),
        ("linter, formatter and types are checked in CI", has("Makefile", r"ruff check", r"ruff format", "mypy")),
        ("an issue can be reported: CONTRIBUTING or SECURITY say how", has("SECURITY.md", "report")),
        ("minimal versions of dependencies are stated and tested", has(".github/workflows/ci.yml", "lowest-direct")),
    ]


def citations_match() -> bool:
    """Return True if every @key of paper.md is in paper.bib, and each entry of paper.bib is cited."""
    cited = set(re.findall(r"@([a-z]+\d*)\b", text("paper/paper.md").partition("---\n\n")[2]))
    return cited == set(re.findall(r"^@\w+\{(\w+),", text("paper/paper.bib"), re.MULTILINE))


def main() -> int:
    found = checks()
    for name, passed in found:
        print(f"{'pass' if passed else 'owner' if name.startswith(OWNER) else 'FAIL'}  {name.removeprefix(OWNER)}")
    return int(any(not passed and not name.startswith(OWNER) for name, passed in found))


if __name__ == "__main__":
    sys.exit(main())
