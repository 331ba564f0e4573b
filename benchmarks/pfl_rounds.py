"""Rounds of pfl 0.6.0, run by its own Python: prints the seconds of each as a JSON list.

    PFL_PYTHON benchmarks/pfl_rounds.py TASK THREADS DEVICE

Clipping and central Gaussian noise on, evaluation off; the first round is a warm-up and is not counted.
pfl uses a GPU if there is one, so DEVICE only sets the place of the data.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from tasks import TASKS, Task, client_data, network
from torch import Tensor, nn


class Classifier(nn.Module):
    """Network with the two methods that pfl requires."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.network = network(task)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.network(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        return {}


class Clock(TrainingProcessCallback):
    """Callback that records the time at the start of training and after every round."""

    def __init__(self) -> None:
        self.ticks = [time.perf_counter()]

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.ticks.append(time.perf_counter())
        return False, Metrics()


def rounds(task: Task, device: str) -> list[float]:
    """Return the seconds of each round after the first."""
    inputs, labels = (torch.from_numpy(array).to(device) for array in client_data(task))
    users = {client: (inputs[client], labels[client]) for client in range(task.clients)}
    population = FederatedDataset.from_slices(users, get_user_sampler("minimize_reuse", list(users)))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(task.clip_norm, task.noise_multiplier))
    module = Classifier(task)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    clock = Clock()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds + 1,
            evaluation_frequency=10**9,
            train_cohort_size=task.clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=population, val_data=population, postprocessors=[noise]),
        model,
        NNTrainHyperParams(
            local_learning_rate=task.learning_rate,
            local_num_epochs=task.epochs,
            local_batch_size=task.batch_size,
        ),
        callbacks=[clock],
    )
    return [end - start for start, end in zip(clock.ticks[1:-1], clock.ticks[2:], strict=True)]


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    print(json.dumps(rounds(TASKS[sys.argv[1]], sys.argv[3])))
