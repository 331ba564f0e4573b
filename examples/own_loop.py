"""Your own training loop in plain torch. One object draws cohorts, clips, adds noise and charges, so that the charge
matches what ran. Afterwards: dpfed audit own-loop.jsonl"""

import copy

import torch
from torch import Tensor, nn

import dpfed

CLIENTS = 650

digits = dpfed.data.load("digits")
inputs, labels = torch.from_numpy(digits.train_inputs), torch.from_numpy(digits.train_labels)
owner = torch.arange(len(inputs)) % CLIENTS
network = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def difference(client: int) -> dict[str, Tensor]:
    """Return the change of the network by a client's training: here a few steps of SGD; replace it by yours."""
    mine, own = copy.deepcopy(network), owner == client
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.5, momentum=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(mine(inputs[own]), labels[own]).backward()
        optimizer.step()
    before = network.state_dict()
    return {name: after - before[name] for name, after in mine.state_dict().items()}


private = dpfed.ClientLevel(clients=CLIENTS, cohort=65, clip_norm=2.0, epsilon=3.0, rounds=20, ledger="own-loop.jsonl")
for step in private.rounds():
    mean = step.release(difference(client) for client in step.cohort.tolist())
    network.load_state_dict({name: before + mean[name] for name, before in network.state_dict().items()})

guessed = network(torch.from_numpy(digits.test_inputs)).argmax(dim=1).numpy()
print(f"accuracy {(guessed == digits.test_labels).mean():.1%}, {private.guarantee()}")
