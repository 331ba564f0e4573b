"""A command loads no more than it uses; names that are imported when they are first used are all there."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import accounting
from accounting import ledger
from dpfed.cli import COMMANDS, app_of

HEAVY = ("numpy", "scipy", "torch", "pydantic", "jinja2", "dp_accounting", "matplotlib", "sklearn", "opacus",
         "mpmath", "pandas", "absl")  # fmt: skip
PLAN = ["budget", "--clients", "6000", "--cohort", "100", "--rounds", "180"]


def loaded_by(code, heavy=HEAVY):
    """Return the heavy packages that a fresh process has loaded after `code`."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code\n"
    script += f"print(*[m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stderr.split()


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(
    "code",
    [
        "import accounting, accounting.ledger",
        "import dpfed",
        *(f"from dpfed.cli import main; main({words!r})" for words in (["--version"], ["--help"], [])),
        "from dpfed.cli import main; main(['run', '--list'])",
        "from dpfed.cli import main; main(['run', '--help'])",
        "from dpfed.cli import main; main(['methods', '--json'])",
    ],
)
def test_a_command_without_numbers_loads_no_numerics(code):
    assert loaded_by(code) == []


UNUSED = ("scipy.optimize", "scipy.stats", "scipy.signal", "scipy.linalg", "torch", "dp_accounting", "pydantic",
          "opacus", "sklearn", "matplotlib")  # fmt: skip
EVERYBODY = ["budget", "--clients=9", "--cohort=9", "--sampling=all", "--rounds=9", "--noise-multiplier=9"]


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        (
            "from dpfed.cli import status; "
            f"sys.exit(status({[*PLAN, '--noise-multiplier', '1.4']!r}) or status({EVERYBODY!r}))",
            UNUSED,
        ),
        pytest.param(
            f"from dpfed.cli import main; main({[*PLAN, '--epsilon', '1.01']!r})", UNUSED, marks=pytest.mark.slow
        ),
        ("import dpfed.planner.server, dpfed.planner.static, dpfed.data", ("torch", "sklearn")),
    ],
)
def test_neither_a_budget_nor_the_planner_nor_data_load_what_they_do_not_use(code, heavy):
    assert loaded_by(code, heavy) == []


def test_the_test_of_what_is_loaded_sees_what_is():
    assert loaded_by("import scipy.special") == ["numpy", "scipy"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_first_paragraph_of_its_own_page(name):
    command = getattr(importlib.import_module(f"dpfed.cli.{name}"), name)
    words = command.help if name in ("audit", "ledger") else inspect.getdoc(command).split("\n\n")[0]
    assert COMMANDS[name] == " ".join(words.split())


def test_the_page_of_a_command_has_its_whole_text():
    assert "Example: dpfed budget" in app_of(["budget", "--help"])["budget"].help
    assert app_of(["--help"])["budget"].help == COMMANDS["budget"]


@pytest.mark.parametrize("package", [accounting, ledger], ids=["accounting", "ledger"])
def test_names_that_wait_are_those_that_type_checkers_see(package):
    tree = ast.parse(Path(package.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name: f"{line.module}.{alias.name}"
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert sorted(seen) == sorted(package.__all__) == dir(package)
    for name, home in seen.items():
        module, _, attribute = home.rpartition(".")
        try:
            there = getattr(importlib.import_module(module), attribute)
        except AttributeError:
            there = importlib.import_module(home)
        assert getattr(package, name) is there
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018
