"""Client script with NVFlare's client API, as in its examples; the job's filters add privacy."""

import sys

import nvflare.client as flare
import torch
from digits import Network, samples_of, train

torch.set_num_threads(1)
flare.init()
number, clients = int(flare.get_site_name().removeprefix("site-")) - 1, int(sys.argv[1])
inputs, labels = samples_of(number, clients)
model = Network()
while flare.is_running():
    received = flare.receive()
    if received is None:
        break
    model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
    train(model, inputs, labels, learning_rate=0.2)
    flare.send(flare.FLModel(params=model.state_dict(), params_type="FULL"))
