"""A run over a grid of nodes in this process, and the lines of its files."""

import json

from dpfed.config.tables import parse
from dpfed.runs.experiment import build


def serve_run(grid, tables, out, **settings):
    from dpfed.engines.flower.server_app import serve_run  # in an environment with Flower only

    return serve_run(grid, build(parse(tables, source="test")), out, patience=0.5, **settings)


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]
