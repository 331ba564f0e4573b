"""Officer's pack of a run: a published bundle, and one document that answers checklists from the run's files."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from accounting.ledger import regular_file
from dpfed.errors import RunError
from dpfed.records.reading import json_object, text_of_file
from dpfed.records.summary import FinishedRun, Summary
from dpfed.report.page import render_page
from dpfed.report.privacy_card import card_of
from dpfed.report.privacy_text import adversary_text, noise_text, privacy_statement, readings_text, unit_text
from dpfed.report.registry_entry import StatementAnswers, registry_entry
from dpfed.runs.durable_files import put
from dpfed.runs.sweep_folder import SAFELY

PUBLISHED = ("config.toml", "ledger.jsonl", "ledger.jsonl.sig", "summary.json", "metrics.jsonl", "model.safetensors")
"""Files of a run folder that its guarantee covers."""


@dataclass(frozen=True, kw_only=True)
class PackAnswer:
    """Answer to one question, with the places FILE:LINE of its values; an empty answer was found in no file."""

    question: str
    answer: str
    places: tuple[str, ...] = ()


def write_pack(folder: Path, run: FinishedRun, about: StatementAnswers, out: Path) -> Path:
    """Write bundle, pack.json and pack.html to the folder `out`; return the page. RunError if nothing was released."""
    if run.summary.epsilon is None:
        raise RunError(f"{folder}: states no epsilon, so there is no guarantee that a pack could explain.")
    texts = {name: _readable(folder / name) for name in (*PUBLISHED[:5], "audit.json")}
    if json_object(texts["audit.json"] or "{}", "audit.json").get("ledger_head") != run.summary.ledger_head:
        texts["audit.json"] = ""  # of fewer rounds, before the run was prolonged, or of something else
    questions = tomllib.loads((files(__package__) / "pack.toml").read_text())
    sections = [
        {
            "name": one["name"],
            "address": one["address"],
            "answers": [_answer(ask, run, texts, about) for ask in one["questions"]],
        }
        for one in questions["section"]
    ]
    entry = registry_entry(folder, run, about)
    sections.append(
        {
            "name": "OpenDP deployments registry, tier 3",
            "address": "https://github.com/opendp/deployments-registry-data",
            "answers": [
                PackAnswer(question=key, answer=text, places=_places(questions["registry"].get(key), run, texts))
                if text
                else PackAnswer(question=key, answer="")
                for key, text in _flat_fields(entry)
            ],
        }
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        digests = {}
        for name in PUBLISHED:
            if (folder / name).is_file():
                content = (folder / name).read_bytes()
                digests[name] = hashlib.sha256(content).hexdigest()
                if folder.resolve() != out.resolve():
                    put(out / name, content)
        record = {
            "statement": privacy_statement(run.summary),
            "files": digests,
            "sections": [one | {"answers": [asdict(answer) for answer in one["answers"]]} for one in sections],
            "registry_entry": entry,
        }
        put(out / "pack.json", json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False).encode())
        page = render_page(
            "pack.html", title="Privacy pack", card=card_of(run.summary), sections=sections, digests=digests,
            name=f"{run.summary.method} on {run.summary.dataset}",
        )  # fmt: skip
        put(out / "pack.html", page.encode())
    except OSError as error:
        raise RunError(f"{out}: cannot be written ({error.strerror}). Name another folder with --pack.") from None
    return out / "pack.html"


def _readable(file: Path) -> str:
    return text_of_file(file, at_most=regular_file.LARGEST_DOCUMENT) if file.is_file() else ""


def _answer(question: dict[str, Any], run: FinishedRun, texts: dict[str, str], about: StatementAnswers) -> PackAnswer:
    """Return the answer to a question of pack.toml; values that no file has are left out."""
    words, places = [], []
    for place in question.get("keys", ()):
        file, _, key = place.partition(":")
        value, line = _value_and_line(file, key, run, texts)
        if line is None or value in (None, [], (), ""):
            continue
        places.append(f"{file}:{line}")
        if not (file == "ledger.jsonl" or (key in ("unit", "tpr_at_fpr", "advantage") and "text" in question)):
            words.append(f"{key}: {_value_text(key, value)}")
    if "text" in question and places:
        words.insert(0, _text(question["text"], run.summary, texts))
    if (given := about.answers.get(question.get("about", ""))) is not None:
        words, places = [str(given)], ["--about"]
    return PackAnswer(
        question=question["ask"], answer=". ".join(one.rstrip(".") for one in words if one), places=tuple(places)
    )


def _value_and_line(file: str, key: str, run: FinishedRun, texts: dict[str, str]) -> tuple[object, int | None]:
    """Return the value of a key and the number of its line; (None, None) if the file does not have it."""
    text = texts[file]
    if file == "ledger.jsonl":
        return ("release", 2) if text.count("\n") > 1 else (None, None)
    if file == "config.toml":
        *tables, name = key.split(".")
        value: Any = run.config
        for part in (*tables, name):
            value = value.get(part) if isinstance(value, dict) else None
        found = re.search(rf"^\[{re.escape('.'.join(tables))}\]$[^\[]*?^{name} *=", text, re.MULTILINE)
        return (value, text.count("\n", 0, found.end()) + 1) if found and value is not None else (None, None)
    value = run.summary.to_dict().get(key) if file == "summary.json" else json_object(text or "{}", file).get(key)
    found = re.search(rf'^ *"{re.escape(key)}":', text, re.MULTILINE)
    return (value, text.count("\n", 0, found.start()) + 1) if found else (None, None)


def _value_text(key: str, value: object) -> str:
    if isinstance(value, float):
        return SAFELY.get(key.rpartition(".")[2], "{:.6g}".format)(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _text(name: str, summary: Summary, texts: dict[str, str]) -> str:
    """Return a text about the run by its name in pack.toml."""
    match name:
        case "unit":
            return unit_text(summary)
        case "noise":
            return noise_text(summary)
        case "adversary":
            return adversary_text(summary)
        case "extraction":
            return ". ".join(readings_text(summary.readings)) if summary.readings else ""
        case "metrics":
            return "Metrics are computed on the test samples from released models only"
        case "audit":
            return "By `dpfed audit`; a pass is no proof"
    return f"{texts['ledger.jsonl'].count(chr(10)) - 1} lines of releases"


def _places(keys: list[str] | None, run: FinishedRun, texts: dict[str, str]) -> tuple[str, ...]:
    """Return the places of a registry field's values; "every run" if the field does not depend on the run."""
    if keys is None or keys == ["--about"]:
        return tuple(keys or ("every run",))
    found = [(file, _value_and_line(file, key, run, texts)[1]) for file, _, key in (one.partition(":") for one in keys)]
    return tuple(f"{file}:{line}" for file, line in found if line is not None)


def _flat_fields(entry: dict[str, object], name: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, text) of the fields of a registry entry; the text is empty if only its authors know it."""
    for key, value in entry.items():
        if isinstance(value, dict):
            yield from _flat_fields(value, f"{name}.{key}")
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        path = f"{name}.{key}".removeprefix(".deployment.").lstrip(".")
        yield path, "" if "TODO" in text or text == "1900-01-01" else text
