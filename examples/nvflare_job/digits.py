"""The network and the data: nothing here knows of NVFlare or of privacy."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Network(nn.Module):
    """64 pixels to 10 digits."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, inputs):
        return self.layers(inputs)


def samples_of(client, clients):
    """Every clients-th of the first 1,400 samples."""
    inputs, labels = _digits()
    return inputs[client:1400:clients], labels[client:1400:clients]


def held_out():
    """The rest, which the server has."""
    inputs, labels = _digits()
    return inputs[1400:], labels[1400:]


def train(model, inputs, labels, learning_rate):
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for batch in torch.randperm(len(inputs)).split(16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()


def _digits():
    inputs, labels = load_digits(return_X_y=True)
    return torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(labels)
