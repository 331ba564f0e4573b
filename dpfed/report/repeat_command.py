"""Commands that repeat a run, including the user's code and data files."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from dpfed import data, models
from dpfed.clients.losses import OWN
from dpfed.config.own_code import UserCodeFile
from dpfed.errors import ConfigError
from dpfed.runs.resuming import read_own_code

SAME_RUN = "the same run"
ANOTHER_RUN = "another run with equal settings; secret noise and cohorts cannot be repeated"


def repeat_command(folder: Path, tables: Mapping[str, object], *, config: str, out: str | None = None) -> str:
    """Return the command line that repeats the run of `folder`, with a comment whether the new run is identical.

    tables: configuration of the run. config: path of config.toml for the reader of the command. A run that used Python
    objects or code typed in a session is repeated by a Python call instead.
    """
    own = read_own_code(folder)
    words = ANOTHER_RUN if _subtable(tables, "run").get("randomness") == "secure" else SAME_RUN
    if objects := _unnamed_objects(tables, own):
        given = "".join(f", {name}=..." for name in objects if name != "code")
        where = "" if out is None else f", out={out!r}"
        code = " after your code has run" if "code" in objects else ""
        return f"dpfed.run({config!r}{given}{where})      # in Python{code}: {words}"
    command = ["dpfed", "run", config]
    command += [word for one in own for word in ("--load", one.path)]
    command += [word for one in _data_root_setting(tables) for word in ("--set", one)]
    command += [] if out is None else ["--out", out]
    return f"{shlex.join(command)}      # {words}"


def _subtable(tables: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = tables.get(name)
    return found if isinstance(found, Mapping) else {}


def _unnamed_objects(tables: Mapping[str, object], own: tuple[UserCodeFile, ...]) -> list[str]:
    """Return inputs that no command can name: arguments of `dpfed.run`, and "code" for code typed in a session."""
    found = [] if all(one.sha256 for one in own) else ["code"]
    for key, check in (("data", data.check_name), ("model", models.check_name)):
        name = _subtable(tables, key).get("name")
        if isinstance(name, str) and not own and not _is_known_name(check, name):
            found.append(key)
    return found + (["loss"] if _subtable(tables, "local").get("loss") == OWN else [])


def _is_known_name(check: Callable[[str], None], name: str) -> bool:
    try:
        check(name)
    except ConfigError:
        return False
    return True


def _data_root_setting(tables: Mapping[str, object]) -> list[str]:
    """Return the setting of data.root as absolute path if it is relative and has the user's data file, else nothing."""
    table = _subtable(tables, "data")
    name, root = table.get("name"), table.get("root") or "."
    if not isinstance(name, str) or not isinstance(root, str) or not data.is_own(name) or Path(root).is_absolute():
        return []
    return [f"data.root={Path(root).absolute()}"] if (Path(root) / name).exists() else []
