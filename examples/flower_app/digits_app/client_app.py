"""A node: trains on its own samples. Privacy is the import and the mod."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import network, samples_of, train
from dpfed.engines.flower.client_mod import client_mod

app = ClientApp(mods=[client_mod])


@app.train()
def on_train(message, context):
    torch.set_num_threads(1)
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client, clients = (int(context.node_config[key]) for key in ("partition-id", "num-partitions"))
    inputs, labels = samples_of(client, clients)
    train(model, inputs, labels, context.run_config.get("learning-rate", 0.2))
    metrics = MetricRecord({"num-examples": len(inputs)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
