"""Configuration of the documentation site (`make docs`). Tutorials run during the build; a warning ends the build."""

import importlib
import inspect
import os
import re
import sys
import tempfile
from importlib.metadata import version as version_of
from pathlib import Path

from docutils.nodes import literal_block
from numpy.typing import ArrayLike
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.typing import stringify_annotation

from accounting.arrays import Floats

sys.path.insert(0, str(Path(__file__).parent))
import claims
import search_words

project, copyright, author = "dpfed", "The dpfed authors", "The dpfed authors"
release = version = version_of("dpfed")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"dpfed {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]

# Commands of tutorials come from this environment; tables have a page's width; files go to a temporary folder.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ |= {
    "COLUMNS": "90",
    "OMP_NUM_THREADS": "1",
    "TTY_COMPATIBLE": "0",
    "NO_COLOR": "1",
    "MPLBACKEND": "agg",
    "DPFED_EXAMPLES": str(Path(__file__).parents[1] / "examples"),
}
# Cells of commands print their output in one piece: IPython's own magic cuts it every hundred bytes. A command that
# fails ends the build, in a pipe, too; a line `%%sh 1` is of a cell whose last command has this exit status.
os.environ["IPYTHONDIR"] = tempfile.mkdtemp()
STARTUP = Path(os.environ["IPYTHONDIR"]) / "profile_default" / "startup" / "commands.py"
STARTUP.parent.mkdir(parents=True)
STARTUP.write_text("""
import subprocess

def sh(line, cell):
    shell = ["bash", "-e", "-u", "-o", "pipefail", "-c", cell]
    done = subprocess.run(shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, end="")
    if done.returncode != int(line or 0):
        raise RuntimeError(f"exit status {done.returncode}, not {line or 0}: {cell}{done.stdout}")

get_ipython().register_magic_function(sh, "cell")
""")
os.environ["DPFED_FLOWER"] = str(Path(__file__).parents[1] / ".venv-flower" / "bin")
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 1800
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"  # its tables are tables

autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
viewcode_line_numbers = True
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"

ROOT = Path(__file__).parents[1]
COPIES = {
    "SECURITY.md": "security",
    "CHANGELOG.md": "changelog",
    "examples/README.md": "examples",
    "README.md": "index",
}
"""Pages of the site for files outside docs/. All pages except the last contain the text of their file."""


def from_the_repository(app, name, source):
    """Insert the text of pages that are copies; replace links to files without a page by plain text."""
    path = f"docs/{name}.md"
    for original, page in COPIES.items():
        if page == name and name != "index":
            path, source[0] = original, (ROOT / original).read_text()
    folder = Path(path).parent

    def link(match):
        image, words, target, anchor = match.groups()
        if re.match(r"[a-z]+:", target):
            return match[0]
        there = os.path.normpath(folder / target)
        if there.startswith("docs/") and there.endswith(".md") and (ROOT / there).exists():
            page = there.removeprefix("docs/").removesuffix(".md")
        elif there in COPIES:
            page = COPIES[there]
        elif there.startswith("examples/") and there.endswith(".py"):
            page, anchor = "examples", None
        else:
            return "" if image else words
        return f"[{words}]({os.path.relpath(f'{page}.md', Path(name).parent)}{anchor or ''})"

    source[0] = re.sub(r"(!?)\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)", link, source[0])
    source[0] = re.sub(r"^% public: ([\w.]+)$", public_names, source[0], flags=re.MULTILINE)
    if name in search_words.KEYWORDS:
        entries = "".join(f"   ! single: {query}\n" for query, page in search_words.THREADS.items() if page == name)
        words = f".. meta::\n   :keywords: {', '.join(search_words.KEYWORDS[name].split())}\n\n.. index::\n{entries}"
        source[0] = re.sub(
            r"^# .+$",
            lambda title: f"{title[0]}\n\n```{{eval-rst}}\n{words}```",
            source[0],
            count=1,
            flags=re.MULTILINE,
        )
    if name == "claimed":
        source[0] = source[0].replace("% claims", claims.page_text())
    if name == "examples":
        files = sorted((ROOT / "examples").glob("*.py"))
        source[0] += "".join(f"\n## {one.name}\n\n```{{literalinclude}} ../examples/{one.name}\n```\n" for one in files)


PAGES = (
    "accounting.bernoulli",
    "accounting.budget",
    "accounting.gaussian",
    "accounting.ledger",
    "accounting.mechanisms",
)
"""Modules whose pages also list the names that the package exports, under the package's shorter name."""


def public_names(match):
    """Replace a line `% public: MODULE` by every class and function that the module exports."""
    module, package = importlib.import_module(match[1]), importlib.import_module(match[1].partition(".")[0])
    shared = {
        id(getattr(importlib.import_module(one), name))
        for one in PAGES
        for name in importlib.import_module(one).__all__
    }
    own = [name for name, one in vars(module).items() if name[0] != "_" and getattr(one, "__module__", "") == match[1]]
    lines = []
    for name in sorted(getattr(module, "__all__", own), key=str.lower):
        one = getattr(module, name)
        exported = name in package.__all__ and getattr(package, name) is one
        elsewhere = id(one) in shared if module is package else exported and match[1] not in PAGES
        if (inspect.isclass(one) or inspect.isfunction(one)) and not elsewhere:
            full = f"{(package if exported else module).__name__}.{name}"
            lines.append(
                f".. autoclass:: {full}\n   :members:" if inspect.isclass(one) else f".. autofunction:: {full}"
            )
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```"


ALIASES = {stringify_annotation(ArrayLike, mode): "ArrayLike" for mode in ("smart", "fully-qualified")}
ALIASES |= {stringify_annotation(Floats, mode): "Floats" for mode in ("smart", "fully-qualified")}


def readable(app, what, name, thing, options, signature, returned):
    """Use aliases of array types in signatures."""
    for written, alias in ALIASES.items():
        signature, returned = (text and text.replace(written, alias) for text in (signature, returned))
    return signature, returned


def as_written(app, what, name, thing, options, lines):
    """Convert plain-text docstrings: paragraphs and examples; columns and formulas stay literal."""
    written = []
    for part in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        rows = part.splitlines()
        if not rows or rows[0].lstrip().startswith(">>>"):
            written += [*rows, ""]
        elif any(row.startswith(" ") or re.match(r"[-*] |\S.*\S  +\S", row) for row in rows):
            written += [".. code-block:: text", "", *(f"   {row}" for row in rows), ""]
        else:
            quoted = re.split(r"`+([^`]+)`+", " ".join(rows))
            plain = [f"``{one}``" if i % 2 else re.sub(r"([*_|\\`])", r"\\\1", one) for i, one in enumerate(quoted)]
            written += ["\\ ".join(plain), ""]
    lines[:] = written


class CommandsAsSuch(SphinxPostTransform):
    """Show a cell of commands without its first line, the magic that runs the commands."""

    default_priority = 1

    def run(self, **options):
        for block in self.document.findall(literal_block):
            first, _, commands = block.astext().partition("\n")
            if re.fullmatch(r"%%sh( \d+)?", first):
                block.replace_self(literal_block("", commands, language="sh", classes=block["classes"]))


def setup(app):
    app.add_post_transform(CommandsAsSuch)
    app.connect("source-read", from_the_repository)
    app.connect("autodoc-process-docstring", as_written)
    app.connect("autodoc-process-signature", readable)
