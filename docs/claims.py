"""Register of claims: every sentence of README and docs with a number or a promise, and the evidence for it.

    python docs/claims.py                  compare docs/claims.yaml with the pages (part of `make check`)
    python docs/claims.py --evaluate [ID]  evaluate the evidence, and mutate sentence and register together
    python docs/claims.py --write          take changed sentences into the register; new ones get the status "new"

An entry of the register has id, page, says (the sentence), status, and evidence:
    returns     expressions in the names of docs/claims_evidence.py; each returns text that the sentence must contain
    test        a test that shows it, "tests/path.py::name"
    source      a publication, or the page and section with the proof
    unchecked   the reason why no evidence returns the sentence's numbers and verbs
A page made by a command is one entry, as is a marked block. Pages of proofs have one entry for each section.
"""

import ast
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import count  # noqa: E402

REGISTER = HERE / "claims.yaml"
STATUSES = ("proved", "tested", "measured", "limitation", "cited", "definition")
NUMBER = re.compile(r"(?<![\w.,-])\d(?:[\d,]*\d)?(?:\.\d+)?(?:e-?\d+)?(?![\w-]|\.\d)|(?<![\w.])\.\d+\b")
VERB = re.compile(r"\b(finds?|found|refuses?|refused|offers?|offered|accepts?|accepted|proves?|proved|never|at most)\b")
REFERENCES = re.compile(
    r"`[^`]*[a-z{][^`]*`|[Rr]ound 1\b|CC BY 4.0|arXiv [\d.]+(?: and [\d.]+)*"
    r"|\b(?:Theorems?|[Ss]ections?|paragraph|Table|SP|step|version) \d[\d.-]*"
)
OPPOSITES = {
    "finds": "misses", "find": "miss", "found": "missed", "refuses": "accepts", "refuse": "accept",
    "refused": "accepted", "accepts": "refuses", "accept": "refuse", "accepted": "refused", "offers": "lacks",
    "offer": "lack", "offered": "withheld", "proves": "disproves", "prove": "disprove", "proved": "disproved",
    "never": "always", "at most": "at least",
}  # fmt: skip
EXCHANGED = (
    ("zero-out", "replace-one"), ("replace-one", "add-remove"), ("add-remove", "zero-out"), ("Poisson", "fixed-size"),
    ("poisson", "fixed"), ("balls-and-bins", "allocation"), ("allocation", "min-separation"), ("cyclic", "poisson"),
    ("min-separation", "cyclic"), ("FedPM", "FedMRN"), ("Fed-SMP", "FedPM"), ("FedMRN", "FedPM"), ("rand-k", "top-k"),
    ("top-k", "rand-k"), ("FlowerAccountant", "RdpAccountant"), ("Skellam", "discrete Gaussian"),
)  # fmt: skip
Entry = dict[str, Any]


# ---- sentences of the pages


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(HERE.glob("*.md")), *sorted((HERE / "tutorials").glob("*.md"))]


def claims(page: Path) -> list[str]:
    """Return the sentences of a page that have a number or a promise, each once."""
    text = page.read_text()
    if re.search(r"^% The text comes|^% claims", text, flags=re.MULTILINE):
        return []
    if page.parent == HERE and not count.is_counted(page) and not page.name.startswith("theory"):
        return ["The whole page is made by a command."]
    if page.name.startswith("theory"):
        return [f"{title}: {_digest(body)}" for title, body in _sections(text) if any(map(_is_claim, _sentences(body)))]
    blocks = [f"The block {name!r} is made by a command." for name in re.findall(r"<!-- (.*?): begin -->", text)]
    text = re.sub(r"<!-- (.*?): begin -->.*?<!-- .*? end -->", "", text, flags=re.DOTALL)
    return list(dict.fromkeys([*filter(_is_claim, _sentences(text)), *blocks]))


def _sections(text: str) -> Iterator[tuple[str, str]]:
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        yield part.partition("\n")[0].lstrip("# "), part


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:12]


def _is_claim(sentence: str) -> bool:
    plain = REFERENCES.sub("", re.sub(r"`[^`]*`", "", re.sub(r"\]\([^)]*\)", "]", sentence)))
    return bool(NUMBER.search(plain) or VERB.search(plain.lower()))


