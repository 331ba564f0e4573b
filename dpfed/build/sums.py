"""How uploads are summed, from [aggregation]."""

from __future__ import annotations

from dpfed.compress.code import Code
from dpfed.config import Config
from dpfed.sampling import Sampler
from dpfed.secagg.dropouts import Dropouts
from dpfed.secagg.plain import PlainSums
from dpfed.secagg.steps import Step
from dpfed.secagg.summed import Sums
from dpfed.seeds import Seeds


def sums_of(config: Config, code: Code, who: Sampler, seeds: Seeds) -> Sums:
    table = config.aggregation
    dropouts = dropouts_of(config, seeds)
    return PlainSums(dropouts=dropouts, tolerance=table.tolerance)


def dropouts_of(config: Config, seeds: Seeds) -> Dropouts:
    table = config.aggregation
    return Dropouts(
        seeds=seeds,
        probability=table.dropout,
        at=None if table.dropout_at == "any" else Step(table.dropout_at),
        lost={Step(name): count for name, count in table.lost.items()},
    )
