"""Seconds of compression per client, and their share of local training.

    python benchmarks/encoding_share.py [--clients 4] [--device cpu]

The task is that of FedMRN's Figure 6: the CNN with four convolutions and BatchNorm on 28x28x1, 600 random images per
client, batch 64, one local epoch (the paper trains ten, which divides every share by ten). A client encodes a tensor to
bytes; the server decodes bytes to a tensor. Prints a Markdown table of medians over clients.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from forgotten import forget

from dpfed.clients import LocalTraining, Sgd
from dpfed.compress import from_bytes
from dpfed.compress.mask_schemes import MaskCoder
from dpfed.compress.rotation import one_thread
from dpfed.config.tables import Config, parse
from dpfed.data import Partition
from dpfed.mechanisms.bernoulli import bernoulli_draws
from dpfed.methods.catalogue import METHODS, method_specification
from dpfed.methods.parts import scheme_of_method
from dpfed.models import build
from dpfed.randomness import Simulated
from dpfed.seeds import Seeds

_OPTIONS = {"eden": {"bits": 2}, "fedscalar": {"projections": 1}}
_SAMPLES = 600


def configuration(name: str) -> Config:
    """Parts of a configuration that a scheme uses."""
    table = {"name": name, "options": _OPTIONS.get(name, {})}
    if method_specification(name).sparse == "yes":
        table["keep"] = 0.03
    tables = {
        "data": {"name": "digits"},
        "model": {"name": "mlp"},
        "federation": {"clients": 1, "cohort": 1, "rounds": 1},
        "local": {"learning_rate": 0.1, "epochs": 1, "batch_size": 64},
        "method": table,
    }
    return parse(tables, source="benchmark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    updates, training = trained(options.clients, torch.device(options.device))
    print(f"d = {updates.shape[1]:,}, local training {training:.2f} s a client\n")
    print("| method | encode, ms | decode, ms | bytes | encoding over training |")
    print("|---|--:|--:|--:|--:|")
    with one_thread():
        for name, chosen in METHODS.items():
            if chosen.scheme in (None, "dense") and name not in ("fedavg", "fedpm"):
                continue
            encode, decode, size = timed(name, updates)
            print(f"| {name} | {1e3 * encode:.1f} | {1e3 * decode:.1f} | {size:,} | {100 * encode / training:.1f}% |")


def trained(clients: int, device: torch.device) -> tuple[torch.Tensor, float]:
    """Return updates [clients, d] and the median seconds of training one client on one thread."""
    model, seeds = build("cnn-4-bn", (1, 28, 28), 10), Seeds(root=0)
    generator = torch.Generator().manual_seed(0)
    count = clients * _SAMPLES
    local = LocalTraining(
        model=model,
        course=Sgd(size=model.size, learning_rate=0.1),
        inputs=torch.randn(count, 1, 28, 28, generator=generator).to(device),
        labels=torch.randint(10, (count,), generator=generator).to(device),
        partition=Partition(indices=np.arange(count), offsets=np.arange(clients + 1) * _SAMPLES),
        epochs=1,
        batch_size=64,
        strategy="loop",
    )
    start, rows, seconds = model.initial(0).to(device), [], []
    for client in range(clients):
        began = time.perf_counter()
        rows.append(local.train(start, np.array([client]), number=0, seeds=seeds))
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    coded = model.compressible.to(device)  # parameters of normalisation are sent as floats
    return torch.cat(rows)[:, coded], statistics.median(seconds)


def timed(name: str, updates: torch.Tensor) -> tuple[float, float, int]:
    """Return the median seconds of encoding and decoding one client, and its bytes."""
    if name == "fedpm":
        return timed_mask(updates)
    made = scheme_of_method(configuration(name), method_specification(name), updates.shape[1])
    encoding, decoding, sizes = [], [], []
    for turn in range(2 * len(updates)):
        row = updates[turn % len(updates)][None]
        forget()
        began = time.perf_counter()
        message = made.encode(row, seed=[turn])[0].to_bytes()
        encoding.append(time.perf_counter() - began)
        forget()
        began = time.perf_counter()
        made.decode([from_bytes(message, dimension=updates.shape[1])])
        decoding.append(time.perf_counter() - began)
        sizes.append(len(message))
    return statistics.median(encoding), statistics.median(decoding), int(statistics.median(sizes))


def timed_mask(updates: torch.Tensor) -> tuple[float, float, int]:
    """Return the seconds of encoding and decoding a mask: Bernoulli samples and the range coder, then back.

    Client and server build the coder of the public probabilities once per round."""
    randomness = Simulated(seeds=Seeds(root=0))
    theta = torch.sigmoid(torch.randn(updates.shape[1], generator=torch.Generator().manual_seed(1))).to(updates.device)
    coder = MaskCoder(probabilities=theta.cpu().numpy())
    encoding, decoding, sizes = [], [], []
    for turn in range(len(updates)):
        began = time.perf_counter()
        message = coder.encode(bernoulli_draws(theta, None, 0.0, randomness, "coins", 0, turn).cpu().numpy() != 0)
        encoding.append(time.perf_counter() - began)
        began = time.perf_counter()
        torch.from_numpy(coder.decode(message)).to(theta.device)
        decoding.append(time.perf_counter() - began)
        sizes.append(len(message))
    return statistics.median(encoding), statistics.median(decoding), int(statistics.median(sizes))


if __name__ == "__main__":
    main()
