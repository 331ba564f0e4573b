"""Duration of a secure sum, compared with the functions of Flower's SecAgg+.

    python benchmarks/secure_sums.py [--quick] [--plot growth.png] [--repeat 2]

dpfed runs whole rounds: every message is written and parsed, every total is checked against the plain sum. For Flower,
its functions are called as its client and workflow call them, for a few clients, and the time is scaled to all clients,
without quantising and serialising. Without flwr its columns are omitted.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfed.aggregation.messages import ProtocolStep, agree_on_terms
from dpfed.aggregation.protocol import MaskedSum, ProtocolSum

try:
    from flwr.common.secure_aggregation import ndarrays_arithmetic as arithmetic
    from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
    from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
    from flwr.common.secure_aggregation.secaggplus_utils import (
        pseudo_rand_gen,
        share_keys_plaintext_concat,
        share_keys_plaintext_separate,
    )
    from flwr.supercore.primitives.asymmetric import (
        bytes_to_private_key,
        bytes_to_public_key,
        generate_key_pairs,
        private_key_to_bytes,
        public_key_to_bytes,
    )

    WHY_NOT = ""
except ImportError as error:
    WHY_NOT = f"no flwr 1.42.0 here ({error}): its columns are left out"

BITS = 17
GROUP = 10  # rows that arrive together
SAMPLED = 3  # number of Flower's clients that are timed
FLOWER_MODULUS = 1 << 32
MLP_TO_CNN = (10_000, 100_000, 400_000, 1_600_000)
CLIENTS = (25, 50, 100, 200)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Setting: clients n, neighbours k (None: all), coordinates d, and the number that drop out before sending rows."""

    clients: int
    neighbours: int | None
    size: int
    gone: int = 0

    @property
    def degree(self) -> int:
        return self.clients - 1 if self.neighbours is None else self.neighbours


Seconds = tuple[float, float]  # wall-clock time, and processor time


def ours(kind: type[ProtocolSum] | type[MaskedSum], setting: Setting, rows: np.ndarray) -> Seconds:
    """Measure one whole round. Rows repeat between groups, which does not affect the time."""
    ids = np.arange(setting.clients)
    began = time.perf_counter(), time.process_time()
    terms = agree_on_terms(
        ids, size=setting.size, bits=BITS, threshold=0.6, neighbours=setting.neighbours, graph_seed=1
    )
    running = kind(terms, dropouts=dict.fromkeys(range(setting.gone), ProtocolStep.UPLOAD))
    for start in range(0, setting.clients, GROUP):
        group = ids[start : start + GROUP]
        running.add(group, rows[: len(group)])
    result = running.close()
    spent = time.perf_counter() - began[0], time.process_time() - began[1]
    times = np.bincount(result.included_clients % GROUP, minlength=GROUP).astype(np.uint64)
    assert (result.total == (times @ rows) % (1 << BITS)).all()
    return spent


def timed(work: Callable[[], Any]) -> tuple[Seconds, Any]:
    began = time.perf_counter(), time.process_time()
    result = work()
    return (time.perf_counter() - began[0], time.process_time() - began[1]), result


def flower(setting: Setting) -> Seconds:
    """Measure Flower's functions for a few clients and their part of the server's work, scaled to n clients."""
    holders = setting.degree + 1
    needed = max(2, round(0.6 * holders))
    left = setting.clients - setting.gone
    key_pairs = [generate_key_pairs() for _ in range(holders)]
    public = [public_key_to_bytes(key) for _, key in key_pairs]
    upload = [np.zeros(1, np.int64), np.zeros(setting.size, np.int64)]
    clock = cpu = 0.0
    for _ in range(SAMPLED):
        (wall, processor), shares = timed(lambda: flower_shares(public, needed))
        factor = setting.clients / SAMPLED
        clock, cpu = clock + factor * wall, cpu + factor * processor
        (wall, processor), _ = timed(lambda: flower_upload(key_pairs[0][0], public[1:], upload))
        (wall_2, processor_2), _ = timed(lambda shares=shares: flower_unmask_survivor(shares[0][:needed], upload))
        factor = left / SAMPLED
        clock, cpu = clock + factor * (wall + wall_2), cpu + factor * (processor + processor_2)
        if setting.gone:
            (wall, processor), _ = timed(
                lambda shares=shares: flower_unmask_dropped(shares[1][:needed], public[1:], upload)
            )
            factor = setting.gone / SAMPLED
            clock, cpu = clock + factor * wall, cpu + factor * processor
    return clock, cpu


def flower_shares(public: list[bytes], needed: int) -> tuple[list[bytes], list[bytes]]:
    """Run stages 0 and 1 of a client: two key pairs; shares of both secrets, encrypted for neighbours and opened."""
    (mask_key, _), (cipher_key, _) = generate_key_pairs(), generate_key_pairs()
    of_seed = create_shares(os.urandom(32), needed, len(public))
    of_key = create_shares(private_key_to_bytes(mask_key), needed, len(public))
    cipher_bytes = private_key_to_bytes(cipher_key)
    for place, key in enumerate(public[1:], start=1):
        shared = generate_shared_key(bytes_to_private_key(cipher_bytes), bytes_to_public_key(key))
        sealed = encrypt(shared, share_keys_plaintext_concat(0, place, of_seed[place], of_key[place]))
        share_keys_plaintext_separate(decrypt(shared, sealed))
    return of_seed, of_key


