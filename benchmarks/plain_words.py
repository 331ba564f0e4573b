"""Random sample of names and sentences of the project, to be read without code and checked for clarity.

    python benchmarks/plain_words.py --seed 1

Names are functions, classes, documented fields and files. Sentences are first and later sentences of docstrings,
comments, messages, and docs without the generated reference.
"""

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CODE = ("accounting", "dpfed")
LEAST_WORDS = 4


def code_files() -> list[Path]:
    return sorted(path for room in CODE for path in (ROOT / room).rglob("*.py"))


def names() -> list[tuple[str, str]]:
    """Return (kind, name) of files, and of classes, functions and annotated fields defined in them."""
    found = []
    for path in code_files():
        place = path.relative_to(ROOT)
        found.append(("file", str(place)))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                found.append(("function", f"{place}: {node.name}"))
            elif isinstance(node, ast.ClassDef):
                found.append(("class", f"{place}: {node.name}"))
                fields = (one.target for one in node.body if isinstance(one, ast.AnnAssign))
                found += [("field", f"{place}: {node.name}.{one.id}") for one in fields if isinstance(one, ast.Name)]
    return found


def sentences() -> list[tuple[str, str]]:
    """Return (kind, sentence) of docstrings, comments, messages and pages."""
    found = [
        (kind, f"{path.relative_to(ROOT)}: {sentence}")
        for path in code_files()
        for kind, text in texts_of(path.read_text())
        for sentence in split(text)
    ]
    for path in sorted(
        [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md")]
    ):
        prose = re.sub(r"\A---\n.*?\n---\n", "", path.read_text(), flags=re.DOTALL)
        prose = re.sub(r"```.*?```", "\n\n", prose, flags=re.DOTALL)
        prose = re.sub(r"^ *([|:#(]|---).*$", "\n\n", prose, flags=re.MULTILINE)
        found += [("docs", f"{path.relative_to(ROOT)}: {sentence}") for sentence in split(prose)]
    return found


def texts_of(source: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) of the docstrings, comments and messages in Python code."""
    tree = ast.parse(source)
    documented = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.add(id(node.value))
            yield "docstring", re.sub(r"^ *(>>>|\.\.\.).*$", "", node.value.value, flags=re.MULTILINE)
    parts = {id(value) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for value in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = (one.value if isinstance(one, ast.Constant) else "{}" for one in node.values)
            yield "message", "".join(str(piece) for piece in pieces)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented | parts:
            yield "message", node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|fmt:)", token.string):
            yield "comment", token.string.removeprefix("#")


def split(text: str) -> list[str]:
    """Return the sentences of a text that have at least four words."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n|\n\s*- |\n(?= *\w+: )", text))
    parts = (part for paragraph in paragraphs for part in re.split(r"(?<=[.!?]) (?=[A-Z`])", paragraph))
    return [part for part in parts if len(re.findall(r"[A-Za-z]{2,}", part)) >= LEAST_WORDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=120, help="names, and as many sentences")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    for title, everything in (("names", names()), ("sentences", sentences())):
        print(f"{given.count} of {len(everything)} {title}, seed {given.seed}")
        for number, (kind, text) in enumerate(draw.sample(everything, given.count), 1):
            print(f"{number:4} {kind:9} {text}")


if __name__ == "__main__":
    main()
