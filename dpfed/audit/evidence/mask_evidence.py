"""Evidence that Fed-SMP's top coordinates were chosen by the public samples only.

No other check needs the data. The public samples are recomputed from the configuration, and the coordinates of round 1
are chosen again, for which the model is known from the seed. Training may amplify the last bit: after 100 steps of
the Fed-SMP network 61% to 68% of the coordinates agree under errors of 2^-23, and 19% to 30% with those of others. So
the limit is measured: choices under rounding errors are compared with each other and with choices by other samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from dpfed.audit.evidence.run_files import RunFiles, value_or
from dpfed.audit.verdict import Finding, rounds_text
from dpfed.config.tables import Config
from dpfed.data.samples import public_samples, validation_samples, whole_data
from dpfed.errors import DpfedError
from dpfed.methods.settings import public_steps
from dpfed.records.reading import Unavailable
from dpfed.records.round import ChosenCoordinates
from dpfed.runs.binding import hash_of_tensors
from dpfed.runs.folder import PUBLIC_START, read_public_start
from dpfed.seeds import Seeds
from dpfed.stages.project import fingerprint, sampled_bits, top_indices

_ALIKE = 0.99
"""Part of the coordinates above which no other processor is assumed."""
_OF_CPUS, _OF_ACCELERATORS = 2.0**-18, 2.0**-11
"""Relative errors of float32 products with other instructions, and of the 10-bit products (TF32) of accelerators."""
_REPETITIONS = 5
_DEVIATIONS = 5.0
"""Standard deviations between the limit and the agreement that rounding leaves, so that a correct run passes."""


def coordinates_follow_public_data(files: RunFiles) -> Finding:
    """Check that in every round the public samples of config.toml, and no others, chose the coordinates.

    No client may hold one of these samples, and the coordinates of round 1 must be those that the samples choose.
    """
    if not files.rounds:
        return None, "there are no rounds."
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
        return False, (
            f"{rounds_text(other)}: the samples that chose the coordinates are not the {len(labels)} public ones."
        )
    start = _first_model(files)
    if start is None:
        return False, f"{PUBLIC_START}: is not the model whose hash is in the ledger's header."
    again, recorded = _FirstRound(files, start, inputs, labels), _recorded_bits(files)
    exact = again.chosen()
    alike = _agreement(exact, recorded)
    words = f"{len(labels)} public samples chose the coordinates of every round; chosen again, {alike:.1%} of those of "
    words += "round 1 agree"
    if alike >= _ALIKE:
        return True, f"{words}."
    device = value_or(None, lambda: files.summary.device) or "cpu"
    error = _OF_CPUS if device == "cpu" else _OF_ACCELERATORS  # relative rounding error of the run's processor
    rounded = [exact, *(again.chosen(error, seed) for seed in range(1, _REPETITIONS + 1))]
    like = [_mean_agreement(one, [other for other in rounded if other is not one]) for one in rounded]
    others = [_mean_agreement(again.chosen_by_others(seed), rounded) for seed in range(1, _REPETITIONS + 1)]
    found, limit = _mean_agreement(recorded, rounded), (min(like) + max(others)) / 2
    words += (
        f", {found:.1%} with {len(rounded)} choices under another processor's rounding (a relative {error:.1g}), which "
        f"agree in {min(like):.1%} among themselves, and in at most {max(others):.1%} with those of other samples"
    )
    if limit <= max(others) or np.mean(like) - limit < _DEVIATIONS * np.std(like, ddof=1):
        return None, f"{words}: too near to tell other samples."
    if found < limit:
        return False, f"{words}: the public samples did not choose them."
    return True, f"{words}; {limit:.1%} was the limit."


def _public_samples(config: Config) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return inputs and labels of the public samples, and the number of them that clients hold."""
    seeds, here = Seeds(root=config.data.partition_seed), torch.device("cpu")
    try:
        whole, _ = validation_samples(config, whole_data(config), seeds, here)
        dealt, public = public_samples(config, whole, seeds, here)
    except DpfedError as error:
        raise Unavailable(f"the run's data cannot be loaded here ({error}).") from None
    assert public is not None
    there, again = _row_counts(whole.train_inputs), _row_counts(dealt.train_inputs) + _row_counts(public.inputs.numpy())
    beyond = sum((again - there).values()) if config.data.public_from is None else 0
    return public.inputs, public.labels, beyond


def _row_counts(inputs: NDArray[np.generic]) -> Counter[bytes]:
    return Counter(np.ascontiguousarray(row).tobytes() for row in inputs)


@dataclass(frozen=True)
class _FirstRound:
    """Training of the coordinates of round 1, for which the model is known from the seed, with the public samples."""

    files: RunFiles
    start: torch.Tensor
    inputs: torch.Tensor
    labels: torch.Tensor

    def chosen(self, error: float = 0.0, seed: int = 0) -> NDArray[np.uint8]:
        """Return the recorded bits of the coordinates, chosen from model and samples with relative errors `error`."""
        experiment, kept = self.files.experiment, _recorded(self.files).kept
        local, at = experiment.method.clients, experiment.device
        server = replace(local, epochs=None, steps=public_steps(self.files.config, local, len(self.labels)))
        drawn = torch.Generator().manual_seed(seed)

        def with_error(values: torch.Tensor) -> torch.Tensor:
            return values * (1 + error * torch.randn(values.shape, generator=drawn)) if error else values

        update = server.train_on(
            with_error(self.inputs.to(at, local.inputs.dtype)),
            self.labels.to(at),
            with_error(self.start.to(at)),
            number=0,
            seeds=experiment.seeds,
            purpose="public.shuffle",
        )
        return _bits(sampled_bits(top_indices(update[None], kept)[0], len(update)))

    def chosen_by_others(self, seed: int) -> NDArray[np.uint8]:
        """Return the choice of as many of the clients' samples."""
        local, count = self.files.experiment.method.clients, len(self.labels)
        rows = np.random.default_rng(seed).choice(len(local.labels), count, replace=count > len(local.labels))
        return _FirstRound(self.files, self.start, local.inputs[rows], local.labels[rows]).chosen()


def _first_model(files: RunFiles) -> torch.Tensor | None:
    """Return the broadcast of round 1: that of the seed, or after training on public samples; None if the file of the
    latter is not the one that the ledger's header names."""
    if files.config.server.start != "public":
        return files.experiment.start.broadcast
    try:
        saved = read_public_start(files.path)
    except DpfedError as error:
        raise Unavailable(str(error)) from None
    named = (files.trusted_ledger.header.binding or {}).get("public_start")
    return saved if hash_of_tensors([saved]) == named else None


def _mean_agreement(one: NDArray[np.uint8], others: Sequence[NDArray[np.uint8]]) -> float:
    return sum(_agreement(one, other) for other in others) / len(others)


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
