"""Audit of a DP-SGD step by Opacus (one record added or removed) and of a round of a loop against their claims.

python audit_training_step.py"""

import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

import accounting
from dpfed import audit

CLAIM = accounting.Gaussian(noise_multiplier=1.0, adjacency=accounting.Adjacency.ADD_REMOVE)


def opacus_step(given: tuple[Tensor, Tensor], seed: int) -> Tensor:
    """Return the weights after a DP-SGD step from (weights [d], records [n, d]); the unit is one record."""
    weights, records = given
    model = GradSampleModule(nn.Linear(len(weights), 1, bias=False), loss_reduction="sum")
    with torch.no_grad():
        model._module.weight.copy_(weights)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=1,
        loss_reduction="sum",
        generator=torch.Generator().manual_seed(seed),
    )
    model(records.clone().requires_grad_()).sum().backward()
    optimizer.step()
    return model._module.weight.detach()


def loop_round(given: tuple[Tensor, Tensor], seed: int) -> Tensor:
    """Return the new state from (state [d], all clients' data [clients, d]); the unit is one client."""
    state, data = given
    moves = 0.5 * (data - state)  # local training
    moves = moves * (1 / moves.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1)
    noise = torch.randn(len(state), generator=torch.Generator().manual_seed(seed))
    return state + (moves.sum(dim=0) + noise) / 4


def main() -> None:
    state, data = torch.zeros(8), torch.zeros(4, 8)
    data[-1] = 100.0
    worlds = [audit.Worlds(name="the last one", one=(state, data), other=(state, data[:-1]))]
    for step in (opacus_step, loop_round):
        found = audit.upload(step, claim=CLAIM, worlds=worlds, trials=3_000)
        print(f"{step.__name__}: {found.verdict_in_full}. {found.as_text()}")


if __name__ == "__main__":
    main()
