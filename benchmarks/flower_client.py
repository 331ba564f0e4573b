"""Client of `flower_rounds.py` that Ray's actors import; the task's name is in BENCHMARK_TASK."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from flwr.client import NumPyClient
from flwr.common import Context
from tasks import TASKS, client_data, network
from torch import nn

TASK = TASKS[os.environ["BENCHMARK_TASK"]]


@cache
def prepared() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the network and all clients' data, cached once per actor."""
    torch.set_num_threads(1)
    inputs, labels = (torch.from_numpy(array) for array in client_data(TASK))
    return network(TASK), inputs, labels


class Client(NumPyClient):
    """Client with local SGD, as in the plain loop."""

    def __init__(self, client: int) -> None:
        self._client = client

    def fit(self, parameters: Any, config: Any) -> Any:
        module, inputs, labels = prepared()
        with torch.no_grad():
            for parameter, given in zip(module.parameters(), parameters, strict=True):
                parameter.copy_(torch.from_numpy(given))
        optimiser = torch.optim.SGD(module.parameters(), lr=TASK.learning_rate)
        for _ in range(TASK.epochs):
            for batch in torch.randperm(TASK.samples).split(TASK.batch_size):
                optimiser.zero_grad()
                logits = module(inputs[self._client, batch])
                nn.functional.cross_entropy(logits, labels[self._client, batch]).backward()
                optimiser.step()
        return [parameter.detach().numpy() for parameter in module.parameters()], TASK.samples, {}


def client(context: Context) -> Any:
    """Return the client of this node."""
    return Client(int(context.node_config["partition-id"])).to_client()
