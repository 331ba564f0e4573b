"""Ray on this machine alone, for Flower's simulation."""

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
    servers has a cluster's configuration: an empty one is put there. Workers keep the user's home. Its servers know
    each other by the loopback address.
    """
    of_workers = {"PYTHONPATH": os.pathsep.join(sys.path)}
    home = os.environ.get("HOME")
    if home is not None:
        of_workers["HOME"] = home
    with tempfile.TemporaryDirectory(prefix="dpfed-ray-") as folder:
        (Path(folder) / _CLUSTER).write_text("{}\n")
        os.environ["HOME"] = folder
        try:
            ray.init(
                _node_ip_address="127.0.0.1",
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": of_workers},
            )
        finally:
            if home is None:
                del os.environ["HOME"]
            else:
                os.environ["HOME"] = home
        try:
            yield
        finally:
            ray.shutdown()
