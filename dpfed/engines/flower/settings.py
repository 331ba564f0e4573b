"""Environment variables for Flower and Ray, and refusals of configurations that the Flower engine does not support."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import secrets

from dpfed.config.own_code import VARIABLE, code_hash, files_of_this_process_only
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.runs.experiment import user_code_of_run, with_derived_defaults
from dpfed.version import __version__

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Environment variables that stop Flower and Ray from sending reports, and from looking up or installing software."""

_OF_THE_MACHINE = {
    "data": ("root",),
    "local": ("strategy", "chunk", "memory"),
    "run": ("device", "group", "evaluate_every"),
}
"""Keys of the configuration that may differ between the machines of one run."""


def require_flower(*, simulation: bool) -> None:
    """Set the environment variables for Flower before it is imported. Raises ConfigError if Flower is not installed.

    Ray's ports are open to every process that can reach this machine, so Ray is configured to require a token. Only
    child processes of this process have the token.
    """
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if simulation else {}
    for name, value in {**QUIET, **token}.items():
        os.environ.setdefault(name, value)
    missing = [name for name in ("flwr", *(["ray"] if simulation else [])) if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the flower engine needs {' and '.join(missing)}, not installed here: "
            "pip install -c constraints-flower.txt 'dpfed[train,flower]'."
        )


def require_code_of_files(config: Config) -> None:
    """Raise ConfigError for user-defined code without a named file, which nodes could not load in their processes."""
    missing = files_of_this_process_only(user_code_of_run(config))
    if missing:
        raise ConfigError(
            f"the flower engine with what {', '.join(missing)} registers: nodes are other processes, which run the "
            f"files that are named. Put it into a file of its own and name that one (--load FILE.py, or ${VARIABLE})."
        )


def check_engine(config: Config) -> None:
    """Raise ConfigError for settings that the Flower engine does not support."""
    if config.aggregation.kind == "masked":
        raise ConfigError(
            "aggregation.kind='masked' with the flower engine: it is a shortcut for one process, whose masks come from "
            "one secret. Use 'protocol' or 'plain'."
        )
    if config.aggregation.kind == "protocol" and config.audit.canaries:
        raise ConfigError(
            "audit.canaries with aggregation.kind='protocol' on the flower engine: canaries have no node. Remove them, "
            "or use the in-process engine."
        )


def agreement_text(config: Config) -> str:
    """Return a text that is equal on two machines exactly if their configurations, packages and user-defined code
    agree.

    Keys that may differ between machines are left out; derived defaults are filled in first.
    """
    tables = with_derived_defaults(config).to_dict()
    for table, keys in _OF_THE_MACHINE.items():
        for key in keys:
            tables.get(table, {}).pop(key, None)
    own = code_hash(user_code_of_run(config))
    text = json.dumps([__version__, tables, *([own] if own else [])], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
