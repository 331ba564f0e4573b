"""Seconds of one evaluation on a CPU, by batch size and memory layout of images.

    python benchmarks/evaluation.py [--images 2000] [--repeat 3] [--threads 1]

Images are random. Variants run in turn; the smallest of `--repeat` times is printed. `dpfed.runs.evaluate` uses the
last variant if the network's outputs do not depend on the layout, else the first.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor

from dpfed.models import build
from dpfed.models.flat import FlatModel

NETWORKS = {
    "fed-smp-cnn": (1, 28, 28),
    "fed-smp-svhn-cnn": (3, 32, 32),
    "conv-4": (3, 32, 32),
    "cnn-4-bn": (3, 32, 32),
}
WAYS = {
    "1000, channels outermost": (1000, torch.contiguous_format),
    "1000, innermost": (1000, torch.channels_last),
    "100, outermost": (100, torch.contiguous_format),
    "100, innermost": (100, torch.channels_last),
}


@torch.no_grad()
def seconds(model: FlatModel, weights: Tensor, images: Tensor, batch: int, layout: torch.memory_format) -> float:
    """Return the seconds of a forward pass of all images."""
    begun = time.perf_counter()
    for rows in torch.split(images, batch):
        model.forward(weights, rows.clone(memory_format=layout))
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"| {given.images} images | {' | '.join(WAYS)} | first / last |\n|---|{'--:|' * (len(WAYS) + 1)}")
    for name, shape in NETWORKS.items():
        model = build(name, shape, 10)
        weights, images = model.initial(0), torch.rand(given.images, *shape)
        runs = [[seconds(model, weights, images, *way) for way in WAYS.values()] for _ in range(given.repeat)]
        least = [min(column) for column in zip(*runs, strict=True)]
        print(f"| {name} | {' | '.join(f'{one:.2f}' for one in least)} | {least[0] / least[-1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
