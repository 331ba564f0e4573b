"""Train the network from scratch on the public roles: python pretrain.py [steps]. Writes public.safetensors here."""

import sys

import torch
from language_model import PUBLIC_WEIGHTS, NextCharacters, dataset, gpt2
from safetensors.torch import save_model
from torch.nn.functional import cross_entropy


@torch.no_grad()
def mean_loss(network, inputs, labels, batch=500):
    """Return the loss in nats per character."""
    network.eval()
    losses = [
        cross_entropy(network(seen), following, reduction="sum")
        for seen, following in zip(torch.split(inputs, batch), torch.split(labels, batch), strict=True)
    ]
    return float(sum(losses)) / labels.numel()


def tests_of(data):
    return torch.from_numpy(data.test_inputs), torch.from_numpy(data.test_labels)


def pretrain(steps, batch=32):
    """Few steps, so that the clients have something to learn."""
    torch.manual_seed(0)
    public, network = dataset("public-roles", 0), NextCharacters(gpt2())
    inputs, labels = torch.from_numpy(public.train_inputs), torch.from_numpy(public.train_labels)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = torch.randint(len(inputs), (batch,))
        optimizer.zero_grad()
        cross_entropy(network(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    return network


if __name__ == "__main__":
    network = pretrain(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    save_model(network.gpt2, str(PUBLIC_WEIGHTS))
    for name, half in (("public", 0), ("private", 1)):
        print(f"{name} roles: test loss {mean_loss(network, *tests_of(dataset(name, half))):.4f}")
