"""Parsers of what a run reads again, and of configurations."""

from __future__ import annotations

from dataclasses import replace

import tomli_w
import torch
from fuzz.parser import Parser, written

from dpfed.config import tables as config
from dpfed.methods import catalogue
from dpfed.models import frozen
from dpfed.records.round import CheckpointReport, RoundRecord
from dpfed.runs import binding
from dpfed.runs.binding import Binding
from dpfed.server.rules import ServerState
from dpfed.sweep.experiment_file import read_experiment


def _state() -> ServerState:
    return ServerState(round=0, broadcast=torch.zeros(5), clip_norm=1.0)


_BINDING = Binding(configuration="a", population="b", start="c")


def _checkpoint_seeds() -> list[bytes]:
    saved = binding.Checkpoint(
        state=replace(_state(), stages={"kept": torch.ones(2, 3)}),
        report=CheckpointReport(uplink=0, diagnostics=RoundRecord(round=1, cohort=0, participants=0)),
    )
    return [binding.checkpoint_bytes(saved, binding=_BINDING)]


def _checkpoint(content: bytes) -> None:
    found = binding.read_checkpoint(written(content, "checkpoint.safetensors"), binding=_BINDING, start=_state())
    assert found.state.broadcast.shape == (5,)


def _saved_mask_seeds() -> list[bytes]:
    recipe = frozen.Recipe(
        model="mlp", input_shape=(1, 2, 2), classes=2, options={"hidden": [3]}, seed=1, constant="kaiming",
        biases="masked", scale=1.0, spread=0.1,
    )  # fmt: skip
    network = recipe.build()
    return [frozen.mask_file(recipe, network, torch.ones(len(network.initial), dtype=torch.bool))]


def _saved_mask(content: bytes) -> None:
    frozen.load_mask(written(content, "model.mask.safetensors"))


def _config_seeds() -> list[bytes]:
    return [tomli_w.dumps(catalogue.preset_tables(name)).encode() for name in catalogue.preset_names()[::9]]


def _config(content: bytes) -> None:
    config.parse(config.read_toml(written(content, "config.toml")), source="config.toml")


def _setting(content: bytes) -> None:
    config.override({"data": {"name": "digits"}}, [content.decode(errors="replace")])


EXPERIMENT = b"""title = "one"
x = "local.epochs"
[base.federation]
rounds = 3
[axes]
"local.epochs" = [1, 2]
[[row]]
name = "a"
preset = "dp-fedavg-digits"
[[row]]
name = "b"
set = {"privacy.noise_multiplier" = 1.5}
[profiles.small]
rows = ["a"]
note = "less"
"""


def _experiment(content: bytes) -> None:
    read_experiment(written(content, "experiment.toml"))


PARSERS: dict[str, Parser] = {
    "checkpoint": Parser(seeds=_checkpoint_seeds, parse=_checkpoint),
    "mask-file": Parser(seeds=_saved_mask_seeds, parse=_saved_mask),
    "config": Parser(seeds=_config_seeds, parse=_config),
    "setting": Parser(seeds=lambda: [b"federation.rounds=10", b"model.hidden=[8, 9]", b"a.b.c=.5"], parse=_setting),
    "experiment": Parser(seeds=lambda: [EXPERIMENT], parse=_experiment),
}
