"""Each claim in experiments/README.md names a command, and the command names what there is."""

import re
import shlex
import tomllib
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLAIM = re.compile(r"^\| [^|]+ \| (`(?:dpfed|python|\.\.\.).+`) \|$", re.MULTILINE)


def commands():
    """Words of every command; `...` stands for the one above."""
    found: list[list[str]] = []
    for cell in CLAIM.findall((ROOT / "experiments" / "README.md").read_text(encoding="utf-8")):
        for words in map(shlex.split, re.findall(r"`([^`]+)`", cell)):
            if words[0] == "...":
                words = [*found[-1][: found[-1].index("--only")], *words[1:]]
            elif words[0].startswith(".../"):
                words = ["dpfed", "sweep", f"experiments/accuracy/{words[0][4:]}", *words[1:]]
            found.append(words)
    return found


def test_there_is_a_command_for_every_claim():
    text = (ROOT / "experiments" / "README.md").read_text(encoding="utf-8")
    table = text[text.index("| claim | command |") :].split("\n\n")[0].splitlines()[2:]
    assert table
    assert [line for line in table if not CLAIM.match(line)] == []


def test_commands_name_files_rows_profiles_and_groups_that_exist():
    for words in commands():
        path = ROOT / words[2 if words[0] == "dpfed" else 1]
        assert path.exists(), words
        if words[0] == "dpfed":
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
            rows = {row["name"] for row in tables["row"]}
            options = dict(zip(words[3::2], words[4::2], strict=True))
            assert {name for option, name in pairwise(words) if option == "--only"} <= rows, words
            assert options.get("--profile", "full") in tables["profiles"], words
        elif words[2:]:
            assert all(f'    "{group}": {{' in path.read_text(encoding="utf-8") for group in words[2:]), words
