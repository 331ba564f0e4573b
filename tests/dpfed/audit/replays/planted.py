"""Faults of a round as one table, planted in four hosts: a plain loop, Opacus' steps, a Flower app and `dpfed.run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfed.audit import mechanism

CLIENTS = [np.random.default_rng(i).normal(size=(20, 30)) for i in range(16)]
_DRAWS = np.random.default_rng(5)
RECORDS = [(_DRAWS.normal(size=6).astype(np.float32), int(_DRAWS.integers(2))) for _ in range(20)]


def clip(row: np.ndarray, bound: float) -> np.ndarray:
    norm = float(np.linalg.norm(row))
    return row / max(1.0, norm / bound) if np.isfinite(norm) else np.zeros_like(row)


# ---- faults


class Sound:
    """Rows, noise and metric of a round: sound. A fault overrides one of them."""

    def rows(self, moves: Sequence[np.ndarray], sizes: Any, everyone: Any, bound: float) -> list[np.ndarray]:
        """Return bounded rows. sizes: of these clients; everyone: sizes of all clients."""
        return [clip(move, bound) for move in moves]

    def noise(self, total: np.ndarray, bound: float) -> np.ndarray:
        """Return the noise of a sum whose entries have standard deviation 1 in units of the bound."""
        return np.random.normal(size=total.shape)  # noqa: NPY002

    def beside(self, number: int, total: np.ndarray) -> Any:
        """Return the value that enters the model beside the noisy sum."""
        return 0.0

    def metric(self, private_mean: float) -> float:
        return 0.5


def large_not_clipped(factor: float) -> type[Sound]:
    class Large(Sound):
        def rows(self, moves, sizes, everyone, bound):
            large = np.asarray(sizes) > factor * np.mean(everyone)
            return [move if one else clip(move, bound) for move, one in zip(moves, large, strict=True)]

    return Large


class NanKept(Sound):
    def rows(self, moves, sizes, everyone, bound):
        return [np.where(np.isnan(move), 1e6, clip(move, bound)) for move in moves]


class FeedbackByPlace(Sound):
    def __init__(self) -> None:
        self.kept: dict[int, np.ndarray] = {}

    def rows(self, moves, sizes, everyone, bound):
        rows = []
        for place, one in enumerate(moves):
            move = one + self.kept.get((place + 1) % len(moves), 0.0)
            rows.append(clip(np.where(np.abs(move) >= np.sort(np.abs(move))[-5], move, 0), bound))
            self.kept[place] = 0.5 * (move - rows[-1])
        return rows


class WeightsOverLargest(Sound):
    def rows(self, moves, sizes, everyone, bound):
        largest = max(everyone)
        return [clip(move, bound) * float(size / largest) for move, size in zip(moves, sizes, strict=True)]


class SeededInsideClip(Sound):
    def noise(self, total, bound):
        return np.random.default_rng(int((np.abs(total) < bound).sum())).normal(size=total.shape)


class CentredRows(Sound):
    mean: Any = 0.0

    def rows(self, moves, sizes, everyone, bound):
        rows = []
        for move in moves:
            self.mean = 0.9 * self.mean + 0.1 * move
            rows.append(clip(move - self.mean, bound))
        return rows


class SixthDigit(Sound):
    def metric(self, private_mean):
        return 0.5 + 1e-6 * private_mean


def quiet(first: int, last: int) -> type[Sound]:
    class Quiet(Sound):
        def noise(self, total, bound):
            drawn = super().noise(total, bound)
            drawn[first:last] = 0.0
            return drawn

    return Quiet


class Short(Sound):
    def noise(self, total, bound):
        return 0.99 * super().noise(total, bound)


class Anticorrelated(Sound):
    before: Any = 0.0

    def noise(self, total, bound):
        self.before = -0.6 * self.before + 0.8 * super().noise(total, bound)
        return self.before


class RoundSeven(Sound):
    def beside(self, number, total):
        return 0.1 * total if number == 6 else 0.0


# ---- hosts


class PlainLoop:
    """Eight rounds of clipped moves, with the noise marked. std: stated size of the noise."""

    def __init__(self, kind: type[Sound], std: float | None = None) -> None:
        self.kind, self.std = kind, std

    def __call__(self, data: Any, out: Any) -> np.ndarray:
        own, model, fault = data(CLIENTS), np.zeros(30), self.kind()
        sizes = [len(one) for one in own]
        release = mechanism(lambda t: t + fault.noise(t, 1.0), sensitivity=1.0, std=self.std, name="noise")
        for number in range(8):
            moves = [one.sum(axis=0) - model for one in own]
            total = np.sum(fault.rows(moves, sizes, sizes, 1.0), axis=0)
            model = model + (release(total) + fault.beside(number, total)) / 16
        mean = float(np.mean([one.mean() for one in own]))
        (out / "metrics.csv").write_text(f"accuracy\n{fault.metric(mean):.9f}\n")
        return model


class OpacusSteps:
    """Eight steps of DP-SGD with Opacus' optimizer, batches drawn at random; sizes are the norms of gradients."""

    def __init__(self, kind: type[Sound]) -> None:
        self.kind = kind

    def __call__(self, data: Any, out: Any) -> Any:
        import torch
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        fault, shapes = self.kind(), []

        def split(vector: np.ndarray) -> list[torch.Tensor]:
            parts = torch.from_numpy(np.asarray(vector, dtype=np.float32)).split([one.numel() for one in shapes])
            return [part.view_as(one) for part, one in zip(parts, shapes, strict=True)]

        class Planted(DPOptimizer):
            def clip_and_accumulate(self) -> None:
                rows = torch.cat([one.reshape(len(one), -1) for one in self.grad_samples], dim=1).double().numpy()
                norms = np.linalg.norm(rows, axis=1)
                bounded = fault.rows(rows, norms, norms, self.max_grad_norm)
                for one, part in zip(
                    self.params, split(np.sum([np.zeros(rows.shape[1]), *bounded], axis=0)), strict=True
                ):
                    one.summed_grad = part if one.summed_grad is None else one.summed_grad + part

            def add_noise(self) -> None:
                total = torch.cat([one.summed_grad.reshape(-1) for one in self.params]).double().numpy()
                for one, added in zip(self.params, split(fault.noise(total, self.max_grad_norm)), strict=True):
                    one.grad = one.summed_grad + added

        records = data(RECORDS)
        x = torch.tensor(np.stack([one for one, _ in records]))
        y = torch.tensor([int(label) for _, label in records])
        net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        model = GradSampleModule(net)
        shapes += list(model.parameters())
        descent = torch.optim.SGD(shapes, lr=0.1)
        optimizer = Planted(descent, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=8)
        for number in range(8):
            drawn = torch.rand(len(x)) < 0.6
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[drawn]), y[drawn]).backward()
            optimizer.step()
            with torch.no_grad():
                for one in shapes:
                    one -= 0.1 * fault.beside(number, one.summed_grad)
        (out / "metrics.csv").write_text(f"accuracy\n{fault.metric(float(x.mean())):.9f}\n")
        return net.state_dict()


