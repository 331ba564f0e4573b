"""The network, the data and the training: nothing here knows of Flower or of privacy."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def network():
    """64 pixels to 10 digits."""
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


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


def accuracy(model, inputs, labels):
    with torch.no_grad():
        return float((model(inputs).argmax(dim=1) == labels).float().mean())


def _digits():
    inputs, labels = load_digits(return_X_y=True)
    return torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(labels)
