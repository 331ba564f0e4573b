"""User-defined Python files, which register schemes, methods, networks and data sets for every command.

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
"""Groups of entry points, each of which names an object or a module that registers a name when it is imported."""

_MOST_SAID = 300


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """A file of user-defined code as it ran: its path and its hash."""

    path: str
    sha256: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


_LOADED: dict[str, OwnFile] = {}
"""Files that have run in this process, by path."""

_INSTALLED: set[str] = set()
"""Files that installed packages' entry points have registered names from."""


def load_own_code() -> None:
    """Run the files that $DPFED_OWN_CODE names, once in each process, and the entry points of installed packages.

    Several files are separated as in $PATH. Worker processes and nodes that inherit the variable run the same files. A
    changed file runs again; names registered by files that are not named any more are removed. ConfigError if a file is
    missing or fails.
    """
    files = [str(Path(name).absolute()) for name in os.environ.get(VARIABLE, "").split(os.pathsep) if name]
    for gone in [path for path in _LOADED if path not in files]:
        _forget(gone)
    for path in files:
        _run(path)
    for point in _installed():
        _load(point)


def load(files: Iterable[Path]) -> None:
    """Run these files and those that $DPFED_OWN_CODE names, and pass both on to processes that this process starts."""
    named = os.environ.get(VARIABLE, "").split(os.pathsep)
    added = [str(Path(file).absolute()) for file in files]
    if added:
        os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(name for name in [*named, *added] if name))
    load_own_code()


def named_files() -> tuple[OwnFile, ...]:
    """Return the files that were named and have run, which other processes and machines need, too."""
    return tuple(_LOADED.values())


def own_files(used: Iterable[tuple[Kind, str]]) -> tuple[OwnFile, ...]:
    """Return the user-defined code of a run: all named files, and files that registered a name in `used` (kind and
    name).

    An interactive session has no file: its hash is empty.
    """
    found = dict(_LOADED)
    for kind, name in used:
        file = registered.file_of(kind, name)
        if file is not None and file not in found:
            found[file] = OwnFile(path=file, sha256=_sha256(Path(file)) if Path(file).is_file() else "")
    return tuple(found.values())


def not_loaded(files: Iterable[OwnFile]) -> tuple[OwnFile, ...]:
    """Return the files that have neither run in this process nor registered anything in it."""
    contents = {one.sha256 for one in _LOADED.values()}
    return tuple(one for one in files if one.sha256 not in contents and not registered.registers(one.path))


def only_here(files: Iterable[OwnFile]) -> tuple[str, ...]:
    """Return the files that are registered in this process only: neither named nor from a package, so other
    processes lack them.
    """
    return tuple(one.path for one in files if one.path not in _LOADED and one.path not in _INSTALLED)


def code_hash(files: Iterable[OwnFile]) -> str:
    """Return one hash of the contents of these files, independent of their paths; empty without files."""
    contents = sorted(one.sha256 for one in files)
    return hashlib.sha256(" ".join(contents).encode()).hexdigest() if contents else ""


def error_text(error: BaseException) -> str:
    """Return type, message and place of an error in user code: the last line that is neither dpfed's nor torch's."""
    ours = (f"{Path(__file__).parent}{os.sep}", f"{os.sep}torch{os.sep}")
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not any(folder in frame.filename for folder in ours)]
    said = " ".join(str(error).split())
    words = f"{type(error).__name__}: {said[:_MOST_SAID]}{'...' if len(said) > _MOST_SAID else ''}"
    known = [frame for frame in theirs if Path(frame.filename).is_file()]
    return f"{words} ({known[-1].filename}, line {known[-1].lineno})" if known else words


@contextmanager
def errors_of_user_code(what: str) -> Iterator[None]:
    """Context that turns exceptions of user-defined code into ConfigError beginning with `what`; dpfed's errors pass
    unchanged.
    """
    try:
        yield
    except DpfedError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"{what}: {error_text(error)}.") from error


def _run(path: str) -> None:
    """Run the file if it is new or has changed. It is read once, so that the hashed code is the code that runs."""
    content = _content(Path(path))
    made = OwnFile(path=path, sha256=hashlib.sha256(content).hexdigest())
    if _LOADED.get(path) == made:
        return
    _forget(path)
    name = f"dpfed_own_{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _LOADED[path] = made
    try:
        exec(compile(content, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        _forget(path)
        said = str(error) if isinstance(error, ConfigError) else error_text(error)
        raise ConfigError(f"own code (--load, ${VARIABLE}): {path} fails: {said}") from error


def _content(file: Path) -> bytes:
    try:
        if file.suffix == ".py":
            return read_input(file, at_most=LARGEST_CONFIGURATION)
    except OSError:
        pass
    raise ConfigError(
        f"own code (--load, ${VARIABLE}): {file} is no Python file that is there. Give its path, such as my_network.py."
    )


def _forget(path: str) -> None:
    _LOADED.pop(path, None)
    registered.forget(path)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _installed() -> list[EntryPoint]:
    return [point for group in ENTRY_POINTS for point in entry_points(group=group)]


@cache
def _load(point: EntryPoint) -> None:
    where = f"the entry point {point.name} = {point.value} of {point.dist.name if point.dist else 'a package'}"
    try:
        point.load()
    except (Exception, SystemExit) as error:  # a package may raise anything
        said = str(error) if isinstance(error, ConfigError) else error_text(error)
        raise ConfigError(f"{where} fails: {said}. Mend the package, or uninstall it.") from error
    kind = ENTRY_POINTS[point.group]
    file = registered.file_of(kind, point.name)
    if file is None:
        raise ConfigError(f"{where}: registers no {kind} of that name. Mend the package, or uninstall it.")
    _INSTALLED.add(file)
