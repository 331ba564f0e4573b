"""Loading of user-defined Python files, which register schemes, methods, networks and data sets for every command.

A configuration is data, possibly from a stranger, so it cannot name code. The user of a command names code with `--load
FILE.py` or $DPFED_OWN_CODE; an installed package names code by its entry points.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_input
from dpfed.config import registered
from dpfed.config.registered import VARIABLE, Kind
from dpfed.errors import ConfigError, DpfedError

ENTRY_POINTS: dict[str, Kind] = {"dpfed.schemes": "scheme", "dpfed.methods": "method"}
"""Groups of entry points, and what they register: importing the object or module of an entry point registers its
name."""

_MOST_SAID = 300


@dataclass(frozen=True, kw_only=True)
class UserCodeFile:
    """A file of user-defined code that has run: its path and the hash of its content at that time."""

    path: str
    sha256: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


_LOADED: dict[str, UserCodeFile] = {}
"""Files that were named by --load or $DPFED_OWN_CODE and have run in this process, by path."""

_INSTALLED: set[str] = set()
"""Paths of files that registered names when an entry point of an installed package was loaded."""


def load_own_code() -> None:
    """Run the files named by $DPFED_OWN_CODE and load the entry points of installed packages, once in each process.

    Several files are separated as in $PATH. Worker processes and nodes that inherit the variable run the same files. A
    changed file runs again; if a file is no longer named, the names that it registered are removed. Raises ConfigError
    if a file is missing or raises an error.
    """
    files = [str(Path(name).absolute()) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    for gone in [path for path in _LOADED if path not in files]:
        _forget_file(gone)
    for path in files:
        _run_file(path)
    for point in _installed_entry_points():
        _load_entry_point(point)


def load_files(files: Iterable[Path]) -> None:
    """Add these files to $DPFED_OWN_CODE, which child processes inherit, and run all files that it names."""
    named = os.environ.get(VARIABLE, "").split(os.pathsep)
    added = [str(Path(file).absolute()) for file in files]
    if added:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(name for name in [*named, *added] if name))
    load_own_code()


def named_files() -> tuple[UserCodeFile, ...]:
    """Return the files named by --load or $DPFED_OWN_CODE; every other process or machine of a run must load them,
    too."""
    return tuple(_LOADED.values())


def code_files_of_run(used: Iterable[tuple[Kind, str]]) -> tuple[UserCodeFile, ...]:
    """Return the user-defined code of a run: all named files, and every file that registered a (kind, name) in `used`.

    The hash is empty for code of an interactive session, which has no file.
    """
    found = dict(_LOADED)
    for kind, name in used:
        file = registered.registering_file(kind, name)
        if file is not None and file not in found:
            found[file] = UserCodeFile(path=file, sha256=_sha256(Path(file)) if Path(file).is_file() else "")
    return tuple(found.values())


def files_not_loaded(files: Iterable[UserCodeFile]) -> tuple[UserCodeFile, ...]:
    """Return those of the given files that have neither run in this process nor registered a name in it."""
    contents = {one.sha256 for one in _LOADED.values()}
    return tuple(one for one in files if one.sha256 not in contents and not registered.has_registered(one.path))


def files_of_this_process_only(files: Iterable[UserCodeFile]) -> tuple[str, ...]:
    """Return the paths of files whose code only this process has: they are neither named nor part of an installed
    package."""
    return tuple(one.path for one in files if one.path not in _LOADED and one.path not in _INSTALLED)


def code_hash(files: Iterable[UserCodeFile]) -> str:
    """Return one hash of the contents of all files, independent of their paths; an empty text if there are no files."""
    contents = sorted(one.sha256 for one in files)
    return hashlib.sha256(" ".join(contents).encode()).hexdigest() if contents else ""


def error_text(error: BaseException) -> str:
    """Return type, message and source line of an error in user code, the innermost line outside of dpfed and torch."""
    ours = (f"{Path(__file__).parent}{os.sep}", f"{os.sep}torch{os.sep}")
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not any(folder in frame.filename for folder in ours)]
    said = " ".join(str(error).split())
    words = f"{type(error).__name__}: {said[:_MOST_SAID]}{'...' if len(said) > _MOST_SAID else ''}"
    known = [frame for frame in theirs if Path(frame.filename).is_file()]
    return f"{words} ({known[-1].filename}, line {known[-1].lineno})" if known else words


@contextmanager
def errors_of_user_code(what: str) -> Iterator[None]:
    """Context manager that re-raises exceptions of user code as ConfigError, whose message begins with `what`.

    Exceptions that dpfed itself defines pass unchanged.
    """
    try:
        yield
    except DpfedError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"{what}: {error_text(error)}.") from error


def _run_file(path: str) -> None:
    """Run the file if it is new or has changed. The file is read once, so that the hashed code is the code that
    runs."""
    content = _file_content(Path(path))
    made = UserCodeFile(path=path, sha256=hashlib.sha256(content).hexdigest())
    if _LOADED.get(path) == made:
        return
    _forget_file(path)
    name = f"dpfed_own_{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _LOADED[path] = made
    try:
        exec(compile(content, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        _forget_file(path)
        said = str(error) if isinstance(error, ConfigError) else error_text(error)
        raise ConfigError(f"own code (--load, ${VARIABLE}): {path} fails: {said}") from error


def _file_content(file: Path) -> bytes:
    try:
        if file.suffix == ".py":
            return read_input(file, at_most=LARGEST_CONFIGURATION)
    except OSError:
        pass
    raise ConfigError(
        f"own code (--load, ${VARIABLE}): {file} is not an existing Python file. Give its path, such as my_network.py."
    )


def _forget_file(path: str) -> None:
    _LOADED.pop(path, None)
    registered.forget_file(path)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _installed_entry_points() -> list[EntryPoint]:
    return [point for group in ENTRY_POINTS for point in entry_points(group=group)]


@cache
def _load_entry_point(point: EntryPoint) -> None:
    where = f"the entry point {point.name} = {point.value} of {point.dist.name if point.dist else 'a package'}"
    try:
        point.load()
    except (Exception, SystemExit) as error:  # a package may raise anything
        said = str(error) if isinstance(error, ConfigError) else error_text(error)
        raise ConfigError(f"{where} fails: {said}. Repair the package, or uninstall it.") from error
    kind = ENTRY_POINTS[point.group]
    file = registered.registering_file(kind, point.name)
    if file is None:
        raise ConfigError(f"{where}: registers no {kind} of this name. Repair the package, or uninstall it.")
    _INSTALLED.add(file)
