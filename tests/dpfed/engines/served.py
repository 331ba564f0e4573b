"""A run over a grid of nodes in this process, requests as its server sends them, and the lines of its files."""

import json
import socket

from dpfed.config.tables import parse
from dpfed.runs.experiment import build

PRIVATE = {"clip_norm": 0.5, "noise_multiplier": 2.0, "accountant": "rdp"}
SHARES = {**PRIVATE, "noise": "discrete-gaussian", "placement": "clients", "adjacency": "zero-out"}


def serve_run(grid, tables, out, **settings):
    from dpfed.engines.flower.server_app import serve_run  # in an environment with Flower only

    return serve_run(grid, build(parse(tables, source="test")), out, patience=0.5, **settings)


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def agreed(experiment):
    """The entries by which a node knows its server's configuration and noise."""
    from dpfed.engines.flower.conversation import solved_text
    from dpfed.engines.flower.settings import agreement_text

    return {"fingerprint": agreement_text(experiment.config), "solved": solved_text(experiment.privacy_target)}


def instruction(experiment, number=0, **changed):
    """The content of a server's request to train in this round, some entries changed."""
    from dpfed.engines.flower.conversation import Instruction

    start = experiment.start
    usual = {"clip_norm": start.clip_norm, "broadcast": start.broadcast, "train": True, **agreed(experiment)}
    return Instruction(round=number, **usual | changed).to_content()


def question(experiment, **changed):
    """The content of a server's question in a secure sum, some entries changed."""
    from flwr.app import ConfigRecord, RecordDict

    usual = {"round": 0, "charge": "", "message": bytes(32), **agreed(experiment)}
    return RecordDict({"config": ConfigRecord(usual | changed)})


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