def _sentences(text: str) -> Iterator[str]:
    """Yield sentences of paragraphs and list items, rows of tables, comments of commands, blocks of output."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    for fence, language, body in re.findall(r"^(```)([^\n]*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        commented = [line for line in body.splitlines() if re.match(r"(\.?/?\w\S* )?dpfed .* # |dpfed .*#", line)]
        is_code = re.search(r"^(dpfed|python|pip|curl|%|from |import )", body, re.MULTILINE)
        is_output = fence and not language.strip() and not is_code
        yield from ([" ".join(body.split())] if is_output else commented)
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    paragraph: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith(("|", "#", "%", "<", ":::")) or not line.strip() or re.match(r"\s*([-*]|\d+\.) ", line):
            yield from _split(" ".join(paragraph))
            paragraph = []
        if line.startswith("|") or (alternative := re.search(r'<img [^>]*alt="([^"]*)"', line)):
            yield line.strip() if line.startswith("|") else alternative[1]
        elif line.strip() and not line.startswith(("#", "%", "<", ":::")):
            paragraph.append(re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip())


def _split(paragraph: str) -> list[str]:
    return [one for one in re.split(r"(?<=[.!?])\)?\s+(?=[A-Z`*\[(]|dpfed)", paragraph) if one]


# ---- register


def read_register() -> list[Entry]:
    """Return the entries of docs/claims.yaml, a YAML list with one JSON object in each line."""
    lines = [line for line in REGISTER.read_text().splitlines() if line.startswith("- ")]
    return [json.loads(line[2:]) for line in lines]


def write_register(entries: list[Entry]) -> None:
    head = "# Claims of README and docs, with evidence. See docs/claims.py, which compares this file with the pages.\n"
    rows = [f"- {json.dumps(one, ensure_ascii=False)}\n" for one in entries]
    REGISTER.write_text(head + "".join(rows))


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix().removeprefix("docs/")


def differences(entries: list[Entry]) -> list[str]:
    """Return what is wrong: unlisted sentences, stale entries, missing fields, evidence that does not exist."""
    listed = {(one["page"], one["says"]) for one in entries}
    said = {(_name(page), text) for page in pages() for text in claims(page)}
    wrong = [f"{page}: not in the register: {text}" for page, text in sorted(said - listed)]
    wrong += [f"{one['id']}: stale, not on {one['page']}" for one in entries if (one["page"], one["says"]) not in said]
    repeated = [name for name, times in Counter(one["id"] for one in entries).items() if times > 1]
    wrong += [f"{name}: two entries have this id" for name in repeated]
    return wrong + [f"{one['id']}: {words}" for one in entries for words in _faults(one)]


def _faults(entry: Entry) -> Iterator[str]:
    if entry["status"] not in STATUSES:
        yield f"status {entry['status']!r}: must be one of {', '.join(STATUSES)}"
    if unknown := entry.keys() - {"id", "page", "says", "status", "returns", "test", "source", "unchecked", "slow"}:
        yield f"unknown fields {sorted(unknown)}"
    if not entry.get("returns") and not entry.get("unchecked"):
        yield "neither `returns` nor the reason `unchecked`"
    if entry["status"] in ("cited", "proved") and not any(map(entry.get, ("source", "returns", "test"))):
        yield f"status {entry['status']} without source"
    if entry["status"] == "tested" and not any(map(entry.get, ("test", "returns"))):
        yield "status tested without a test"
    if entry.get("test") and not _test_exists(entry["test"]):
        yield f"no such test: {entry['test']}"
    for expression in entry.get("returns", []):
        if unknown := _names(expression) - _evidence_names():
            yield f"{expression}: docs/claims_evidence.py has no {', '.join(sorted(unknown))}"


def _test_exists(test: str) -> bool:
    path, _, name = test.partition("::")
    file = ROOT / path
    return file.exists() and re.search(rf"^ *(?:def|class) {name}\b", file.read_text(), re.MULTILINE) is not None


def _names(expression: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(expression, mode="eval")) if isinstance(node, ast.Name)]
    return {node.id for node in nodes} - {node.id for node in nodes if isinstance(node.ctx, ast.Store)}


@cache
def _evidence_names() -> set[str]:
    body = ast.parse((HERE / "claims_evidence.py").read_text()).body
    made = {one.name for one in body if isinstance(one, ast.FunctionDef)}
    made |= {target.id for one in body if isinstance(one, ast.Assign) for target in one.targets}  # type: ignore[attr-defined]
    return made | {"sorted", "len", "round", "int", "float", "abs"}


def updated(entries: list[Entry]) -> list[Entry]:
    """Return the register for today's pages: a changed sentence keeps the entry of the most similar old one."""
    old = {(one["page"], one["says"]): one for one in entries}
    found, used = [], {one["id"] for one in entries}
    for page in pages():
        texts = claims(page)
        free = [one for one in entries if one["page"] == _name(page) and one["says"] not in texts]
        for text in texts:
            entry = old.get((_name(page), text))
            if entry is None:
                near = max(free, key=lambda one: SequenceMatcher(None, one["says"], text).ratio(), default=None)
                if near is not None and SequenceMatcher(None, near["says"], text).ratio() > 0.6:
                    free.remove(near)
                    entry = near | {"says": text}
                else:
                    number = next(n for n in range(1, 10**6) if f"{page.stem}-{n}" not in used)
                    entry = {"id": f"{page.stem}-{number}", "page": _name(page), "says": text, "status": "new"}
                    used.add(entry["id"])
            found.append(entry)
    return found


# ---- evidence and mutants


