"""Ray for Flower's simulation, which asks nobody where it is."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

_CLUSTER = "ray_bootstrap_config.yaml"


@contextmanager
def quiet_ray() -> Iterator[None]:
    """Ray, started before Flower would, which takes the one that it finds.

    Ray 2.55 asks the metadata services of three clouds where it runs, reports or not, unless the home folder of its
    servers has a cluster's configuration: an empty one is put there. Workers keep the user's home.
    """
    of_workers = {"PYTHONPATH": os.pathsep.join(sys.path)}
    if "HOME" in os.environ:
        of_workers["HOME"] = os.environ["HOME"]
    with tempfile.TemporaryDirectory(prefix="dpfed-ray-") as folder:
        (Path(folder) / _CLUSTER).write_text("{}\n")
        with _home(folder):
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": of_workers},
            )
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _home(folder: str) -> Iterator[None]:
    before = os.environ.get("HOME")
    os.environ["HOME"] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ["HOME"]
        else:
            os.environ["HOME"] = before
