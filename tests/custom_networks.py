"""Networks of six inputs and three classes, and a loss, that keep something from one call to the next."""

from collections import deque

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.o(torch.relu(self.a(x)))
        return logits


class HiddenState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l, self.o = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)
        self.h: tuple[Tensor, ...] | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.h
        start = None if h is None else tuple(t.mean(1, keepdim=True).expand(-1, len(x), -1).contiguous() for t in h)
        y, after = self.l(x[:, None, :], start)
        self.h = tuple(10 * t.detach() for t in after)
        logits: Tensor = self.o(y[:, -1])
        return logits


class FittedOnFirstBatch(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.mean is None and self.training:
            self.mean = x.detach().mean(0)
        return super().forward(x if self.mean is None else x - self.mean)


class RunningMeanInHook(Plain):
    def __init__(self) -> None:
        super().__init__()
        kept: dict[str, Tensor] = {}

        def hook(module: nn.Module, args: object, out: Tensor) -> Tensor:
            now = out.detach().mean(0)
            kept["m"] = now if "m" not in kept else 0.5 * kept["m"] + 0.5 * now
            return out - kept["m"]

        self.a.register_forward_hook(hook)


class FixedParameterWritten(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.m.mul_(0.5).add_(x.mean(0), alpha=0.5)
        return super().forward(x - self.m)


class LateBuffer(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "seen"):
            self.register_buffer("seen", torch.zeros(6), persistent=False)
        self.seen += x.detach().mean(0)
        return super().forward(x - self.seen)


class Queue(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.last: deque[float] = deque(maxlen=3)

    def forward(self, x: Tensor) -> Tensor:
        self.last.append(float(x.detach().mean()))
        return super().forward(x - self.last[0])


class ClassCounts:
    """Plain for its first 12 calls, then weights by the class counts that it has seen."""

    def __init__(self) -> None:
        self.calls, self.counts = 0, torch.ones(3)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        rows = cross_entropy(outputs, targets, reduction="none")
        self.calls += 1
        if self.calls <= 12:
            return rows
        self.counts = self.counts + one_hot(targets, 3).float().reshape(-1, 3).sum(0)
        return rows * (self.counts.sum() / self.counts)[targets]


class NumpyNoise(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + float(np.random.standard_normal()) if self.training else x)  # noqa: NPY002


class Scale(nn.Module):
    """A layer of one parameter of its own, of which no library knows the gradients of records."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 2, 8))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale
