"""Losses of local training: one number for each sample, from its output and its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, huber_loss, l1_loss, mse_loss

from dpfed.clients.state import State
from dpfed.config.own_code import errors_of_user_code
from dpfed.errors import ConfigError, require_name

OfSamples = Callable[[Tensor, Tensor], Tensor]
"""Loss per sample: f(outputs [n, ...], targets [n, ...]) -> [n]."""

BINARY = "binary-cross-entropy"
"""Name of the loss whose outputs are logits of probabilities."""

OWN = "own"
"""Name of local.loss in a run whose loss was given in Python."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Loss of local training, per sample and of a batch.

    each: losses [n] of samples, from the network's outputs [n, ...] and the targets [n, ...], of any type and shape
    """

    name: str
    each: OfSamples
    mean: OfSamples
    apart: bool = True

    def client_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return losses [c b] from outputs and targets [c, b, ...]."""
        if self.apart:
            return self.each(outputs.flatten(0, 1), targets.flatten(0, 1))
        return torch.vmap(self.each)(outputs, targets).flatten()

    def record_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return losses [b], the loss of each record computed on that record alone."""
        return self.each(outputs, targets) if self.apart else _single_losses(self.each, outputs, targets)


def _single_losses(each: OfSamples, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return losses [n], from one call for each sample: a loss may have conditions, which torch.vmap refuses."""
    return torch.cat([each(outputs[i : i + 1], targets[i : i + 1]).reshape(-1) for i in range(len(targets))])


def _sample_means(losses: Tensor) -> Tensor:
    """Return means [n] of [n, ...]."""
    return losses.flatten(1).mean(dim=1) if losses.dim() > 1 else losses


def _cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    return _sample_means(cross_entropy(logits, labels, reduction="none"))


def _numeric_losses(function: Callable[..., Tensor], outputs: Tensor, targets: Tensor) -> Tensor:
    """Return losses of outputs reshaped as their targets, since [n, 1] and targets [n] would broadcast to [n, n]."""
    return _sample_means(function(outputs.reshape(targets.shape), targets.to(outputs.dtype), reduction="none"))


def _numeric_loss(name: str, function: Callable[..., Tensor]) -> Loss:
    return custom_loss(partial(_numeric_losses, function), name=name, apart=True)


def custom_loss(each: OfSamples, *, name: str = OWN, apart: bool = False) -> Loss:
    """Return a custom loss made from a function of samples."""
    return Loss(name=name, each=each, mean=lambda outputs, targets: each(outputs, targets).mean(), apart=apart)


CROSS_ENTROPY = Loss(name="cross-entropy", each=_cross_entropies, mean=cross_entropy)
"""Cross-entropy of logits [n, classes, ...] and labels [n, ...], the mean over a sample's labels."""


def cross_entropy_without(ignored: int) -> Loss:
    """Return the cross-entropy, whose mean over a sample's labels leaves out labels equal to `ignored`."""
    each = partial(_counted_cross_entropies, ignored)
    return custom_loss(each, name=CROSS_ENTROPY.name, apart=True)


def _counted_cross_entropies(ignored: int, logits: Tensor, labels: Tensor) -> Tensor:
    losses = cross_entropy(logits, labels, reduction="none", ignore_index=ignored).reshape(len(labels), -1)
    return losses.sum(dim=1) / (labels != ignored).reshape(len(labels), -1).sum(dim=1).clamp(min=1)


LOSSES: dict[str, Loss] = {
    one.name: one
    for one in (
        CROSS_ENTROPY,
        _numeric_loss("mse", mse_loss),
        _numeric_loss("l1", l1_loss),
        _numeric_loss("huber", huber_loss),
        _numeric_loss(BINARY, binary_cross_entropy_with_logits),
    )
}
"""Built-in losses by their name in local.loss. All but the first need as many outputs as targets, and average over
them.
"""

_own: dict[str, Loss] = {}


def register(name: str, loss: OfSamples) -> None:
    """Register a custom loss under the name used in local.loss, in this process; a second loss of that name replaces
    the first.

    loss: f(outputs [n, ...], targets [n, ...]) -> [n], one loss per sample. With operations that torch.vmap does not
          support (.item(), assert or if on a tensor) clients train one after the other.
    Raises ConfigError for the name of a built-in loss.
    """
    if name in LOSSES or name == OWN:
        raise ConfigError(f"loss={name!r}: is the name of a built-in loss. Choose another name.")
    _own[name] = custom_loss(loss, name=name)


def loss_named(name: str) -> Loss:
    """Return the loss of this name; raise ConfigError with the nearest name if there is none."""
    known = LOSSES | _own
    if name == OWN:
        raise ConfigError(
            "local.loss='own': the loss of this run was given in Python, and is not in its folder. Give it again: "
            "loss=f in Python; or register it with dpfed.clients.losses.register in a file that --load names."
        )
    require_name(f"local.loss={name!r}: known are", name, sorted(known))
    return known[name]


def check_loss(loss: Loss, outputs: Tensor, targets: Tensor) -> None:
    """Raise ConfigError unless the loss gives one differentiable number per sample, which depends on that sample only.

    The check uses public samples: outputs [n, ...] and targets [n, ...], n at least 2.
    """
    outputs = outputs.detach().requires_grad_()
    together = _trial_losses(loss, loss.each, outputs, targets)
    form = _type_and_shape(together) if isinstance(together, Tensor) else type(together).__name__
    if not isinstance(together, Tensor) or together.shape != (len(outputs),) or not together.is_floating_point():
        raise ConfigError(
            f"local.loss={loss.name!r}: gives {form} for {len(outputs)} samples; must give one floating number per "
            f"sample, [{len(outputs)}]. In torch's losses that is reduction='none', and then the mean of each sample."
        )
    if not together.requires_grad:
        raise ConfigError(f"local.loss={loss.name!r}: has no gradient by the network's outputs. Compute it from them.")
    singles = _trial_losses(loss, partial(_single_losses, loss.each), outputs, targets)
    if singles.shape != together.shape or not torch.allclose(together, singles, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ConfigError(
            f"local.loss={loss.name!r}: the loss of a sample depends on the other samples of its batch. A client's "
            "batches are padded, and a private record must not affect other records: compute the loss from each "
            "sample alone."
        )


def _trial_losses(loss: Loss, function: OfSamples, outputs: Tensor, targets: Tensor) -> Tensor:
    start = State(("local.loss", loss.each))
    what = (
        f"local.loss={loss.name!r}: fails for outputs {_type_and_shape(outputs)} and targets {_type_and_shape(targets)}"
    )
    try:
        with errors_of_user_code(what), torch.enable_grad():
            return function(outputs, targets)
    finally:
        start.restore()


def _type_and_shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
