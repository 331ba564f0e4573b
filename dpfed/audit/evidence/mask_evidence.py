"""Evidence on Fed-SMP's top coordinates: chosen by the public samples, and by nothing else.

The one check that needs the data: public samples are determined again from the configuration, and the first round's
coordinates, which start from the seed's model, are chosen again.
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
"""Part of the recorded coordinates that may differ: processors round differently, and near the deciding threshold."""


def chosen_by_public_data(files: RunFiles) -> Finding:
    """Check that in every round the samples that chose the coordinates are those that config.toml calls public.

    No client holds one of them, and the first round's coordinates are the ones they choose.
    """
    lacking = [one.round for one in files.rounds if one.map is None]
    if lacking:
        raise Unavailable(
            f"diagnostics.jsonl, {rounds_text(lacking)}: no 'map' of coordinates. The run was made by a version "
            "that did not write it."
        )
    inputs, labels, leaked = _public(files.config)
    if leaked:
        return False, f"{leaked} of the samples that count as public are held by clients, too."
    expected = fingerprint(inputs, labels)
    other = [one.round for one in files.rounds if one.map is not None and one.map.samples != expected]
    if other:
        return (
            False,
            f"{rounds_text(other)}: other samples than the {len(labels)} public ones chose the coordinates.",
        )
    alike = _first_again(files, inputs, labels)
    if alike < _ALIKE:
        return False, f"round 1: of the coordinates that the public samples choose only {alike:.1%} are the ones used."
    return True, f"{len(labels)} public samples chose the coordinates of every round; of the first, {alike:.1%} again."


def _public(config: Config) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return public samples, and the number of them among the samples of clients."""
    seeds, here = Seeds(root=config.data.partition_seed), torch.device("cpu")
    try:
        whole, _ = validation_samples(config, whole_data(config), seeds, here)
        dealt, public = public_samples(config, whole, seeds, here)
    except DpfedError as error:
        raise Unavailable(f"the run's data cannot be loaded here ({error}).") from None
    if public is None:
        raise Unavailable("config.toml: names no public samples.")
    there, again = _rows(whole.train_inputs), _rows(dealt.train_inputs) + _rows(public.inputs.numpy())
    beyond = sum((again - there).values()) if config.data.public_from is None else 0
    return public.inputs, public.labels, beyond


def _rows(inputs: NDArray[np.generic]) -> Counter[bytes]:
    return Counter(np.ascontiguousarray(row).tobytes() for row in inputs)


def _first_again(files: RunFiles, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the part of the coordinates of round 1 that are chosen again."""
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
        raise Unavailable("diagnostics.jsonl, line 1: the coordinates shown are not hexadecimal.") from None
    if len(ours) != len(theirs) or not int(ours.sum()):
        raise Unavailable("diagnostics.jsonl, line 1: shows other coordinates than this model has.")
    return float((ours & theirs).sum() / max(int(ours.sum()), int(theirs.sum())))
