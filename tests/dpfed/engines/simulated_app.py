"""`simulated_app.py OUT`: examples/flower_app, found on PYTHONPATH, on eight nodes of Flower's simulation."""

import os
import sys

from dpfed.engines.flower.settings import require_flower

require_flower(simulation=True)

from digits_app.client_app import app as clients  # noqa: E402
from digits_app.server_app import app as server  # noqa: E402

from dpfed.engines.flower.simulation import run_apps  # noqa: E402

os.chdir(sys.argv[1])
run_apps(server, clients, nodes=8, on_gpus=False)
