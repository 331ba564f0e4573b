"""The configuration of `dpfed.run(...)`: a preset, a file or tables, settings on top, and objects in place of names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from dpfed.config.tables import flat, override, put, read_toml
from dpfed.data.dataset import Dataset
from dpfed.methods import presets
from dpfed.run.training import name_of


def named_tables(
    config: str | os.PathLike[str] | Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    data: Dataset | None,
    model: nn.Module | Callable[..., nn.Module] | None,
) -> tuple[dict[str, Any], str]:
    """The unchecked tables, and the name of their run."""
    wanted = flat(settings)
    if isinstance(config, Mapping):
        tables, name = override(dict(config), []), "run"
    elif isinstance(config, str) and not config.endswith(".toml"):
        tables, name = presets.tables(config), config
        wanted = _owners(data) | wanted
    else:
        tables, name = read_toml(Path(config)), Path(config).stem
    if data is not None:
        for key in ("root", "classes"):  # of a file that is not read
            tables.get("data", {}).pop(key, None)
        tables["data"] = {**tables.get("data", {}), "name": data.name}
    if model is not None:
        tables["model"] = {"name": name_of(model)}
    for key, value in wanted.items():
        form = "table.key, as in {'federation.rounds': 10}"
        put(tables, key, value, given=f"settings: {key!r}", form=form)
    return tables, name


def _owners(data: Dataset | None) -> dict[str, Any]:
    """Who the clients are where the data say it; a preset's own division is of its own data."""
    if data is None or data.train_clients is None:
        return {}
    return {"data.partition": "natural", "federation.clients": data.natural_clients}
