"""User-defined code: its files, and the names that it registers (schemes, methods, networks, data sets, samplers, ...).

A registered name stands for one object: it is an error to register a name from two places, or
to register the name of a built-in object.

A configuration is data, possibly from a stranger, so it cannot name code. The user of a command names code with `--load
FILE.py` or $DPFED_OWN_CODE; an installed package names code by its entry points.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_input
from dpfed.errors import ConfigError, DpfedError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Kind = Literal["scheme", "method", "model", "data set", "server rule", "sampler"]

VARIABLE = "DPFED_OWN_CODE"
"""Environment variable that names files of user-defined code."""
_OURS = f"{Path(__file__).parents[1]}{os.sep}"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_importable(name: str) -> bool:
    """Return True if a new process can import the module; a module that is loaded here need not be importable."""
    top = name.split(".")[0]
    return top in sys.stdlib_module_names or any(finder.find_spec(top, None) for finder in sys.meta_path)


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A registered object, and the line of code that registered it."""

    registered_object: object
    file: str
    line: int


_KNOWN: dict[Kind, dict[str, Registration]] = {}


def register_object(kind: Kind, name: str, registered_object: object, *, taken: Collection[str]) -> None:
    """Register the object `registered_object` under a name; `taken` are the names of the built-in objects of this kind.

    Raises ConfigError for a name that is taken or invalid, or that another line of code has registered.

    A line of code may register its name again (a cell that runs twice, a function that is called twice). In an
    interactive session any line may register a name again.
    """
    file, line = _registering_line()
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{kind} {name!r} ({file}, line {line}): a name has up to 64 letters, digits, '.', '_', '-'.")
    if name in taken:
        raise ConfigError(
            f"{kind} {name!r} ({file}, line {line}): is the name of an existing {kind}. Choose another name."
        )
    before = _KNOWN.setdefault(kind, {}).get(name)
    if before is not None and (before.file, before.line) != (file, line) and not _is_interactive(file):
        raise ConfigError(
            f"{kind} {name!r} ({file}, line {line}): is registered twice, first by {before.file}, line {before.line}. "
            "Rename one."
        )
    _KNOWN[kind][name] = Registration(registered_object=registered_object, file=file, line=line)


def objects_of_kind(kind: Kind) -> Mapping[str, Any]:
    """Return the registered objects of this kind, by name."""
    return {name: one.registered_object for name, one in _KNOWN.get(kind, {}).items()}


def registering_file(kind: Kind, name: str) -> str | None:
    """Return the file that registered the name; None for a built-in name."""
    found = _KNOWN.get(kind, {}).get(name)
    return None if found is None else found.file


def forget_file(file: str) -> None:
    """Remove all names registered by this file."""
    for names in _KNOWN.values():
        for name in [name for name, one in names.items() if one.file == file]:
            del names[name]


def _registering_line() -> tuple[str, int]:
    """Return file and line of the code outside of dpfed that called a function which registers a name."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_interactive(file: str) -> bool:
    """Return True if `file` is code of an interactive session, where a changed cell may register a name again."""
    return not hasattr(sys.modules["__main__"], "__file__") and not Path(file).is_file()


@contextmanager
def restore_named_files() -> Iterator[None]:
    """Context manager that restores $DPFED_OWN_CODE, the list of named files, on exit."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        os.environ |= {} if before is None else {VARIABLE: before}


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
    for point in _installed_entry_points(tuple(sys.path)):
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
        file = registering_file(kind, name)
        if file is not None and file not in found:
            digest = hashlib.sha256(Path(file).read_bytes()).hexdigest() if Path(file).is_file() else ""
            found[file] = UserCodeFile(path=file, sha256=digest)
    return tuple(found.values())


def files_not_loaded(files: Iterable[UserCodeFile]) -> tuple[UserCodeFile, ...]:
    """Return those of the given files that have neither run in this process nor registered a name in it."""
    contents = {one.sha256 for one in _LOADED.values()}
    registering = {one.file for names in _KNOWN.values() for one in names.values()}
    return tuple(one for one in files if one.sha256 not in contents and one.path not in registering)


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
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [one for one in frames if _OURS not in one.filename and f"{os.sep}torch{os.sep}" not in one.filename]
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
    forget_file(path)


@cache
def _installed_entry_points(path: tuple[str, ...]) -> list[EntryPoint]:
    """Return the entry points of the packages on `path`, which is sys.path; packages are searched once."""
    from importlib.metadata import entry_points  # a fortieth of a second, which `dpfed budget` does not need

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
    file = registering_file(kind, point.name)
    if file is None:
        raise ConfigError(f"{where}: registers no {kind} of this name. Repair the package, or uninstall it.")
    _INSTALLED.add(file)
