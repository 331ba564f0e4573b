"""README and the pages: commands are commands there are; README's run and print what it says."""

import contextlib
import itertools
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from accounting import Plan, budget
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards
from dpfed.cli import app_of, status
from dpfed.config.tables import override, parse
from dpfed.errors import DataError
from dpfed.methods.catalogue import preset_names, preset_tables
from dpfed.runs.experiment import build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "paper" / "artifact.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text):
    """Every line that begins with `dpfed` in fenced blocks, without its comment, lines that go on joined."""
    for block in re.findall(r"^```.*?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            if line.startswith("dpfed "):
                yield re.split(r"\s#\s|\s+\d?>|\s+\|", line)[0].strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_one(page):
    for line in commands(page.read_text(encoding="utf-8")):
        words = [word for word in shlex.split(line)[1:] if word != "..."]
        app_of(words).parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize(
    "page", [pytest.param(one, marks=[] if one.name == "README.md" else [pytest.mark.slow]) for one in PAGES]
)
def test_every_run_of_a_preset_can_be_built(page):
    for line in commands(page.read_text(encoding="utf-8")):
        _, command, name, *words = [*shlex.split(line), "", ""]
        if command == "run" and name in preset_names():
            settings = [value for option, value in itertools.pairwise(words) if option == "--set"]
            settings += ["run.release=true"] * ("--release" in words)
            with contextlib.suppress(DataError):  # of a data set that is not here
                build(parse(override(preset_tables(name), settings), source=line))


def test_a_planted_command_is_found():
    (line,) = commands("```\ndpfed budget --cleints 3    # what\n```\n")
    words = shlex.split(line)[1:]
    with pytest.raises(Exception, match="cleints"):
        app_of(words).parse_args(words, exit_on_error=False, print_error=False)


def test_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 100
    links = re.findall(r"\]\(([^)#:]+)\)|(?:src|srcset)=\"([^\"]+)\"", README)
    assert len(links) > 20
    assert not [link for pair in links for link in pair if link and not (ROOT / link).exists()]


def test_the_two_commands_are_those_of_the_makefile():
    said = subprocess.run(["make", "-n", "demo", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "dpfed run fed-smp-randk-digits" in said
    assert 'pytest -m "not slow"' in said
    assert "make demo" in blocks(README, "sh")[0]
    assert "make test" in blocks(README, "sh")[0]


def test_the_lines_with_own_data_are_the_example():
    (code,) = blocks(README, "python")
    assert code == (ROOT / "examples" / "own_data.py").read_text().partition('"""\n\n')[2]


@pytest.mark.slow
def test_the_demo_ends_as_readme_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert status(["run", "fed-smp-randk-digits"]) == 0
    printed = capsys.readouterr().out
    for row in (r"Epsilon, at most +(\S+)", r"Test accuracy +(\S+%)"):
        assert re.search(row, README)[1] in printed


@pytest.mark.slow
def test_the_three_jobs_run_as_they_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    jobs = [line for block in blocks(README, "sh")[1:] for line in block.splitlines()]
    assert [line.split()[1] for line in jobs] == ["budget", "run", "audit"]
    for line in jobs:
        assert status(shlex.split(line, comments=True)[1:]) == 0, line
    assert re.search(r"noise multiplier (\S+)", jobs[0])[1] in capsys.readouterr().out
    assert (tmp_path / "runs/first/report.html").exists()


def test_the_picture_says_what_is_so():
    def epsilon(sampling, adjacency, **account):
        plan = Plan(clients=6000, cohort=100, sampling=sampling, adjacency=adjacency)
        return upwards(budget.epsilon(plan, noise_multiplier=1.4, rounds=180, **account))

    printed = epsilon("poisson", Adjacency.ADD_REMOVE, accountant="rdp", conversion="classical")
    zeroed, replaced = (epsilon("fixed", one) for one in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE))
    for name in ("light", "dark"):
        drawn = ET.parse(ROOT / "docs" / "_static" / f"epsilon-{name}.svg").getroot()
        assert drawn[0].text == (
            f"epsilon after 180 rounds: {printed} as printed; "
            f"for what runs {zeroed} (zero-out) and {replaced} (replace-one)"
        )
    assert (
        f'alt="One plan: a paper prints epsilon {printed}; '
        f'what runs has {zeroed} (zero-out) or {replaced} (replace-one)"' in README
    )


def test_pages_are_few_and_say_for_whom_they_are():
    command = [sys.executable, "docs/count.py"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pages, words = re.search(r"(\d+) pages, ([\d,]+) words", printed).groups()
    assert int(pages) <= 30
    assert int(words.replace(",", "")) <= 26_000
    for name in re.findall(r"([\w/-]+\.md)", printed):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert name == "index.md" or re.search(r"^# .*\n\nFor ", text, flags=re.MULTILINE), name
        assert name in ("index.md", "quickstart.md") or "\nRead next: " in text, name
