"""The server. Privacy is the import and the wrapper around FedAvg."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from digits_app.task import accuracy, held_out, network
from dpfed.engines.flower.client_level_strategy import ClientLevelStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    settings = {"clients": 8, "cohort": 4, "num-server-rounds": 3, "out": "flower-app-run"} | dict(context.run_config)
    out = Path(settings["out"])
    out.mkdir(parents=True, exist_ok=True)
    strategy = ClientLevelStrategy(
        FedAvg(),
        clients=settings["clients"],
        cohort=settings["cohort"],
        rounds=settings["num-server-rounds"],
        clip_norm=1.0,
        noise_multiplier=0.8,
        delta=1e-3,
        keep=0.4,
        ledger=out / "ledger.jsonl",
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=settings["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), out / "model.pt")
    print(strategy.guarantee())


def evaluate(number, arrays):
    """On samples of the server's own, which no client has: no epsilon is needed for them."""
    model = network()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model, *held_out())})
