"""Folder of a complete Flower app that runs one configuration."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import tomli_w

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_input
from dpfed.config.own_code import UserCodeFile
from dpfed.config.tables import Config
from dpfed.errors import RunError
from dpfed.version import __version__

_PACKAGE = "dpfed_app"

_SERVER = '''"""Samples clients, sums their uploads, adds noise, keeps the ledger and writes the run folder."""

from pathlib import Path

from dpfed.engines.flower.server_app import server_app

app = server_app(Path(__file__).with_name("config.toml"){own_code})
'''

_CLIENT = '''"""Trains one client, bounds and codes its update."""

from pathlib import Path

from dpfed.engines.flower.client_app import client_app

app = client_app(Path(__file__).with_name("config.toml"){own_code})
'''

_CLIENT_WITH_ITS_OWN_DATA = '''"""Trains one client on the samples of its node, bounds and codes its update."""

from pathlib import Path
from typing import Any

from dpfed.engines.flower.client_app import client_app
from dpfed.engines.flower.own_data import samples_of_file
from flwr.app import Context


def load_data(context: Context) -> tuple[Any, Any]:
    """This node's own samples, at least one: inputs [n, ...], numbers, each of the shape and on the scale of the test
    samples of data.name; labels [n], integers from 0 to classes - 1. Called on the node, for every round.

    As written: the arrays `inputs` and `labels` of the safetensors file that the node was started with,
    flower-supernode --node-config 'partition-id=0 data="/data/mine.safetensors"'. Put your own loading in its place.
    """
    return samples_of_file(context)


app = client_app(Path(__file__).with_name("config.toml"), load_data=load_data{own_code})
'''


def write_app(config: Config, folder: Path, *, name: str, own_code: Sequence[UserCodeFile] = ()) -> None:
    """Write pyproject.toml and a package of server app, client app, configuration and user-defined files.

    Raises RunError if the folder already contains a file, or if a file cannot be written.
    """
    tables = tomli_w.dumps(config.to_dict())
    copies = _code_copies(own_code)
    argument = _own_code_argument(copies)
    client = _CLIENT_WITH_ITS_OWN_DATA if config.data.partition == "nodes" else _CLIENT
    files = {
        "pyproject.toml": tomli_w.dumps(_project_table(folder, name)),
        f"{_PACKAGE}/__init__.py": f'"""{name} on Flower."""\n',
        f"{_PACKAGE}/server_app.py": _SERVER.replace("{own_code}", argument),
        f"{_PACKAGE}/client_app.py": client.replace("{own_code}", argument),
        f"{_PACKAGE}/config.toml": tables,
        **{f"{_PACKAGE}/{copy}": content for copy, content in copies.items()},
    }
    try:
        (folder / _PACKAGE).mkdir(parents=True, exist_ok=True)
        taken = [one.name for one in folder.iterdir() if one.name != _PACKAGE or any(one.iterdir())]
        if taken:
            raise RunError(f"{folder}: is not empty ({taken[0]}). Use another --out.")
        for path, content in files.items():
            (folder / path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder}: the app cannot be written ({error.strerror}).") from None


def _code_copies(own_code: Sequence[UserCodeFile]) -> dict[str, str]:
    """Return the content of the user's files by name; the app contains copies of them for every node.

    Raises RunError for a file that has changed since it ran.
    """
    copies: dict[str, str] = {}
    for place, one in enumerate(own_code):
        try:
            content = read_input(one.path, at_most=LARGEST_CONFIGURATION)
        except OSError as error:
            raise RunError(f"{one.path}: own code that cannot be read ({error.strerror}).") from None
        if hashlib.sha256(content).hexdigest() != one.sha256:
            raise RunError(f"{one.path}: the file has changed since it was loaded. Start again.")
        copies[f"own_code_{place}_{Path(one.path).stem}.py"] = content.decode("utf-8")
    return copies


def _own_code_argument(copies: Iterable[str]) -> str:
    listed = ", ".join(f'Path(__file__).with_name("{copy}")' for copy in copies)
    return f", own_code=[{listed}]" if listed else ""


def default_run_folder(folder: Path) -> str:
    """Return the default run folder, a name in the folder where the SuperLink starts.

    It is no part of the app, whose files are sent to every node.
    """
    return f"{folder.resolve().name}-run"


def _project_table(folder: Path, name: str) -> dict[str, object]:
    components = {"serverapp": f"{_PACKAGE}.server_app:app", "clientapp": f"{_PACKAGE}.client_app:app"}
    waiting = {"timeout": 3600.0, "patience": 300.0}
    config = {"out": default_run_folder(folder), "resume": False, **waiting, "metrics": False}
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    return {
        "project": {
            "name": f"dpfed-{plain}",
            "version": "1.0.0",
            "description": "A private federated run of dpfed",
            "dependencies": [f"dpfed[flower]=={__version__}"],
        },
        "tool": {"flwr": {"app": {"publisher": "dpfed", "components": components, "config": config}}},
    }
