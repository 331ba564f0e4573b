"""Network and data, independent of NVFlare and of privacy."""

import torch
from torch import nn

from dpfed import data


class Network(nn.Module):
    """Network from 64 pixels to 10 digits."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def forward(self, inputs):
        return self.layers(inputs)


def samples_of(client, clients):
    """Return every `clients`-th of the first 1,400 samples."""
    digits = data.load("digits")
    inputs, labels = digits.train_inputs[client:1400:clients], digits.train_labels[client:1400:clients]
    return torch.tensor(inputs).flatten(1), torch.tensor(labels)


def held_out():
    """Return the server's samples, which belong to no client."""
    digits = data.load("digits")
    return torch.tensor(digits.test_inputs).flatten(1), torch.tensor(digits.test_labels)


def train(model, inputs, labels, learning_rate):
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for batch in torch.randperm(len(inputs)).split(16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
        optimizer.step()
