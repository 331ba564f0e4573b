"""Evidence that Fed-SMP's top coordinates were chosen by the public samples only.

No other check needs the data. The public samples are recomputed from the configuration, and the coordinates of round 1
are chosen again, for which the model is known from the seed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Finding, rounds_text
from dpfed.config.tables import Config
from dpfed.data.samples import public_samples, validation_samples, whole_data
from dpfed.errors import DpfedError
from dpfed.methods.settings import public_steps
from dpfed.records.reading import Unavailable
from dpfed.seeds import Seeds
from dpfed.stages.shared_mask import fingerprint, sampled_bits, top_indices

_ALIKE = 0.99
"""Least part of the coordinates that must agree; those near the threshold differ since processors round differently."""


def coordinates_follow_public_data(files: RunFiles) -> Finding:
    """Check that in every round the public samples of config.toml, and no others, chose the coordinates.

    No client may hold one of these samples, and the coordinates of round 1 must be those that the samples choose.
    """
    lacking = [one.round for one in files.rounds if one.map is None]
    if lacking:
        raise Unavailable(
            f"diagnostics.jsonl, {rounds_text(lacking)}: no 'map' of coordinates. The run was made by a version "
            "that did not record it."
        )
    inputs, labels, leaked = _public_samples(files.config)
    if leaked:
        return False, f"clients hold {leaked} of the public samples."
    expected = fingerprint(inputs, labels)
    other = [one.round for one in files.rounds if one.map is not None and one.map.samples != expected]
    if other:
        return (
            False,
            f"{rounds_text(other)}: the samples that chose the coordinates are not the {len(labels)} public ones.",
        )
    alike = _agreement_of_first_round(files, inputs, labels)
    if alike < _ALIKE:
        return False, f"round 1: only {alike:.1%} of the coordinates that the public samples choose were used."
    return (
        True,
        f"{len(labels)} public samples chose the coordinates of every round; chosen again, {alike:.1%} of those "
        "of round 1 agree.",
    )


def _public_samples(config: Config) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return inputs and labels of the public samples, and the number of them that clients hold."""
    seeds, here = Seeds(root=config.data.partition_seed), torch.device("cpu")
    try:
        whole, _ = validation_samples(config, whole_data(config), seeds, here)
        dealt, public = public_samples(config, whole, seeds, here)
    except DpfedError as error:
        raise Unavailable(f"the run's data cannot be loaded here ({error}).") from None
    if public is None:
        raise Unavailable("config.toml: defines no public samples.")
    there, again = _row_counts(whole.train_inputs), _row_counts(dealt.train_inputs) + _row_counts(public.inputs.numpy())
    beyond = sum((again - there).values()) if config.data.public_from is None else 0
    return public.inputs, public.labels, beyond


def _row_counts(inputs: NDArray[np.generic]) -> Counter[bytes]:
    return Counter(np.ascontiguousarray(row).tobytes() for row in inputs)


def _agreement_of_first_round(files: RunFiles, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Choose the coordinates of round 1 again, and return the part that agrees with the recorded coordinates."""
    chosen = files.rounds[0].map
    assert chosen is not None
    experiment = files.experiment
    local, start, at = experiment.method.clients, experiment.start, experiment.device
    server = replace(local, epochs=None, steps=public_steps(files.config, local, len(labels)))
    update = server.train_on(
        inputs.to(at, local.inputs.dtype),
        labels.to(at),
        start.broadcast,
        number=0,
        seeds=experiment.seeds,
        purpose="public.shuffle",
    )
    again = sampled_bits(top_indices(update[None], chosen.kept)[0], len(update))
    try:
        ours, theirs = (np.unpackbits(np.frombuffer(bytes.fromhex(one), np.uint8)) for one in (again, chosen.shown))
    except ValueError:
        raise Unavailable("diagnostics.jsonl, line 1: the recorded coordinates are not hexadecimal.") from None
    if len(ours) != len(theirs) or not int(ours.sum()):
        raise Unavailable("diagnostics.jsonl, line 1: the recorded coordinates do not fit the size of this model.")
    return float((ours & theirs).sum() / max(int(ours.sum()), int(theirs.sum())))
