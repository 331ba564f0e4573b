"""The documentation site: `make docs`. Tutorials run while it is built; a warning ends the build."""

import importlib
import inspect
import os
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path

from docutils.nodes import literal_block
from sphinx.transforms.post_transforms import SphinxPostTransform

project, copyright, author = "dpfed", "The dpfed authors", "The dpfed authors"
release = version = version_of("dpfed")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_design"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"dpfed {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]

# Commands of tutorials are this environment's, in tables of a page's width; files go to a temporary folder.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
os.environ |= {
    "COLUMNS": "90",
    "OMP_NUM_THREADS": "1",
    "TTY_COMPATIBLE": "0",
    "NO_COLOR": "1",
    "DPFED_EXAMPLES": str(Path(__file__).parents[1] / "examples"),
}
os.environ["DPFED_FLOWER"] = str(Path(__file__).parents[1] / ".venv-flower" / "bin")
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 1800
nb_execution_show_tb = True
nb_merge_streams = True
nb_render_markdown_format = "myst"  # its tables are tables

autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"

ROOT = Path(__file__).parents[1]
COPIES = {
    "SECURITY.md": "security",
    "CHANGELOG.md": "changelog",
    "examples/README.md": "examples",
    "README.md": "index",
}
"""Where the site has what the repository keeps outside of docs/. All but the last are that file's text."""


def from_the_repository(app, name, source):
    """The pages that are copies get their text. Links to files that no page has become plain words."""
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
    if name == "reference":
        source[0] = re.sub(r"^% public: ([\w.]+)$", public_names, source[0], flags=re.MULTILINE)
    if name == "examples":
        files = sorted((ROOT / "examples").glob("*.py"))
        source[0] += "".join(f"\n## {one.name}\n\n```{{literalinclude}} ../examples/{one.name}\n```\n" for one in files)


def public_names(match):
    """A line `% public: MODULE` of the reference becomes every class and function that the module offers."""
    module, lines = importlib.import_module(match[1]), []
    for name in sorted(module.__all__, key=str.lower):
        thing = getattr(module, name)
        if inspect.isclass(thing):
            lines.append(f".. autoclass:: {match[1]}.{name}\n   :members:")
        elif inspect.isfunction(thing):
            lines.append(f".. autofunction:: {match[1]}.{name}")
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```"


def as_written(app, what, name, thing, options, lines):
    """Docstrings are plain text in columns, and are shown so."""
    lines[:] = [".. code-block:: text", "", *(f"   {line}" for line in lines), ""] if lines else []


class CommandsAsSuch(SphinxPostTransform):
    """A cell of commands is shown as such, without the line that makes Python run them."""

    default_priority = 1

    def run(self, **options):
        for block in self.document.findall(literal_block):
            if (text := block.astext()).startswith("%%sh\n"):
                block.replace_self(
                    literal_block("", text.removeprefix("%%sh\n"), language="sh", classes=block["classes"])
                )


def setup(app):
    app.add_post_transform(CommandsAsSuch)
    app.connect("source-read", from_the_repository)
    app.connect("autodoc-process-docstring", as_written)
