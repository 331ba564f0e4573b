"""Commands that repeat a run, with the user's code and data that it needs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from dpfed import data, models
from dpfed.clients.losses import OWN
from dpfed.config.own_code import UserCodeFile
from dpfed.errors import ConfigError
from dpfed.runs.resuming import read_own_code

SAME = "the same run"
ANOTHER = "another run with the same settings; secret noise and cohorts cannot be repeated"


def repeated(folder: Path, tables: Mapping[str, object], *, config: str, out: str | None = None) -> str:
    """Return the line that repeats the run of `folder`, and what it makes: the same run, or another one like it.

    tables: its configuration. config: path of config.toml, as the reader of the line has it. A run of objects that were
    given in Python, or of code typed in a session, is repeated by a Python call.
    """
    own = read_own_code(folder)
    words = ANOTHER if _table(tables, "run").get("randomness") == "secure" else SAME
    if objects := _objects(tables, own):
        given = "".join(f", {name}=..." for name in objects if name != "code")
        where = "" if out is None else f", out={out!r}"
        code = " after your code has run" if "code" in objects else ""
        return f"dpfed.run({config!r}{given}{where})      # in Python{code}: {words}"
    command = ["dpfed", "run", config]
    command += [word for one in own for word in ("--load", one.path)]
    command += [word for one in _data_root(tables) for word in ("--set", one)]
    command += [] if out is None else ["--out", out]
    return f"{shlex.join(command)}      # {words}"


def _table(tables: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = tables.get(name)
    return found if isinstance(found, Mapping) else {}


def _objects(tables: Mapping[str, object], own: tuple[UserCodeFile, ...]) -> list[str]:
    """Return what no command can name: arguments of `dpfed.run`, and "code" for code typed in a session."""
    found = [] if all(one.sha256 for one in own) else ["code"]
    for key, check in (("data", data.check_name), ("model", models.check_name)):
        name = _table(tables, key).get("name")
        if isinstance(name, str) and not own and not _known(check, name):
            found.append(key)
    return found + (["loss"] if _table(tables, "local").get("loss") == OWN else [])


def _known(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except ConfigError:
        return False
    return True


def _data_root(tables: Mapping[str, object]) -> list[str]:
    """Return the setting that names the folder of a user's data file, if it lies below the current folder."""
    table = _table(tables, "data")
    name, root = table.get("name"), table.get("root") or "."
    if not isinstance(name, str) or not isinstance(root, str) or not data.is_own(name) or Path(root).is_absolute():
        return []
    return [f"data.root={Path(root).absolute()}"] if (Path(root) / name).exists() else []
