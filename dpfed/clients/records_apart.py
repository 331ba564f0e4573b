"""Trial of private records before round 1: a record's gradient must not depend on the other records of its batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from dpfed.clients.losses import Loss
from dpfed.clients.network_randomness import ClientRandomness, draws_random_numbers
from dpfed.clients.records import RecordGradients, Way, WholeGradients, has_hooks
from dpfed.config.own_code import error_text
from dpfed.errors import ConfigError
from dpfed.mechanisms import records
from dpfed.models.flat import FlatModel
from dpfed.seeds import Seeds

_TARGETS, _OTHERS = 2, 2
"""Number of compared records, and number of other records in most of the trial's batches."""
_OUTPUT, _GRADIENT = 1e-4, 1e-3
"""Relative differences of a record's output and gradient that float32 rounding may cause. A gradient jumps if rounding
moves an activation across a kink (ReLU, pooling): hence its wider limit, and both records must differ."""
_FAR = (1e3, -1e6)
"""Factors on the other records, so that even a weak dependence exceeds rounding."""


def require_records_apart(
    model: FlatModel, loss: Loss, inputs: Tensor, targets: Tensor, *, batch_size: int, seeds: Seeds
) -> Way:
    """Return the way to compute per-record gradients of this network: Opacus' hooks if there is one for every layer,
    else torch.vmap over the whole network, else single backward passes.

    Raises ConfigError unless a record's output and gradient do not depend on the other records of its batch.

    Clipping records one by one bounds the effect of one record only if no record's gradient depends on another one. The
    `RecordGradients` of a record alone are compared with those in batches with others (unchanged, scaled, zeros, up to
    `batch_size`), and with a second computation alone. Weights are the initial ones and perturbed ones, so that a gate
    which starts at 0 is open. inputs [n, ...] and targets [n, ...] are public samples on the CPU, never a client's.

    The trial finds only dependences that these samples trigger: a network that mixes records on particular inputs only
    is not found.
    """
    ways: list[Way] = ["hooks", "vmap"]
    require = partial(_require_apart, model, loss, inputs, targets, batch_size=batch_size, seeds=seeds)
    for by in ways if has_hooks(model.bind(model.initial(0))) else ways[1:]:
        with suppress(_NoGradients):
            require(by=by)
            return by
    require(by="single")
    return "single"


class _NoGradients(ConfigError):
    """Error of one way to compute per-record gradients; another way may succeed."""


