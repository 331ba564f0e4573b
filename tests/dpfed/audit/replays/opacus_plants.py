"""Faults planted in DP-SGD with Opacus' optimizer: eight steps on 20 records, in a stranger's loop without marks.

Plants that need clients of different sizes are those of a plain loop (patterns.py): the unit here is the record.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

from .patterns import Fault

_DRAWS = np.random.default_rng(5)
RECORDS = [(_DRAWS.normal(size=6).astype(np.float32), int(_DRAWS.integers(2))) for _ in range(20)]


class Loop:
    """Eight steps of DP-SGD with batches drawn at random: sound. A fault overrides the optimizer or one step."""

    optimizer: type[DPOptimizer] = DPOptimizer

    def batch(self, x: Tensor) -> Tensor:
        return x

    def after_step(self, number: int, optimizer: DPOptimizer) -> None:
        pass

    def write(self, out: Any, x: Tensor) -> None:
        pass

    def __call__(self, data: Any, out: Any) -> Any:
        records = data(RECORDS)
        x = torch.tensor(np.stack([one for one, _ in records]))
        y = torch.tensor([int(label) for _, label in records])
        net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
        model = GradSampleModule(net)
        optimizer = self.optimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=8,
        )
        for number in range(8):
            drawn = torch.rand(len(x)) < 0.6
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(self.batch(x[drawn])), y[drawn]).backward()
            optimizer.step()
            self.after_step(number, optimizer)
        self.write(out, x)
        return net.state_dict()


class Short(DPOptimizer):
    def add_noise(self) -> None:
        self.noise_multiplier = 0.99
        super().add_noise()
        self.noise_multiplier = 1.0


class Anticorrelated(DPOptimizer):
    before: list[Tensor] | None = None

    def add_noise(self) -> None:
        super().add_noise()
        noise = [one.grad - one.summed_grad for one in self.params]
        if self.before is not None:
            noise = [0.8 * new - 0.6 * old for new, old in zip(noise, self.before, strict=True)]
        self.before = noise
        for one, added in zip(self.params, noise, strict=True):
            one.grad = one.summed_grad + added


def quiet_at(places: slice) -> type[DPOptimizer]:
    class Quiet(DPOptimizer):
        def add_noise(self) -> None:
            super().add_noise()
            first = self.params[0]
            first.grad.view(-1)[places] = first.summed_grad.view(-1)[places]

    return Quiet


class SeededInsideClip(DPOptimizer):
    def add_noise(self) -> None:
        entries = torch.cat([one.summed_grad.reshape(-1) for one in self.params])
        self.generator = torch.Generator().manual_seed(int((entries.abs() < 0.05).sum()))
        super().add_noise()


class NanKept(DPOptimizer):
    def clip_and_accumulate(self) -> None:
        rows = torch.cat([one.reshape(len(one), -1) for one in self.grad_samples], dim=1)
        factors = (1.0 / (rows.norm(dim=1) + 1e-6)).clamp(max=1.0)
        for one in self.params:
            kept = torch.where(torch.isnan(one.grad_sample), 1e6, one.grad_sample)
            one.summed_grad = torch.einsum("i,i...", torch.nan_to_num(factors, nan=1.0), kept)


class FeedbackByPlace(DPOptimizer):
    kept: Tensor | None = None

    def clip_and_accumulate(self) -> None:
        rows = torch.cat([one.reshape(len(one), -1) for one in self.grad_samples], dim=1)
        if self.kept is not None and len(rows):
            rows[0] = rows[0] + self.kept
        clipped = rows * (1.0 / (rows.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1.0)
        self.kept = (rows - clipped)[-1] if len(rows) else self.kept
        total, begin = clipped.sum(dim=0), 0
        for one in self.params:
            one.summed_grad = total[begin : begin + one.numel()].view_as(one)
            begin += one.numel()


class OverLargest(DPOptimizer):
    """Records weighted by their norm over the largest norm of the batch."""

    def clip_and_accumulate(self) -> None:
        rows = torch.cat([one.reshape(len(one), -1) for one in self.grad_samples], dim=1)
        norms = rows.norm(dim=1) + 1e-6
        factors = (1.0 / norms).clamp(max=1.0) * norms / norms.max().clamp(min=1e-6) if len(rows) else norms
        for one in self.params:
            one.summed_grad = torch.einsum("i,i...", factors, one.grad_sample)


class CentredRows(Loop):
    def __init__(self) -> None:
        self.mean = torch.zeros(6)

    def batch(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(dim=0) if len(x) else self.mean
        return x - self.mean


class SixthDigit(Loop):
    def write(self, out: Any, x: Tensor) -> None:
        (out / "metrics.csv").write_text(f"accuracy\n{0.5 + 1e-6 * float(x.mean()):.9f}\n")


class StepSeven(Loop):
    def after_step(self, number: int, optimizer: DPOptimizer) -> None:
        if number == 6:
            with torch.no_grad():
                for one in optimizer.params:
                    one -= 0.01 * one.summed_grad


def with_optimizer(kind: type[DPOptimizer]) -> type[Loop]:
    return type("Loop", (Loop,), {"optimizer": kind})


def planted(name: str, kind: type[Loop], words: str, *, found: bool = True) -> Fault:
    return Fault(f"Opacus: {name}", lambda data, out: kind()(data, out), words, found)


SOUND_STEPS = planted("sound steps", Loop, "", found=False)
OPACUS = (
    planted("NaN rows kept as 1e6", with_optimizer(NanKept), "Opacus"),
    planted("error feedback kept by place", with_optimizer(FeedbackByPlace), "do not add up"),
    planted("weights over the largest record's norm", with_optimizer(OverLargest), "do not add up"),
    planted("noise seeded by entries inside the clip", with_optimizer(SeededInsideClip), "its noise differs"),
    planted("rows centred by a running mean", CentredRows, "records were changed"),
    planted("a private mean in the sixth digit of a public metric", SixthDigit, "file metrics.csv"),
    planted("ten coordinates without noise", with_optimizer(quiet_at(slice(10, 20))), "adds no noise to"),
    planted("one coordinate without noise", with_optimizer(quiet_at(slice(11, 12))), "adds no noise to"),
    planted("noise 1% short", with_optimizer(Short), "", found=False),
    planted("noise anticorrelated between steps", with_optimizer(Anticorrelated), "", found=False),
    planted("a fault in step 7 only", StepSeven, "differ"),
)
