"""The marked tables of experiments/*/README.md are what their command prints from the stored results."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from scripts import script

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def readmes() -> ModuleType:
    return script("experiments/readmes.py")


@pytest.fixture(scope="module")
def readme() -> str:
    return (EXPERIMENTS / "accuracy" / "README.md").read_text(encoding="utf-8")


def test_the_tables_are_what_the_command_prints(readmes: ModuleType) -> None:
    texts = {file: file.read_text(encoding="utf-8") for file in readmes.READMES}
    assert [file for file, text in texts.items() if readmes.filled(text) != text] == []
    assert all(f"<!-- table: one start: {data} -->" in "".join(texts.values()) for data in readmes.FILES)


@pytest.mark.parametrize(
    ("stated", "planted"), [("91.0 ± 0.6%", "91.1 ± 0.6%"), ("+2.8 ± 0.6, holds", "+2.8 ± 0.6, not shown")]
)
def test_a_planted_number_or_verdict_is_seen(readmes: ModuleType, readme: str, stated: str, planted: str) -> None:
    assert stated in readme
    wrong = readme.replace(stated, planted, 1)
    assert readmes.filled(wrong) == readme != wrong


def test_a_changed_result_changes_the_tables(readmes: ModuleType, readme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = readmes.papers.read

    def worse(name: str) -> list[dict[str, str]]:
        first, *others = read(name)
        return [first | {"test_accuracy": "0.5"}, *others]

    monkeypatch.setattr(readmes.papers, "read", worse)
    assert readmes.filled(readme) != readme
