"""DP-SGD by Opacus under a replay audit: `pytest test_opacus.py`, with `pip install "dpfed[train]" pytest`.

`train` stands for your project's code; only the test belongs to the audit. The unit is one record, (inputs, label).
"""

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader


def train(records):
    """Return the weights after two epochs of DP-SGD on records [(inputs [d], label)]."""
    inputs = torch.tensor(np.stack([one for one, _ in records]), dtype=torch.float32)
    labels = torch.tensor([int(label) for _, label in records])
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(list(zip(inputs, labels, strict=True)), batch_size=16),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for _ in range(2):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model.state_dict()


def test_nothing_but_the_noisy_gradients_depends_on_a_record(dp_replay):
    draws = np.random.default_rng(0)
    records = [
        (draws.normal(size=8), int(draws.integers(2))) for _ in range(66)
    ]  # Opacus divides by int(66 / 5), as for 65 records; 64 and 63 differ
    dp_replay(lambda data, out: train(data(records)))
