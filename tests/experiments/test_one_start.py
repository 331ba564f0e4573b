"""The tables of experiments/accuracy/README.md on one start are what their command prints from the stored runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def one_start() -> ModuleType:
    sys.path.insert(0, str(EXPERIMENTS))
    import one_start  # type: ignore[import-not-found]

    return one_start


@pytest.fixture(scope="module")
def readme(one_start: ModuleType) -> str:
    return str(one_start.README.read_text(encoding="utf-8"))


def test_the_tables_are_what_the_command_prints(one_start: ModuleType, readme: str) -> None:
    assert one_start.filled(readme) == readme
    assert all(f"<!-- one start: {data} -->" in readme for data in one_start.FILES)


@pytest.mark.parametrize(
    ("stated", "planted"), [("91.0 ± 0.6%", "91.1 ± 0.6%"), ("+2.8 ± 0.6, holds", "+2.8 ± 0.6, not shown")]
)
def test_a_planted_number_or_verdict_is_seen(one_start: ModuleType, readme: str, stated: str, planted: str) -> None:
    assert stated in readme
    wrong = readme.replace(stated, planted, 1)
    assert one_start.filled(wrong) == readme != wrong


def test_a_changed_result_changes_the_tables(
    one_start: ModuleType, readme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = one_start.papers.read

    def worse(name: str) -> list[dict[str, str]]:
        first, *others = read(name)
        return [first | {"test_accuracy": "0.5"}, *others]

    monkeypatch.setattr(one_start.papers, "read", worse)
    assert one_start.filled(readme) != readme