def flower_upload(key: Any, public: list[bytes], row: list[np.ndarray]) -> list[np.ndarray]:
    """Run stage 2 of a client: its self mask and one mask for every neighbour, and the server's addition."""
    shapes = arithmetic.get_parameters_shape(row)
    masked = arithmetic.parameters_addition(row, pseudo_rand_gen(os.urandom(32), FLOWER_MODULUS, shapes))
    raw = private_key_to_bytes(key)
    for place, other in enumerate(public):
        shared = generate_shared_key(bytes_to_private_key(raw), bytes_to_public_key(other))
        change = arithmetic.parameters_addition if place % 2 else arithmetic.parameters_subtraction
        masked = change(masked, pseudo_rand_gen(shared, FLOWER_MODULUS, shapes))
    return arithmetic.parameters_addition(row, arithmetic.parameters_mod(masked, FLOWER_MODULUS))


def flower_unmask_survivor(shares: list[bytes], row: list[np.ndarray]) -> None:
    """Run stage 3 of the server for a client in the sum."""
    seed = combine_shares(shares)
    mask = pseudo_rand_gen(seed, FLOWER_MODULUS, arithmetic.get_parameters_shape(row))
    arithmetic.parameters_subtraction(row, mask)


def flower_unmask_dropped(shares: list[bytes], public: list[bytes], row: list[np.ndarray]) -> None:
    """Run stage 3 of the server for a client that dropped out."""
    raw = combine_shares(shares)
    shapes = arithmetic.get_parameters_shape(row)
    for other in public:
        shared = generate_shared_key(bytes_to_private_key(raw), bytes_to_public_key(other))
        row = arithmetic.parameters_addition(row, pseudo_rand_gen(shared, FLOWER_MODULUS, shapes))


def best(measure: Callable[[], Seconds], repeat: int) -> Seconds:
    """Return the smallest of each time, because other work only adds time."""
    measured = [measure() for _ in range(repeat)]
    return min(clock for clock, _ in measured), min(cpu for _, cpu in measured)


def measure(setting: Setting, repeat: int) -> dict[str, Seconds]:
    """Return the seconds of the three contenders, measured in turn."""
    rows = np.random.default_rng(0).integers(0, 1 << BITS, (GROUP, setting.size), dtype=np.uint32)
    found = {
        "protocol": best(lambda: ours(ProtocolSum, setting, rows), repeat),
        "masked": best(lambda: ours(MaskedSum, setting, rows), repeat),
    }
    if not WHY_NOT:
        found["flower"] = best(lambda: flower(setting), repeat)
    return found


def line(setting: Setting, found: dict[str, Seconds]) -> str:
    flower = found.get("flower")
    cells = [f"{setting.clients}", "all" if setting.neighbours is None else f"{setting.neighbours}"]
    cells += [f"{setting.size:,}", f"{setting.gone}"]
    for name in ("masked", "protocol", "flower"):
        cells += [f"{value:.3g}" for value in found[name]] if name in found else ["", ""]
    cells += [f"{flower[at] / found['protocol'][at]:.0f}" if flower else "" for at in (0, 1)]
    return "| " + " | ".join(cells) + " |"


def settings(quick: bool) -> Iterable[Setting]:
    if quick:
        yield from (Setting(clients=20, neighbours=k, size=50_000, gone=gone) for k in (10, None) for gone in (0, 2))
        return
    for neighbours in (20, None):
        for gone in (0, 10):
            yield Setting(clients=100, neighbours=neighbours, size=1_600_000, gone=gone)
    yield from (Setting(clients=100, neighbours=20, size=size) for size in MLP_TO_CNN[:-1])
    yield from (Setting(clients=clients, neighbours=20, size=100_000) for clients in CLIENTS if clients != 100)
    yield from (Setting(clients=clients, neighbours=None, size=100_000) for clients in CLIENTS)


def draw(found: dict[Setting, dict[str, Seconds]], path: str) -> None:
    """Draw seconds over clients and over coordinates, without dropouts."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    colours = {"flower": "tab:red", "protocol": "tab:blue", "masked": "tab:green"}
    for name, colour in colours.items():
        for neighbours, style in ((20, "o-"), (None, "s--")):
            by_clients = sorted(
                (one.clients, times[name][0])
                for one, times in found.items()
                if name in times and (one.neighbours, one.size, one.gone) == (neighbours, 100_000, 0)
            )
            label = f"{name}, {'all pairs' if neighbours is None else f'{neighbours} neighbours'}"
            left.plot(*zip(*by_clients, strict=True), style, color=colour, label=label) if by_clients else None
        by_size = sorted(
            (one.size, times[name][0])
            for one, times in found.items()
            if name in times and (one.clients, one.neighbours, one.gone) == (100, 20, 0)
        )
        right.plot(*zip(*by_size, strict=True), "o-", color=colour) if by_size else None
    left.set(xlabel="clients (100,000 coordinates)", ylabel="seconds a round", xscale="log", yscale="log")
    left.set_xticks(CLIENTS, [str(count) for count in CLIENTS], minor=False)
    left.minorticks_off()
    right.set(xlabel="coordinates (100 clients, 20 neighbours)", xscale="log")
    for axis in (left, right):
        axis.grid(alpha=0.3)
    if left.lines:
        left.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small settings, seconds in all")
    parser.add_argument("--plot", help="a PNG of the growth with clients and with coordinates")
    parser.add_argument("--repeat", type=int, default=2, help="the best of so many")
    options = parser.parse_args()
    if WHY_NOT:
        print(WHY_NOT, end="\n\n")
    print(
        "| clients | neighbours | d | dropped | masked s | cpu | protocol s | cpu | Flower s | cpu | ratio | of cpu |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    found = {}
    for setting in settings(options.quick):
        found[setting] = measure(setting, options.repeat)
        print(line(setting, found[setting]), flush=True)
    if options.plot:
        draw(found, options.plot)


if __name__ == "__main__":
    main()
