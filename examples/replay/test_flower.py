"""A Flower app under a replay audit: `pytest test_flower.py`, with `pip install "dpfed[flower]" pytest`.

`clients_app` and `strategy` stand for your project's code; only the test belongs to the audit. The unit is one client.
"""

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from dpfed.audit import FlowerNodes

CLIENTS, FEATURES = 8, 5


def clients_app(partitions):
    """Return the app of the clients; partitions: (inputs [n, d], targets [n]) of each client."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        inputs, targets = partitions[int(context.node_config["partition-id"])]
        (weights,) = message.content["arrays"].to_numpy_ndarrays()
        for _ in range(3):
            weights = weights - 0.1 * inputs.T @ (inputs @ weights - targets) / len(inputs)
        content = {"arrays": ArrayRecord([weights]), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    return app


def strategy():
    """Return federated averaging with central noise, for clients that all take part."""
    everyone = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    return DifferentialPrivacyServerSideFixedClipping(
        everyone, noise_multiplier=1.0, clipping_norm=0.5, num_sampled_clients=CLIENTS
    )


def train(partitions):
    """Return the model after three rounds."""
    grid = FlowerNodes(clients_app(partitions), CLIENTS)
    start = ArrayRecord([np.zeros(FEATURES)])
    return strategy().start(grid=grid, initial_arrays=start, num_rounds=3).arrays.to_numpy_ndarrays()


def test_nothing_but_the_noisy_means_depends_on_a_client(dp_replay):
    draws = np.random.default_rng(0)
    partitions = [(draws.normal(size=(20, FEATURES)), draws.normal(size=20)) for _ in range(CLIENTS)]
    dp_replay(lambda data, out: train(data(partitions)))
