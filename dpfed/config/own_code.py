"""Python files of a user's own, which make their networks and data sets known before a configuration is looked at."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from functools import cache
from pathlib import Path

from dpfed.errors import ConfigError

VARIABLE = "DPFED_OWN_CODE"
_MOST_SAID = 300


def load_own_code() -> None:
    """Run the files that $DPFED_OWN_CODE names, once in each process; several are separated as in $PATH.

    A configuration is data and may come from anybody, so it cannot name code; whoever starts the command can. Worker
    processes and nodes that inherit the variable run the same files. ConfigError where one is missing or fails.
    """
    for name in os.environ.get(VARIABLE, "").split(os.pathsep):
        if name:
            _run(Path(name).absolute())


def words_of(error: BaseException) -> str:
    """Type, message and place of an error of the user's code: the last line that is neither ours nor torch's."""
    ours = (f"{Path(__file__).parent}{os.sep}", f"{os.sep}torch{os.sep}")
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not any(folder in frame.filename for folder in ours)]
    said = " ".join(str(error).split())
    words = f"{type(error).__name__}: {said[:_MOST_SAID]}{'...' if len(said) > _MOST_SAID else ''}"
    known = [frame for frame in theirs if Path(frame.filename).is_file()]
    return f"{words} ({known[-1].filename}, line {known[-1].lineno})" if known else words


@cache
def _run(file: Path) -> None:
    name = f"dpfed_own_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file) if file.suffix == ".py" else None
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigError(f"${VARIABLE}: {file} is no Python file that is there. Give its path, such as my_network.py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the file is the user's: it may raise anything
        raise ConfigError(f"${VARIABLE}: {file} fails: {words_of(error)}") from error
