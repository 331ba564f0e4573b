"""Several configurations, one after the other, on the nodes of one Flower run: Ray and processes start once for all.

As a program, `many_runs.py CONFIGS.json OUT`, on Flower's simulation. In an app's folder, `apps(CONFIGS.json)`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from dpfed.engines.flower.settings import require_flower

require_flower(simulation=__name__ == "__main__")

from flwr.app import Context, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import ServerApp  # noqa: E402

from dpfed.config.tables import parse  # noqa: E402
from dpfed.engines.flower.client_app import client_app  # noqa: E402
from dpfed.engines.flower.server_app import serve_run  # noqa: E402
from dpfed.engines.flower.settings import agreement_text  # noqa: E402
from dpfed.runs.experiment import build  # noqa: E402

STEPS = ("default", "advertise", "share", "unmask")


def apps(configs, out=None, after=lambda folder: None):
    """A client app that answers for all of them, each with a state of its own, and a server app that serves them."""
    tables = json.loads(Path(configs).read_text())
    return _clients(tables), _server(tables, out, after)


def _clients(tables):
    apps = {agreement_text(parse(one, source=name)): client_app(one) for name, one in tables.items()}
    app = ClientApp()

    def answer(message, context):
        which = message.content["config"]["fingerprint"]
        prefix = f"{which[:8]} "
        own = {key.removeprefix(prefix): record for key, record in context.state.items() if key.startswith(prefix)}
        alone = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config=context.node_config,
            state=RecordDict(own),
            run_config=context.run_config,
        )
        reply = apps[which](message, alone)
        for key in own:
            del context.state[prefix + key]
        for key, record in alone.state.items():
            context.state[prefix + key] = record
        return reply

    app.train()(answer)
    for step in STEPS:
        app.query(step)(answer)
    return app


def _server(tables, out, after):
    app = ServerApp()

    @app.main()
    def main(grid, context):
        folder = Path(out or context.run_config["out"])
        for name, one in tables.items():
            serve_run(grid, build(parse(one, source=name)), folder / name, patience=300, timeout=300)
        after(folder)

    return app


def knocks(folder):
    """Two programs that ask Ray for the names of its nodes, with this run's token and without: what each has said."""
    import ray

    ask = (
        "import sys; from ray._raylet import GcsClient; print(len(GcsClient(address=sys.argv[1]).get_all_node_info()))"
    )
    for name, environment in (("ours", {}), ("stranger", {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": ""})):
        command = [sys.executable, "-c", ask, ray.get_runtime_context().gcs_address]
        said = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
        (folder / name).write_text(f"{said.stdout}{said.stderr[-2000:]}")


if __name__ == "__main__":
    from dpfed.engines.flower.simulation import run_apps

    clients, server = apps(sys.argv[1], sys.argv[2], knocks)
    count = max(one["federation"]["clients"] for one in json.loads(Path(sys.argv[1]).read_text()).values())
    run_apps(server, clients, nodes=count, on_gpus=False)
