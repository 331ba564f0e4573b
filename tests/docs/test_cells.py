"""A command that fails on a tutorial's page ends the build of the site, in a pipe, too."""

import ast
import re
from pathlib import Path

import pytest
from refusals import refused

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def sh():
    """The magic of `%%sh` cells, from the text that conf.py writes for IPython."""
    magics = {}

    class Shell:
        def register_magic_function(self, function, kind):
            magics[function.__name__] = function

    (code,) = (
        node.args[0].value
        for node in ast.walk(ast.parse((DOCS / "conf.py").read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "STARTUP.write_text"
    )
    exec(code, {"get_ipython": Shell})
    return magics["sh"]


@pytest.mark.parametrize("cell", ["false | tail -3\n", "false\ntrue\n", "false\n", "echo $NOT_THERE\n"])
def test_a_cell_fails_with_any_of_its_commands(sh, cell, capsys):
    refused(RuntimeError, "exit status 1", sh, "", cell)


def test_a_cell_that_shows_a_failure_says_so(sh, capsys):
    sh("", "echo seen\n")
    sh("1", "echo refused; exit 1\n")
    assert capsys.readouterr().out == "seen\nrefused\n"
    refused(RuntimeError, "exit status 0, not 1", sh, "1", "true\n")


def test_no_page_hides_a_status():
    for page in sorted((DOCS / "tutorials").glob("*.md")):
        for block in re.findall(r"^%%sh.*?\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            assert not re.search(r"\|\| *(true|:)|; *true", block), page.name
