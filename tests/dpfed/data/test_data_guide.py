"""The examples of docs/data.md work as they stand, and its tables name what there is."""

import re
from pathlib import Path

import pytest

from dpfed.cli import main
from dpfed.data import DATASETS
from dpfed.models import MODELS, build

GUIDE = (Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.mark.parametrize("place", [1, 2])
def test_python_examples_run(place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(blocks("python")) == 3
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[place], "docs/data.md", "exec"), {"__name__": "example"})
    assert place == 1 or (tmp_path / "points-run" / "summary.json").is_file()


def test_the_configuration_runs_on_the_file_that_the_example_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[0], "docs/data.md", "exec"), {"__name__": "example"})
    (tmp_path / "mine.toml").write_text(blocks("toml")[0])
    with pytest.raises(SystemExit) as left:
        main(["run", "mine.toml", "--out", "run", "--json"])
    assert left.value.code in (0, None), capsys.readouterr().err


def test_the_tables_name_every_data_set_and_network() -> None:
    for name in DATASETS:
        short = name.removeprefix("emnist") if name != "emnist-balanced" else name
        assert re.search(rf"\| .*{re.escape(short)}\b.*\|", GUIDE), name
    for name in MODELS:
        assert re.search(rf"\| .*{re.escape(name)}\b.*\|", GUIDE), name


@pytest.mark.parametrize(
    ("name", "shape", "classes", "stated"),
    [
        ("char-lstm", (80,), 80, "819,920"),
        ("conv-6", (3, 32, 32), 10, "2,262,602"),
        pytest.param("conv-10", (3, 32, 32), 100, "19,197,092", marks=pytest.mark.slow),
        ("strided-cnn", (1, 28, 28), 10, "114,192"),
    ],
)
def test_stated_sizes_are_right(name: str, shape: tuple[int, ...], classes: int, stated: str) -> None:
    row = next(line for line in GUIDE.splitlines() if line.startswith("| ") and name in line.split("|")[1])
    assert stated in row
    assert f"{build(name, shape, classes).size:,}" == stated
