"""Differentially private federated learning with compressed uploads: budget, run, audit.

    done = dpfed.run("fed-smp-randk-digits", {"privacy.epsilon": 2.0})        # docs/python.md
    private = dpfed.ClientLevel(clients=600, cohort=100, clip_norm=1.0, epsilon=3.0, rounds=60, ledger="l.jsonl")

Importing this package loads neither torch nor dp-accounting; each subpackage is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accounting import lazy
from dpfed.version import __version__

if TYPE_CHECKING:
    from dpfed import audit as audit
    from dpfed import compress as compress
    from dpfed import data as data
    from dpfed import errors as errors
    from dpfed import methods as methods
    from dpfed import models as models
    from dpfed.api.run import run as run
    from dpfed.runs.client_level import ClientLevel as ClientLevel

_HOMES = {
    **lazy.modules(__name__, "audit", "compress", "data", "errors", "methods", "models"),
    **lazy.names("dpfed.api.run", "run"),
    **lazy.names("dpfed.participation.custom", "register_sampler"),
    **lazy.names("dpfed.runs.client_level", "ClientLevel"),
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    try:
        return lazy.load_exported(__name__, name, _HOMES)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("dpfed", "accounting"):
            raise
        raise ModuleNotFoundError(
            f"dpfed.{name} needs the training extra ({error}): pip install 'dpfed[train]'.", name=error.name
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
