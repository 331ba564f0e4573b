"""Evidence that Fed-SMP's top coordinates were chosen by the public samples only.

No other check needs the data. The public samples are recomputed from the configuration, and the coordinates of round 1
are chosen again, for which the model is known from the seed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

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
from dpfed.records.round import ChosenCoordinates
from dpfed.seeds import Seeds
from dpfed.stages.project import fingerprint, sampled_bits, top_indices

_ALIKE = 0.99
"""Part of the coordinates above which no other processor is assumed."""
_TELLING = 0.5
"""Least part that must agree for the check to tell public samples from others."""
_OF_CPUS, _OF_ACCELERATORS = 2.0**-18, 2.0**-11
"""Relative errors of float32 products with other instructions, and of the 10-bit products (TF32) of accelerators."""
_REPETITIONS = 3


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
    again = _FirstRound(files, inputs, labels)
    alike = _agreement(again.chosen(), _recorded_bits(files))
    words = f"{len(labels)} public samples chose the coordinates of every round; chosen again, {alike:.1%} of those of "
    words += "round 1 agree"
    if alike >= _ALIKE:
        return True, f"{words}."
    allowed, error = again.least_agreement()
    words += f", and {allowed:.1%} must, since another processor's rounding (a relative {error:.1g}) changes the others"
    if allowed < _TELLING:
        return None, f"{words}: too few to tell other samples."
    if alike < allowed:
        return False, f"{words}: the public samples did not choose them."
    return True, f"{words}."


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


@dataclass(frozen=True)
class _FirstRound:
    """Training of the coordinates of round 1, for which the model is known from the seed, with the public samples."""

    files: RunFiles
    inputs: torch.Tensor
    labels: torch.Tensor

    def chosen(self, error: float = 0.0, seed: int = 0) -> NDArray[np.uint8]:
        """Return the recorded bits of the coordinates, chosen from model and samples with relative errors `error`."""
        experiment, kept = self.files.experiment, _recorded(self.files).kept
        local, start, at = experiment.method.clients, experiment.start, experiment.device
        server = replace(local, epochs=None, steps=public_steps(self.files.config, local, len(self.labels)))
        drawn = torch.Generator().manual_seed(seed)

        def with_error(values: torch.Tensor) -> torch.Tensor:
            return values * (1 + error * torch.randn(values.shape, generator=drawn)) if error else values

        update = server.train_on(
            with_error(self.inputs.to(at, local.inputs.dtype)),
            self.labels.to(at),
            with_error(start.broadcast),
            number=0,
            seeds=experiment.seeds,
            purpose="public.shuffle",
        )
        return _bits(sampled_bits(top_indices(update[None], kept)[0], len(update)))

    def least_agreement(self) -> tuple[float, float]:
        """Return the part of the coordinates that must agree, and the relative error of a processor that it allows.

        The choice is repeated with errors of this size in model and samples; the run and this audit may each differ
        from exact arithmetic by as much as the worst of the repetitions.
        """
        try:
            device = str(self.files.summary.device or "")
        except DpfedError:
            device = ""
        error = _OF_CPUS if device in ("", "cpu") else _OF_ACCELERATORS
        exact = self.chosen()
        worst = min(_agreement(exact, self.chosen(error, seed)) for seed in range(1, _REPETITIONS + 1))
        return max(0.0, min(_ALIKE, 1 - 2 * (1 - worst))), error


def _recorded(files: RunFiles) -> ChosenCoordinates:
    chosen = files.rounds[0].map
    assert chosen is not None
    return chosen


def _recorded_bits(files: RunFiles) -> NDArray[np.uint8]:
    try:
        return _bits(_recorded(files).shown)
    except ValueError:
        raise Unavailable("diagnostics.jsonl, line 1: the recorded coordinates are not hexadecimal.") from None


def _bits(text: str) -> NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))


def _agreement(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Return the part of the coordinates that both choices have."""
    if len(one) != len(other) or not int(one.sum()):
        raise Unavailable("diagnostics.jsonl, line 1: the recorded coordinates do not fit the size of this model.")
    return float((one & other).sum() / max(int(one.sum()), int(other.sum())))