class FlowerApp:
    """Eight rounds of a Flower app whose strategy, one of Flower's for central privacy, bounds updates itself."""

    def __init__(self, kind: type[Sound]) -> None:
        self.kind = kind

    def __call__(self, data: Any, out: Any) -> Any:
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg

        from dpfed.audit import FlowerNodes

        own, fault, app, count = data(CLIENTS), self.kind(), ClientApp(), len(CLIENTS)
        sizes = [len(one) for one in own]

        @app.train()
        def train(message: Any, context: Any) -> Any:
            client = context.node_config["partition-id"]
            arrays = ArrayRecord([own[client].sum(axis=0)])
            metrics = MetricRecord({"num-examples": 1, "client": client})
            return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

        class Strategy(DifferentialPrivacyClientSideFixedClipping):
            def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
                (self.model,) = arrays.to_numpy_ndarrays()
                return super().configure_train(server_round, arrays, config, grid)

            def aggregate_train(self, server_round: int, replies: Any) -> Any:
                replies = sorted(replies, key=lambda one: one.content["metrics"]["client"])
                moves = [one.content["arrays"].to_numpy_ndarrays()[0] - self.model for one in replies]
                rows = fault.rows(moves, sizes, sizes, self.clipping_norm)
                for one, row in zip(replies, rows, strict=True):
                    one.content["arrays"] = ArrayRecord([self.model + row])
                arrays, metrics = super().aggregate_train(server_round, replies)
                moved = arrays.to_numpy_ndarrays()[0] + fault.beside(server_round - 1, np.mean(rows, axis=0))
                return ArrayRecord([moved]), metrics

            def _add_noise_to_aggregated_arrays(self, aggregated_arrays: Any) -> Any:
                (mean,) = aggregated_arrays.to_numpy_ndarrays()
                noise = fault.noise((mean - self.model) * count, self.clipping_norm)
                return ArrayRecord([mean + self.clipping_norm * noise / count])

        inner = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
        strategy = Strategy(inner, noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=count)
        done = strategy.start(grid=FlowerNodes(app, count), initial_arrays=ArrayRecord([np.zeros(30)]), num_rounds=8)
        mean = float(np.mean([one.mean() for one in own]))
        (out / "metrics.csv").write_text(f"accuracy\n{fault.metric(mean):.9f}\n")
        return done.arrays.to_numpy_ndarrays()


