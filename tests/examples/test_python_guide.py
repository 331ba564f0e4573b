"""The examples of docs/python.md work as they stand."""

import re
from pathlib import Path

import pytest
from markupsafe import Markup

from dpfed.report.figures import figure
from dpfed.runs.durable_files import put

GUIDE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.mark.parametrize("place", range(3))
def test_python_examples_run(place, tmp_path, monkeypatch, capsys):
    assert len(BLOCKS) == 3
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figure, "_write_figure", lambda drawing, path, **how: put(path, b"blank"))
    monkeypatch.setattr(figure, "_svg_markup", lambda *drawing, **how: Markup("<svg></svg>"))
    exec(compile(BLOCKS[place], "docs/python.md", "exec"), {"__name__": "example"})
    made = ["a-run/report.html", "loop.jsonl", None][place]
    assert made is None or (tmp_path / made).is_file()