def _require_apart(
    model: FlatModel, loss: Loss, inputs: Tensor, targets: Tensor, *, batch_size: int, seeds: Seeds, by: Way
) -> None:
    """Raise ConfigError as `require_records_apart`, for gradients computed `by` one way."""
    generator = torch.Generator().manual_seed(0)
    most = max(1, records.MOST_NUMBERS // model.size)
    random = draws_random_numbers(model, inputs, training=True)
    start = model.initial(0)
    for weights in (start, _perturbed_weights(model, start, generator)):
        trial = _Trial(model, loss, weights, seeds if random else None, by)
        for scale in (1.0, 100.0) if inputs.is_floating_point() else (1.0,):
            _try_records(trial, inputs, targets, scale, min(most, max(batch_size, _TARGETS + 1)), generator)


def _perturbed_weights(model: FlatModel, weights: Tensor, generator: torch.Generator) -> Tensor:
    """Return weights plus noise in the scale of each tensor, or of scale 0.1 for a tensor of zeros."""
    moved = weights.clone()
    for block in model.layout:
        part = moved[block.start : block.stop]
        size = float(part.square().mean().sqrt()) or 0.1
        part += size * torch.randn(len(part), generator=generator)
    return moved


def _try_records(
    trial: _Trial, inputs: Tensor, targets: Tensor, scale: float, most: int, generator: torch.Generator
) -> None:
    count = max(1, min(_TARGETS, most - 1))
    places = torch.arange(count + max(_OTHERS, most)) % len(targets)
    natural, labels = inputs[places], targets[places]
    if natural.is_floating_point():  # with equal numbers, rounding would decide in a pooling layer
        noised = natural + 0.05 * float(natural.std()) * torch.randn(natural.shape, generator=generator)
        natural = noised if trial.attempt_batch(noised[:1], labels[:1]) is not None else natural
    compared, others = scale * natural[:count] if scale != 1 else natural[:count], natural[count:]
    if scale != 1 and trial.attempt_batch(compared[:1], labels[:1]) is None:
        return
    alone = [trial.run_batch(compared[i : i + 1], labels[i : i + 1]) for i in range(count)]
    _require_equal_rows(trial, alone[:1], trial.run_batch(compared[:1], labels[:1]), _AT_ONCE)
    if most == 1:
        return
    drawn: list[_Outputs] = []
    for some, gradients in _other_records(others, most - count):
        rows = torch.cat([compared, some])
        seen = trial.attempt_batch(rows, labels[: len(rows)], gradients=gradients and scale == 1)
        if seen is not None:
            _require_equal_rows(trial, alone, seen, _TOGETHER)
        if trial.random and seen is not None and len(some) == min(_OTHERS, most - count):
            now = trial.run_batch(rows, labels[: len(rows)], gradients=False, fixed=False)
            drawn = drawn or now.rows(count)
            _require_equal_rows(trial, drawn, now, _TOGETHER)
    _require_equal_rows(trial, alone[:1], trial.run_batch(compared[:1], labels[:1]), _LATER)


def _other_records(natural: Tensor, most: int) -> Iterator[tuple[Tensor, bool]]:
    """Yield other records for a batch, and True if gradients are compared, too.

    The other records are unchanged, scaled and zero ones, a single one, and a full batch.
    """
    some = natural[: min(_OTHERS, most)]
    yield some, True
    if some.is_floating_point():
        yield from ((factor * some, factor == _FAR[0]) for factor in _FAR)
    yield torch.zeros_like(some), False
    yield natural[:1], False
    yield natural[:most], False


@dataclass(frozen=True, kw_only=True, eq=False)
class _Outputs:
    """Outputs and gradients of one batch. calls: (name, input rows, output rows [b, ...]) of every module, in the order
    in which the calls ended; None instead of rows if there is no tensor of rows."""

    outputs: Tensor
    gradients: Tensor | None
    calls: list[tuple[str, Tensor | None, Tensor | None]] = field(default_factory=list)

    def row(self, i: int) -> _Outputs:
        calls = [
            (name, None if given is None else given[i : i + 1], None if made is None else made[i : i + 1])
            for name, given, made in self.calls
        ]
        gradients = None if self.gradients is None else self.gradients[i : i + 1]
        return _Outputs(outputs=self.outputs[i : i + 1], gradients=gradients, calls=calls)

    def rows(self, count: int) -> list[_Outputs]:
        return [self.row(i) for i in range(count)]


class _CheckedGradients(RecordGradients):
    """Per-record gradients that raise ConfigError unless they add up to the gradient of the batch."""

    names: dict[nn.Parameter, str]

    def _record_gradients(self, parameter: nn.Parameter, total: Tensor | None, batch: int) -> Tensor:
        name, words = self.names[parameter], "is used outside its layer's own call, where per-record gradients"
        if total is not None and parameter.grad_sample is None:  # type: ignore[attr-defined]
            raise _NoGradients(f"[local.record]: the network's parameter {name!r} {words} miss it. {_ADVICE}")
        rows = super()._record_gradients(parameter, total, batch)
        if batch == 1 and total is not None and _differs(rows, total.reshape(1, -1), _GRADIENT, 1e-6):
            raise _NoGradients(f"[local.record]: the network's parameter {name!r} {words} miss a part. {_ADVICE}")
        return rows


class _Trial:
    """Trial of a module at `weights`; seeds: streams of the network's random numbers; by: computation of gradients."""

    def __init__(self, model: FlatModel, loss: Loss, weights: Tensor, seeds: Seeds | None, by: Way) -> None:
        self._model, self._loss, self._weights, self._seeds, self._by = model, loss, weights, seeds, by
        self.random = seeds is not None
        self._calls: list[tuple[str, object, object]] = []
        self._build_module()

    def _build_module(self) -> None:
        """Build a fresh module, because hooks of a module whose forward pass has raised may hold its tensors."""
        self._room = self._weights.clone()
        self._module = self._model.bind(self._room)
        self._records: RecordGradients | WholeGradients
        try:
            if self._by == "hooks":
                self._records = _CheckedGradients(self._module, loss=self._loss)
                self._records.names = {one: name for name, one in self._module.named_parameters()}
            else:
                self._records = WholeGradients(self._module, loss=self._loss, by=self._by)
        except Exception as error:  # Opacus refuses some layers, by several classes of errors
            raise _NoGradients(
                f"[local.record]: no per-record gradients of this network: {error_text(error)}."
            ) from error
        for name, part in self._module.named_modules():
            part.register_forward_hook(partial(self._record_call, name))
        self.kinds = {name: type(part).__name__ for name, part in self._module.named_modules()}

    def _record_call(self, name: str, part: nn.Module, given: object, made: object) -> None:
        self._calls.append((name, given, made))

    def attempt_batch(self, inputs: Tensor, targets: Tensor, *, gradients: bool = False) -> _Outputs | None:
        """Run a batch as `run_batch`; return None if the network raises, as it may for scaled integers."""
        try:
            return self._run_batch(inputs, targets, gradients, fixed=True)
        except ConfigError:
            raise
        except Exception:  # a user's network may raise any exception
            self._build_module()
            return None

    def run_batch(self, inputs: Tensor, targets: Tensor, *, gradients: bool = True, fixed: bool = True) -> _Outputs:
        """Return outputs and gradients of a batch; with `fixed`, all random draws of the network are equal. Raises
        ConfigError.
        """
        try:
            return self._run_batch(inputs, targets, gradients, fixed)
        except ConfigError:
            raise
        except Exception as error:  # a user's network may raise any exception
            advice = " Set inplace=False in its layers." if "inplace" in str(error) else ""
            raise _NoGradients(
                f"[local.record]: per-record gradients fail on {len(inputs)} test samples: {error_text(error)}.{advice}"
            ) from error

    def _run_batch(self, inputs: Tensor, targets: Tensor, gradients: bool, fixed: bool) -> _Outputs:
        self._room.copy_(self._weights)
        self._model.rebind(self._module, self._room)
        self._calls.clear()
        found: Tensor | None = None
        if gradients:
            found = self._records(inputs.clone(), targets, self._random_draws(fixed, len(inputs)))
        if not gradients or self._by != "hooks":  # the calls of a whole batch show which layer mixes its records
            self._calls.clear()
            with torch.no_grad(), self._random_draws(fixed, len(inputs)):
                self._module(inputs.clone())
        calls = [(name, _rows_of(given, len(inputs)), _rows_of(made, len(inputs))) for name, given, made in self._calls]
        outputs = calls[-1][2]
        assert outputs is not None
        return _Outputs(outputs=outputs, gradients=found, calls=calls)

    def _random_draws(self, fixed: bool, count: int) -> AbstractContextManager[object]:
        if self._seeds is None:
            return nullcontext()
        kind = _EqualDraws if fixed else ClientRandomness
        return kind(self._seeds, "records.trial", number=0, clients=[0], step=0, records=np.arange(count))


class _EqualDraws(ClientRandomness):  # type: ignore[no-untyped-call]  # torch's has no types
    """Uniform numbers that are all 0, so that the draws are equal for batches of two sizes."""

    def _uniforms(self, shape: Sequence[int], device: torch.device) -> Tensor:
        return torch.zeros(tuple(shape), device=device)


_AT_ONCE, _TOGETHER, _LATER = "when it is computed again", "among other records", "after other batches"
_CAUSE = {
    _AT_ONCE: "it keeps a state between batches, or draws random numbers that torch does not draw",
    _TOGETHER: "it mixes the records of a batch",
    _LATER: "it keeps a state between batches",
}
_ADVICE = (
    "Use layers that compute each record separately (LayerNorm or GroupNorm, attention over a record's own positions, "
    "batch first), or [privacy], whose unit is the client."
)


def _require_equal_rows(trial: _Trial, expected: Sequence[_Outputs], seen: _Outputs, when: str) -> None:
    """Raise ConfigError if the recorded rows differ from the expected ones, one for each record."""
    pairs = list(zip(expected, seen.rows(len(expected)), strict=True))
    largest = max(float(one.outputs.abs().nan_to_num(0.0, 0.0, 0.0).max()) for one in expected)
    outputs = [_differs(b.outputs, a.outputs, _OUTPUT, 1e-6 * largest) for a, b in pairs]
    steepest = max(0.0 if one.gradients is None else float(one.gradients.norm()) for one in expected)
    gradients = [
        a.gradients is not None
        and b.gradients is not None
        and _differs(b.gradients, a.gradients, _GRADIENT, 1e-5 * steepest)
        for a, b in pairs
    ]
    if any(outputs) or all(gradients):
        what, i = ("output", outputs.index(True)) if any(outputs) else ("gradient", 0)
        raise ConfigError(
            f"[local.record]: {_layer_name(trial, _mixing_module(*pairs[i]))} gives a record another {what} {when}: "
            f"{_CAUSE[when]}, and clipping each record does not bound what one of them changes. {_ADVICE}"
        )


def _mixing_module(expected: _Outputs, found: _Outputs) -> str | None:
    """Return the first module with different output rows for equal input rows; None if there is none."""
    for (name, given, made), (other, given_now, made_now) in zip(expected.calls, found.calls, strict=False):
        if name != other or made is None or made_now is None:
            continue
        alike = given is None or given_now is None or not _differs(given_now, given, _OUTPUT, 1e-7)
        if alike and _differs(made_now, made, _OUTPUT, 1e-7):
            return name
    return None


def _layer_name(trial: _Trial, name: str | None) -> str:
    if name is None or not name:
        return f"the network ({trial.kinds['']})"
    return f"the network's layer {name!r} ({trial.kinds[name]})"


def _differs(found: Tensor, expected: Tensor, relative: float, absolute: float) -> bool:
    """Return True if a row differs from the expected one by more than rounding; non-finite numbers must be equal."""
    if found.shape != expected.shape:
        return True
    found, expected = found.double(), expected.double()
    if not torch.equal(found.isfinite(), expected.isfinite()):
        return True
    found, expected = found.nan_to_num(0.0, 0.0, 0.0), expected.nan_to_num(0.0, 0.0, 0.0)
    return float((found - expected).norm()) > relative * float(expected.norm()) + absolute


def _rows_of(values: object, batch: int) -> Tensor | None:
    """Return the first tensor in `values` as one row per record [b, ...], detached; None if there is none."""
    if isinstance(values, Tensor):
        rows = values.detach()
        return rows.reshape(batch, -1).clone() if rows.dim() and rows.numel() and rows.shape[0] % batch == 0 else None
    if isinstance(values, dict):
        values = list(values.values())
    found = (_rows_of(one, batch) for one in values) if isinstance(values, list | tuple) else ()
    return next((one for one in found if one is not None), None)
