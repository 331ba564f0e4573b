"""Python files of a user's own, which make their networks and data sets known before a configuration is looked at."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path

from dpfed.errors import ConfigError

VARIABLE = "DPFED_OWN_CODE"


def load_own_code() -> None:
    """Run the files that $DPFED_OWN_CODE names, once in each process; several are separated as in $PATH.

    A configuration is data and may come from anybody, so it cannot name code; whoever starts the command can. Worker
    processes and nodes that inherit the variable run the same files. ConfigError where one is missing or fails.
    """
    for name in os.environ.get(VARIABLE, "").split(os.pathsep):
        if name:
            _run(Path(name).absolute())


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
    except Exception as error:  # the file is the user's: it may raise anything
        raise ConfigError(f"${VARIABLE}: {file} fails: {type(error).__name__}: {error}") from error
