"""Plain English in docstrings, comments and messages: openers without a noun, and words that the field does not use."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = (
    "accounting",
    *(f"dpfed/{path.name}" for path in sorted((ROOT / "dpfed").iterdir()) if path.name[0] not in "_."),
)
"""Folders and files that are checked."""

OPENERS = re.compile(
    r"(What|Of|Whether|How|Where|Who|Whom|Whose|Which|That|Those|As|So|If|By|Its|Until|None|All that|The one that)\b"
)
"""First words of a docstring that opens without a noun or a verb."""

COINS = r"coins|coin(?! flip)|tosse[ds]"
LEXICON = {
    r"laws?": "distribution",
    COINS: "Bernoulli samples, randomised response, stochastic signs",
    r"words": "text, message, description",
    r"one's own": "custom, user-defined",
    r"goals?": "privacy target",
    r"facts?": "method specification, summary, record",
    r"told|tells|says nothing": "reveals",
    r"everybody|nobody|somebody|whoever": "all clients, no client, a user, an attacker",
    r"(is|are) lost|lost clients": "drops out",
    r"goes on|comes|stands(?! for)|(is|are|be) looked at": "continues, arrives, is stored, is read",
    r"(client|record|one) more or less": "one client added or removed",
    r"worlds?": "neighbouring datasets",
    r"dearest|too dear|costs": "loose, increases epsilon",
    r"slots": "fixed number of uploads",
    r"what is not protected": "limitations of the guarantee",
    r"at the most": "at most",
    r"so many|as many as": "n, exactly n",
    r"(?<!that )it takes|it wants|wants|asks": "requires, accepts",
    r"made-up": "simulated, synthetic",
}
"""Words and what to write in their place."""

ANY = re.compile(rf"(?i)\b(?:{'|'.join(LEXICON)})\b")
"""Any word of the lexicon: most texts have none."""

ALLOWED = {"entries by a power law": "a power law is a curve, not a distribution"}
"""Texts that stay, with the reason."""

WORLDS_IN = "dpfed/audit"
"""Room in which the two neighbouring datasets of a test are called its worlds."""


def files(room):
    found = ROOT / room
    return [found] if found.is_file() else sorted(found.rglob("*.py"))


def docstrings(tree):
    """Yield the strings that stand for themselves: docstrings of modules, classes, functions and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def texts(path):
    """Yield (line, kind, text) of the docstrings, comments and messages of a file."""
    source = path.read_text()
    tree = ast.parse(source)
    documented = list(docstrings(tree))
    for one in documented:
        yield one.lineno, "docstring", one.value
    inside = {id(one) for one in documented}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside
        if is_text and node.value.count(" ") > 1:
            yield node.lineno, "message", node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], "comment", token.string.removeprefix("#").strip()


def faults(kind, text, room=""):
    """Return the faults of a text: words of the lexicon, and the opener of a docstring. Code in a text is skipped."""
    if kind != "docstring" and not ANY.search(text):
        return []
    for sentence in ALLOWED:
        text = text.replace(sentence, "")
    plain = re.sub(r"`[^`]*`|^ *(>>>|\.\.\.).*$|^ *[a-z_]+: ", "", text, flags=re.MULTILINE)
    plain = re.sub(
        r"[\w./-]+\.(py|md|toml)\b|[\w]+\.[\w.]+|\w+_\w+|--[\w-]+|=\s*[\"'][\w-]+[\"']|\w+( > \w+)+", "", plain
    )
    found = [
        f"{match[0]!r}: write {better}"
        for word, better in (LEXICON.items() if ANY.search(plain) else ())
        if not (word == "worlds?" and room.startswith(WORLDS_IN))
        for match in re.finditer(rf"(?i)\b(?:{word})\b", plain)
    ]
    if kind == "docstring" and (opener := OPENERS.match(plain.strip())):
        found.append(f"opens with {opener[0]!r}")
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_plain_words(room):
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in files(room)
        for line, kind, text in texts(path)
        for fault in faults(kind, text, room)
    ]
    assert not found, "\n".join(found)


def test_a_word_and_an_opener_are_found():
    assert faults("docstring", "Whether the coins tell.") == [
        "'coins': write " + LEXICON[COINS],
        "opens with 'Whether'",
    ]
    assert not faults("message", "If the privacy loss distribution of `coins` is too wide, use more noise.")


def test_every_exception_is_used():
    everything = " ".join(path.read_text() for room in ROOMS for path in files(room))
    assert [sentence for sentence in ALLOWED if sentence not in everything] == []
    assert len(ALLOWED) <= 20
