"""BatchNorm's training step for batches with padding: clients side by side have batches of unequal size."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpfed.errors import ConfigError

STATISTICS = ("running_mean", "running_var")
_KINDS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class PaddedBatchNorm(nn.Module):
    """BatchNorm in training, computed from the real samples only (Ioffe, Szegedy 2015).

    With shares r [b] (1/size for each real sample of the batch, 0 for padding) and x [b, channels, ...]:
        mean = sum_b r_b mean(x_b),   var = sum_b r_b mean((x_b - mean)^2)
        y = weight (x - mean) / sqrt(var + eps) + bias
        running = (1 - momentum) running + momentum (mean, or var n / (n - 1) with n values a channel)
    as torch computes it for the real samples. The running statistics and `shares` are buffers, updated in place: pass
    them by torch.func.functional_call.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        assert isinstance(norm, _BatchNorm)
        assert norm.momentum is not None
        self.weight, self.bias = norm.weight, norm.bias
        self.eps, self.momentum = norm.eps, norm.momentum
        self.running_mean: Tensor
        self.running_var: Tensor
        self.shares: Tensor
        for name in STATISTICS:
            self.register_buffer(name, getattr(norm, name))
        self.register_buffer("shares", None)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return normalised inputs in the shape of the inputs."""
        shape = (1, -1, *[1] * (inputs.dim() - 2))
        mean = self._sample_mean(inputs)
        centred = inputs - mean.view(shape)
        variance = self._sample_mean(centred.square())
        count = (self.shares > 0).sum() * inputs[0, 0].numel()
        self._update_running(self.running_mean, mean.detach())
        self._update_running(self.running_var, variance.detach() * (count / (count - 1)))
        normal = centred * (variance + self.eps).rsqrt().view(shape)
        if self.weight is not None:
            normal = normal * self.weight.view(shape)
        return normal if self.bias is None else normal + self.bias.view(shape)

    def _sample_mean(self, values: Tensor) -> Tensor:
        """Return the means [channels] over the real samples."""
        of_samples = values.flatten(2).mean(dim=2) if values.dim() > 2 else values
        return (of_samples * self.shares[:, None]).sum(dim=0)

    def _update_running(self, running: Tensor, seen: Tensor) -> None:
        running.mul_(1 - self.momentum).add_(self.momentum * seen)


def batch_norms(module: nn.Module, but: Collection[str] = ()) -> Iterator[tuple[str, nn.Module]]:
    """Yield BatchNorm layers by name, except those in `but`; raise ConfigError for a layer whose statistics cannot be
    followed."""
    for name, part in module.named_modules():
        if not isinstance(part, _BatchNorm) or name in but:
            continue
        if type(part) not in _KINDS or part.momentum is None or not part.track_running_stats:
            kept = f"momentum={part.momentum}, track_running_stats={part.track_running_stats}"
            raise ConfigError(
                f"model: layer {name!r} is {type(part).__name__}({kept}); BatchNorm must be nn.BatchNorm1d, 2d or 3d "
                "with track_running_stats=True and a number as momentum. Change it, or use GroupNorm or LayerNorm."
            )
        yield name, part


def with_padding(module: nn.Module, *, keep: Collection[str] = ()) -> nn.Module:
    """Return the module itself, with its BatchNorm layers replaced by PaddedBatchNorm, except those in `keep`."""
    twins = {part: PaddedBatchNorm(part) for _, part in batch_norms(module, keep)}
    if module in twins:
        return twins[module]
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child in twins:
                setattr(parent, name, twins[child])
    return module
