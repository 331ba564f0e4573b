"""Your own data and network with the plan of a preset. Each of 300 clients has 20 samples."""

import torch
from torch import Tensor, nn

import dpfed


def samples(count: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 8)
    return inputs, (inputs[:, :3].sum(dim=1) > 0).long()


data = dpfed.data.from_clients([samples(20) for _ in range(300)], test=samples(1000), classes=2)
network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
done = dpfed.run("dp-fedavg-digits", {"federation.rounds": 20}, data=data, model=network, out="own-data")
print(f"accuracy {done.summary['test_accuracy']:.1%}, {done.guarantee}; report: {done.folder / 'report.html'}")
