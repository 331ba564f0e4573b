"""Memory and time of one client's step for the whole network and for adapters.

python client_costs.py [layers width [cpu|cuda]]
"""

import sys
import time
from statistics import median

import torch
from language_model import LENGTH, VOCABULARY, NextCharacters, gpt2, with_adapters
from torch.nn.functional import cross_entropy

BATCH, STEPS = 4, 9


def kept_for_backward(network, inputs, labels):
    """Count the bytes of activations that the forward pass keeps, each tensor once, without weights."""
    weights = {parameter.data_ptr() for parameter in network.parameters()}
    kept = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = cross_entropy(network(inputs), labels)
    loss.backward()
    return sum(kept.values())


def costs(network, device):
    """Return trained parameters; megabytes of weights, gradients with Adam's state, activations, upload; seconds."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    count = sum(parameter.numel() for parameter in trained)
    inputs = torch.randint(len(VOCABULARY), (BATCH, LENGTH), device=device)
    labels = torch.randint(len(VOCABULARY), (BATCH, LENGTH), device=device)
    activations = kept_for_backward(network, inputs, labels)
    optimizer, seconds = torch.optim.Adam(trained), []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(network(inputs), labels).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    weights = 4 * sum(parameter.numel() for parameter in network.parameters())
    return count, weights / 1e6, 12 * count / 1e6, activations / 1e6, 4 * count / 1e6, median(seconds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    layers, width = (int(word) for word in sys.argv[1:3]) if len(sys.argv) > 2 else (2, 32)
    device = torch.device(sys.argv[3] if len(sys.argv) > 3 else "cpu")
    print("| | trained | weights MB | gradients, Adam MB | activations MB | upload MB | ms a step |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    makers = {
        "full": lambda: gpt2(layers, width),
        "LoRA": lambda: with_adapters(gpt2(layers, width)),
        "FFA-LoRA": lambda: with_adapters(gpt2(layers, width), train_a=False),
    }
    for name, make in makers.items():
        count, *megabytes, seconds = costs(NextCharacters(make()).to(device), device)
        row = " | ".join(f"{one:.3g}" for one in megabytes)
        print(f"| {name} | {count:,} | {row} | {1000 * seconds:.3g} |", flush=True)
