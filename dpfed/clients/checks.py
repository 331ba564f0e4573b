"""What local training refuses before it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import numpy as np

from dpfed.clients.network_randomness import draws_random_numbers
from dpfed.clients.plan import Strategy
from dpfed.clients.task import Precision
from dpfed.errors import ConfigError

if TYPE_CHECKING:
    from dpfed.clients.training import LocalTraining


_TOGETHER: tuple[Strategy, ...] = ("vmap", "graphs")


def check_training(training: LocalTraining) -> None:
    """ConfigError for values that cannot work."""
    if training.strategy not in get_args(Strategy):
        raise ConfigError(
            f"strategy={training.strategy!r}: must be one of {', '.join(get_args(Strategy))}. Choose one."
        )
    if training.strategy == "graphs" and training.inputs.device.type != "cuda":
        raise ConfigError(
            f"strategy='graphs' on {training.inputs.device}: CUDA graphs are for CUDA GPUs. Use strategy 'auto', or "
            "run.device='cuda'."
        )
    _check_period(training)
    _check_fused_layers(training)
    _check_randomness(training)
    _check_records(training)
    _check_precision(training)
    _check_samples(training)
    _check_single_samples(training)


def _check_period(training: LocalTraining) -> None:
    if (training.epochs is None) == (training.steps is None):
        raise ConfigError(
            f"epochs={training.epochs}, steps={training.steps}: local training needs exactly one of them. "
            "Give one, drop the other."
        )
    for name in ("epochs", "steps", "batch_size", "chunk", "memory", "at_once"):
        value = getattr(training, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name}={value}: must be at least 1. Change it in [local].")


def _check_fused_layers(training: LocalTraining) -> None:
    if training.model.has_fused_layers and (training.strategy in _TOGETHER or training.record is not None):
        raise ConfigError(
            "model: has torch's LSTM, GRU or RNN, whose fused kernels hide single clients or records: neither "
            "strategy='vmap' or 'graphs' nor private records work. Use strategy 'auto' without [local.record], or "
            "build the network from dpfed.models.char_lstm.LstmLayer, where all do."
        )


def _check_randomness(training: LocalTraining) -> None:
    if training.strategy == "graphs" and draws_random_numbers(training.model, training.inputs, training=True):
        raise ConfigError(
            "model: draws random numbers in training (dropout), and a recorded step would repeat them: "
            "strategy='graphs' does not work. Use strategy 'auto', 'vmap' or 'loop'."
        )


def _check_records(training: LocalTraining) -> None:
    if training.record is None:
        return
    if training.strategy in _TOGETHER:
        raise ConfigError(
            f"strategy={training.strategy!r} with private records: per-record gradients are taken one client after the "
            "other. Use 'loop' or 'auto'."
        )
    if training.model.has_statistics:
        raise ConfigError(
            "model: has BatchNorm, whose statistics mix the records of a batch; no gradient is one record's own then. "
            "Use a model with GroupNorm or without normalisation."
        )


def _check_precision(training: LocalTraining) -> None:
    precision, device = training.precision, training.inputs.device
    if precision not in get_args(Precision):
        raise ConfigError(f"precision={precision!r}: must be one of {', '.join(get_args(Precision))}. Choose one.")
    if precision != "float32" and training.record is not None:
        raise ConfigError(
            f"precision={precision!r} with private records: what is clipped must be exact. Use 'float32'."
        )
    if precision == "tf32" and device.type != "cuda":
        raise ConfigError(
            f"precision='tf32' on {device}: only CUDA GPUs have it. Use 'float32' or 'bf16', or run.device='cuda'."
        )
    if precision == "bf16" and training.model.has_statistics and training.strategy in _TOGETHER:
        raise ConfigError(
            f"precision='bf16' with strategy={training.strategy!r}: the model has BatchNorm, whose variances would be "
            "taken in bf16. Use strategy 'auto' or 'loop', or 'float32'."
        )


def _check_samples(training: LocalTraining) -> None:
    samples = len(training.labels)
    if len(training.inputs) != samples:
        raise ConfigError(
            f"inputs: {len(training.inputs)} samples but {samples} labels; one label a sample. Check both."
        )
    largest = training.partition.largest_row
    if largest >= samples:
        raise ConfigError(
            f"partition: holds row {largest}, the data only rows 0..{samples - 1}. "
            "Partition this very data set, after carving public data out."
        )


def _check_single_samples(training: LocalTraining) -> None:
    sizes, batch_size = training.partition.sizes, training.batch_size
    alone = (sizes % batch_size == 1) | (sizes > 0) & (batch_size == 1)
    if training.steps is not None:
        alone &= -(-sizes // batch_size) <= training.steps
    if alone.any() and not training.model.trains_on_one(training.inputs[:1]):
        first = int(np.argmax(alone))
        raise ConfigError(
            f"batch_size={batch_size}: client {first} has {sizes[first]} samples and so a batch of one, where "
            "BatchNorm has no variance. Choose another batch_size, or a model with GroupNorm."
        )