class DpfedRun:
    """Eight rounds of dp-fedavg on the digits, with the stages of dpfed planted."""

    def __init__(self, kind: type[Sound]) -> None:
        self.kind = kind

    def plant(self) -> None:
        import torch

        from dpfed.clients.training import LocalTraining
        from dpfed.mechanisms.gaussian import GaussianNoise
        from dpfed.runs import evaluate
        from dpfed.stages.clip import Clip
        from dpfed.stages.project import Project

        fault, seen, begin = self.kind(), {}, LocalTraining.__post_init__
        project, accuracies = Project.server, evaluate.Objective.accuracies

        def remember(self: Any) -> None:
            begin(self)
            seen["sizes"], seen["mean"] = np.asarray(self.partition.sizes), self.inputs.double()

        def client(self: Any, rows: Any, ids: Any, now: Any) -> Any:
            everyone = seen["sizes"]
            moves = list(rows.double().numpy())
            bounded = fault.rows(moves, everyone[ids], everyone, now.clip_norm * (1 - 1e-6))
            return torch.from_numpy(np.array(bounded).reshape(rows.shape)).to(rows.dtype)

        def server(self: Any, total: Any, now: Any) -> Any:
            seen["total"] = total.clone()
            noise = fault.noise(total.double().numpy(), now.clip_norm)
            return total + torch.from_numpy(self.noise_multiplier * now.clip_norm * noise).to(total.dtype)

        def projected(self: Any, total: Any, now: Any) -> Any:
            return project(self, total + fault.beside(now.number, seen.get("total", 0 * total)), now)

        def scored(self: Any, outputs: Any, targets: Any) -> Any:
            private = seen["mean"][: seen["sizes"].sum()].mean()
            return accuracies(self, outputs, targets) + fault.metric(float(private)) - 0.5

        LocalTraining.__post_init__, Clip.client, GaussianNoise.server = remember, client, server
        Project.server, evaluate.Objective.accuracies = projected, scored

    def __call__(self, data: Any, out: Any) -> None:
        import dpfed

        self.plant()
        settings = {
            "federation.rounds": 8, "federation.clients": 30, "federation.cohort": 12, "data.train_samples": 480,
            "local.epochs": None, "local.steps": 2, "model.hidden": [8],
            "privacy.epsilon": None, "privacy.noise_multiplier": 1.0, "run.evaluate_every": 1 if data.reporting else 4,
        }  # fmt: skip
        dpfed.run("dp-fedavg-digits", settings, out=out, progress=False)


# ---- the table


@dataclass(frozen=True)
class Planted:
    """A fault in a host. words: of the finding; None if no replay finds it."""

    name: str
    host: str
    call: Callable[[Any, Any], Any]
    words: str | None

    def __call__(self, data: Any, out: Any) -> Any:
        return self.call(data, out)

    @property
    def id(self) -> str:
        return f"{self.host}: {self.name}"


HOSTS: dict[str, Callable[..., Any]] = {
    "plain loop": PlainLoop, "Opacus": OpacusSteps, "Flower app": FlowerApp, "dpfed": DpfedRun,
}  # fmt: skip
MOVES, ROWS = "its input moves", "clients or records were changed"
FAULTS: dict[str, tuple[type[Sound], tuple[str | None, ...]]] = {
    "clients above 3 times the mean not clipped": (large_not_clipped(3), (MOVES, "", "beyond", "beyond")),
    "clients above 5 times the mean not clipped": (large_not_clipped(5), (MOVES, "", "beyond", "beyond")),
    "clients above 12 times the mean not clipped": (large_not_clipped(12), (MOVES, "", "beyond", "beyond")),
    "NaN rows kept as 1e6": (NanKept, (MOVES, "", "", "")),
    "error feedback kept by place": (FeedbackByPlace, (MOVES, "", "", "")),
    "weights over the largest client's size": (WeightsOverLargest, (MOVES, "", "", "")),
    "noise seeded by the number inside the clip": (SeededInsideClip, ("its noise differs",) * 4),
    "rows centred by a running mean": (CentredRows, (MOVES, "", "", "")),
    "a private mean in the sixth digit of a public metric": (SixthDigit, ("file metrics.csv",) * 3 + ("file",)),
    "the last ten coordinates without noise": (quiet(20, 30), ("adds no noise to",) * 4),
    "one coordinate without noise": (quiet(11, 12), ("adds no noise to coordinate",) * 4),
    "noise 1% short": (Short, (None,) * 4),
    "noise anticorrelated between rounds": (Anticorrelated, (None,) * 4),
    "a fault in round 7 only": (RoundSeven, ("",) * 4),
}
"""Name: the fault, and words of the finding in each host; None if no replay finds it."""
PLANTED = tuple(
    Planted(name, host, make(kind), words)
    for name, (kind, expected) in FAULTS.items()
    for (host, make), words in zip(HOSTS.items(), expected, strict=True)
) + tuple(
    Planted(f"{name}, std stated", "plain loop", PlainLoop(FAULTS[name][0], std=1.0), words)
    for name, words in (("noise 1% short", "noise is short"), ("noise anticorrelated between rounds", "consecutive"))
)
TWINS = tuple(Planted(f"twin of the {host}", host, make(Sound), None) for host, make in HOSTS.items())