def evaluated(entry: Entry) -> list[str]:
    """Return the texts that the evidence of an entry returns."""
    import claims_evidence

    texts: list[str] = []
    for expression in entry["returns"]:
        value = eval(expression, vars(claims_evidence).copy())
        texts += [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
    return texts


def holds(sentence: str, texts: list[str]) -> bool:
    """Return True if the sentence contains every text, not as a part of a longer number or word."""
    plain = re.sub(r"\*\*|`", "", sentence)
    return all(re.search(rf"(?<![\w.]){re.escape(one)}(?![\w]|[.,]\d)", plain) for one in texts)


def mutants(sentence: str) -> Iterator[tuple[str, str]]:
    """Yield (kind, mutated sentence): each number 10% larger, each verb negated, each name of a method exchanged."""
    hidden = [one.span() for one in [*REFERENCES.finditer(sentence), *re.finditer(r"\]\([^)]*\)", sentence)]]
    for found in NUMBER.finditer(sentence):
        if not any(begin <= found.start() < end for begin, end in hidden):
            yield "number", sentence[: found.start()] + _larger(found[0]) + sentence[found.end() :]
    for found in VERB.finditer(sentence):
        yield "verb", sentence[: found.start()] + OPPOSITES[found[0]] + sentence[found.end() :]
    for name, other in EXCHANGED:
        for found in re.finditer(rf"(?<![\w-]){re.escape(name)}(?![\w-])", sentence):
            yield "name", sentence[: found.start()] + other + sentence[found.end() :]


def _larger(number: str) -> str:
    value = float(number.replace(",", ""))
    if "e" in number:
        return f"{value * 1.1:.3g}"
    digits = len(number.partition(".")[2])
    changed = round(value * 1.1, digits)
    return f"{changed if changed != value else value + 10**-digits:,.{digits}f}"


def killed(entry: Entry, texts: list[str]) -> Counter[tuple[str, bool]]:
    """Return how many mutants of sentence and register together the evidence kills, by (kind, killed)."""
    return Counter((kind, not holds(mutant, texts)) for kind, mutant in mutants(entry["says"]))


def evaluate(entries: list[Entry]) -> int:
    """Evaluate and mutate; print what does not hold, and counts. Return the number of entries that do not hold."""
    total: Counter[tuple[str, bool]] = Counter()
    wrong = whole = 0
    for one in entries:
        texts = evaluated(one) if one.get("returns") else []
        if texts and not holds(one["says"], texts):
            wrong += 1
            print(f"{one['id']}: evidence returns {texts}, the sentence is: {one['says']}")
        here = killed(one, texts)
        total += here
        whole += bool(texts) and not any(count for (_, dead), count in here.items() if not dead)
    print(f"{len(entries)} entries; {whole} whose every mutant is killed by evidence")
    for kind in ("number", "verb", "name"):
        print(f"  {kind}: {total[kind, True]} of {total[kind, True] + total[kind, False]} mutants killed")
    return wrong


# ---- page


def page_text() -> str:
    """Return the table of the page "what is claimed, and why you may believe it"."""
    lines = []
    entries = read_register()
    statuses = Counter(one["status"] for one in entries)
    checked = sum(bool(one.get("returns")) for one in entries)
    lines.append(f"{len(entries)} sentences: {', '.join(f'{statuses[one]} {one}' for one in STATUSES)}.")
    lines.append(
        f"For {checked} of them the evidence returns numbers or verbs, which are compared with the sentence.\n"
    )
    for page in dict.fromkeys(one["page"] for one in entries):
        lines += [f"## {page}\n", "| claim | status | evidence |", "|---|---|---|"]
        for one in entries:
            if one["page"] == page:
                says = (
                    re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", one["says"]).replace("|", " ").replace("<", "&lt;").strip()
                )
                lines.append(f"| {says} | {one['status']} | {_evidence_text(one)} |")
        lines.append("")
    return "\n".join(lines)


def _evidence_text(entry: Entry) -> str:
    parts = [f"`{one}`" for one in [*entry.get("returns", []), *filter(None, [entry.get("test")])]]
    parts += filter(None, [entry.get("source")])
    if entry.get("unchecked"):
        parts.append(f"not machine-checked: {entry['unchecked']}")
    return "; ".join(parts).replace("|", "\\|")


def main(words: list[str]) -> int:
    entries = read_register() if REGISTER.exists() else []
    if "--write" in words:
        write_register(updated(entries))
        return 0
    if "--evaluate" in words:
        chosen = [one for one in entries if one["id"] in words] or entries
        return int(evaluate(chosen) > 0)
    wrong = differences(entries)
    print("\n".join(wrong[:60]), end="\n" if wrong else "")
    checked = sum(bool(one.get("returns")) for one in entries)
    print(f"docs/claims.yaml: {len(entries)} claims, {checked} with evidence that returns their numbers or verbs")
    if wrong:
        print(f"{len(wrong)} differences. `python docs/claims.py --write` takes sentences in; give each its evidence.")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
