"""Bits, error compared with theory, and milliseconds per client of every compressor. Prints Markdown tables.

python benchmarks/compressors.py [--inputs gaussian student lognormal] [--dimension 65536] [--threads 1]
    [--load FILE.py] [--only NAME]

Custom schemes of a file (--load) come last.

Ten clients have d numbers each; four repetitions have different seeds. Error is NMSE, ||decoded - x||² / ||x||²: of one
client; of the mean of ten different clients against their true mean; of the mean of ten clients with equal updates,
which shows whether errors average out. Encoding includes writing bytes, decoding includes reading them; times are the
fastest of twenty, for ten clients at once, divided by ten.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from forgotten import forget
from torch import Tensor

import dpfed.compress
from dpfed.compress import Scheme
from dpfed.config.own_code import load_files

CLIENTS, REPETITIONS, TIMES = 10, 4, 20
GAUSSIAN_ERROR = {1: math.pi / 2 - 1, 2: 0.1331, 3: 0.0358, 4: 0.00959}  # EDEN's value by bits; DRIVE has one bit


def settings(dimension: int) -> list[tuple[str, dict[str, object]]]:
    """Return settings of every registered scheme, at least one each."""
    every_hundredth = torch.arange(0, dimension, 100)
    listed: list[tuple[str, dict[str, object]]] = [
        ("dense", {}),
        ("dense", {"bits": 16}),
        ("topk", {"keep": 0.01}),
        ("topk", {"keep": 0.03}),
        ("randk", {"keep": 0.01}),
        ("shared-randk", {"keep": 0.01}),
        ("shared-topk", {"indices": every_hundredth}),
        ("fedsparsify", {"sparsity": 0.97}),
        ("signsgd", {"scale": "l1"}),
        ("signsgd", {"scale": "l2"}),
        ("stochastic-sign", {"bound": "linf"}),
        ("stochastic-sign", {"bound": "l2"}),
        ("terngrad", {}),
        ("terngrad", {"clip": 2.5}),
        ("qsgd", {"levels": 1, "bucket": None}),
        ("qsgd", {"levels": 256, "bucket": None}),
        ("qsgd", {"levels": 16}),
        ("qsgd", {"levels": 7, "norm": "linf"}),
        ("drive", {}),
        ("drive", {"scale": "min-mse"}),
        ("eden", {"bits": 0.5}),
        ("eden", {"bits": 1}),
        ("eden", {"bits": 2}),
        ("eden", {"bits": 3}),
        ("eden", {"bits": 4}),
        ("fedmrn", {"alpha": 1.0}),
        ("fedmrns", {"alpha": 1.0}),
        ("fedscalar", {}),
        ("fedscalar", {"vectors": "gaussian"}),
    ]
    known = {name for name, _ in listed}
    of_probabilities = {"fedpm", "fedmask"}
    others = [name for name in dpfed.compress.names() if name not in known | of_probabilities]
    return listed + [(name, {}) for name in others]


def updates(kind: str, dimension: int) -> Tensor:
    """Return the updates [10, d] of ten different clients."""
    generator = torch.Generator().manual_seed(2026)
    normal = torch.randn(CLIENTS, dimension, generator=generator, dtype=torch.float64)
    if kind == "gaussian":
        return normal.float()
    if kind == "lognormal":
        signs = torch.randn(CLIENTS, dimension, generator=generator).sign()
        return (signs * (2 * normal).exp()).float()
    # Student's t with 1.5 degrees of freedom: a normal over the root of a scaled gamma
    gamma = torch._standard_gamma(torch.full_like(normal, 0.75), generator=generator)
    return (normal / (gamma / 0.75).sqrt()).float()


def theory(scheme: Scheme, x: Tensor) -> float | None:
    """Return E ||decoded - x||² / ||x||² of one x [d]: exact, or for DRIVE and EDEN the value for a Gaussian x."""
    options = vars(scheme)
    x = x.double()
    d, energy, largest = len(x), float(x @ x), float(x.abs().max())
    match scheme.name:
        case "dense":
            return 0.0 if options["bits"] == 32 else None
        case "topk" | "fedsparsify":
            kept = scheme.layout(d)["values"].count
            return float(x.square().sort().values[: d - kept].sum()) / energy
        case "shared-topk":
            return 1 - float(x[options["indices"]].square().sum()) / energy
        case "randk" | "shared-randk":
            return d / scheme.layout(d)["values"].count - 1
        case "signsgd":
            scale = float(x.abs().mean()) if options["scale"] == "l1" else math.sqrt(energy / d)
            return float((scale - x.abs()).square().sum()) / energy
        case "stochastic-sign":
            return d * (largest**2 if options["bound"] == "linf" else energy) / energy - 1
        case "terngrad":
            edge = options["clip"] * math.sqrt(energy / d) if options["clip"] else largest
            kept_part = x.clamp(-edge, edge)
            bound, size = float(kept_part.abs().max()), float(kept_part.abs().sum())
            error = bound * size - float(kept_part.square().sum()) + float((x - kept_part).square().sum())
            return error / energy
        case "qsgd":
            error = 0.0
            for part in torch.split(x, options["bucket"] or d):
                norm = float(part.norm() if options["norm"] == "l2" else part.abs().max())
                up = (options["levels"] * part.abs() / norm).frac()
                error += (norm / options["levels"]) ** 2 * float((up * (1 - up)).sum())
            return error / energy
        case "drive" | "eden":
            bits = options.get("bits", 1)
            if options["scale"] == "min-mse":
                return 1 - 2 / math.pi
            return math.pi / 2 / bits - 1 if bits < 1 else GAUSSIAN_ERROR[bits]
        case "fedmrn" | "fedmrns":
            return masked_noise_error(x, options["alpha"], signed=scheme.name == "fedmrns") / energy
        case "fedscalar":
            return d - 1 if options["vectors"] == "rademacher" else d + 1
    return None


def masked_noise_error(x: Tensor, alpha: float, *, signed: bool) -> float:
    """Return E ||n m - x||² for noise uniform on [-alpha, alpha], by the midpoint rule over n."""
    total, cells = 0.0, 1000
    for cell in range(cells):
        noise = alpha * ((2 * cell + 1) / cells - 1)
        on = ((x + noise) / (2 * noise) if signed else x / noise).clamp(0, 1)
        off_value = -noise if signed else 0.0
        total += float((on * (noise - x).square() + (1 - on) * (off_value - x).square()).sum()) / cells
    return total


def milliseconds(work: Callable[[], object]) -> float:
    """Return the fastest of a few runs after a warm-up, per client, because other work only adds time."""
    work()
    taken = []
    for _ in range(TIMES):
        forget()
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return 1000 * min(taken) / CLIENTS


def nmse(found: Tensor, true: Tensor) -> float:
    """Return ||found - true||² / ||true||², averaged over rows."""
    error = (found - true).double().square().sum(dim=-1)
    return float((error / true.double().square().sum(dim=-1)).mean())


def shown(value: float | None) -> str:
    if value is None:
        return ""
    return "0" if value == 0 else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def row(scheme: Scheme, label: str, x: Tensor) -> str:
    """Return one line of the table."""
    alike = x[:1].expand(CLIENTS, -1)
    errors = {"one": 0.0, "different": 0.0, "alike": 0.0}
    for seed in range(REPETITIONS):
        payloads, copies = scheme.encode(x, seed=seed), scheme.encode(alike, seed=100 + seed)
        errors["one"] += nmse(scheme.decode(payloads), x) / REPETITIONS
        errors["different"] += nmse(scheme.mean(payloads), x.mean(dim=0)) / REPETITIONS
        errors["alike"] += nmse(scheme.mean(copies), x[0]) / REPETITIONS
    messages = [payload.to_bytes() for payload in payloads]
    sizes = [payload.size() for payload in payloads]
    assert sum(size.bits for size in sizes) == 8 * sum(map(len, messages))
    encode = milliseconds(lambda: [payload.to_bytes() for payload in scheme.encode(x, seed=1)])
    decode = milliseconds(lambda: scheme.decode(read(scheme, messages)))
    expected = [theory(scheme, client) for client in x]
    one = None if None in expected else statistics.fmean(value for value in expected if value is not None)
    same = None
    if one is not None and scheme.unbiased:
        own = 1 if scheme.linear else CLIENTS
        same = (theory(scheme, x[0]) or 0.0) / own
    numbers = x.numel()
    raw, coded = sum(size.raw_bits for size in sizes) / numbers, sum(size.coded_bits for size in sizes) / numbers
    header = statistics.fmean(size.header_bytes for size in sizes)
    bits = [f"{value:.3f}" if value else "" for value in (raw, coded)]
    total = f"{8 * sum(map(len, messages)) / numbers:.3f}"
    cells = [label, *bits, f"{header:.0f}", total, shown(errors["one"]), shown(one), shown(errors["different"])]
    cells += [shown(errors["alike"]), shown(same), f"{encode:.2f}", f"{decode:.2f}"]
    return "| " + " | ".join(cells) + " |"


def read(scheme: Scheme, messages: list[bytes]) -> list[dpfed.compress.Payload]:
    return [dpfed.compress.from_bytes(message) for message in messages]


def label_of(name: str, options: dict[str, object]) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in options.items() if not isinstance(value, Tensor))
    return f"{name} {shown}".strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ("gaussian", "student", "lognormal")
    parser.add_argument("--inputs", nargs="+", choices=kinds, default=["gaussian", "student"])
    parser.add_argument("--dimension", type=int, default=1 << 16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--load", nargs="*", type=Path, default=[])
    parser.add_argument("--only")
    asked = parser.parse_args()
    load_files(asked.load)
    torch.set_num_threads(asked.threads)
    for kind in asked.inputs:
        x = updates(kind, asked.dimension)
        print(f"\n{kind}, d = {asked.dimension}\n")
        print(
            "| scheme | raw bits | coded bits | header bytes | bits in all | error of 1 | theory "
            "| 10 different | 10 alike | theory | encode ms | decode ms |"
        )
        print("|---" + "|--:" * 11 + "|")
        for name, options in settings(asked.dimension):
            if asked.only not in (None, name):
                continue
            print(row(dpfed.compress.get(name, **options), label_of(name, options), x), flush=True)


if __name__ == "__main__":
    main()
