"""Second verifier of a published run, on numpy alone: `python second_verifier.py BUNDLE [--head HASH]`.

The file imports nothing of this package and can be copied away from it. It bounds epsilon from both sides by Fourier
transforms of privacy loss distributions. Upper end: the mass of every loss moves to both neighbours on a grid, with the
masses of both distributions preserved. Lower end: outcomes with nearly equal losses are merged. Kinds, all else is "not
verified": Gaussian noise on all clients, Poisson, cyclic, balls-and-bins, fixed size (zero-out, theory.md, Theorem 7).
"""

import argparse
import hashlib
import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

WIDEST, LOOSE, LOOSE_FIXED = 1.001, 1e-4, 1e-3
"""Largest upper end over the lower one; room above it for the account that printed epsilon (and under fixed size)."""
_MOST, _REACH, _BEYOND = 1 << 20, 9.0, 1e-17
"""Points of a grid, range of normal variables, in standard deviations, and a bound on the mass outside."""
Array = np.ndarray[Any, np.dtype[Any]]
Round = tuple[Array, Array, float]
"""P-masses on the grid: above a round in one order, the last at infinity, and below it, if delta lacks the number."""


class Refused(Exception):
    """Contradiction in the bundle."""


class Unknown(Exception):
    """Content that this file does not know, so nothing is verified."""


def normal_masses(edges: Array, mean: float) -> Array:
    """Return the masses of N(mean, 1) between consecutive edges, each with a small relative error."""
    x = (edges - mean) / math.sqrt(2)
    tail = np.array([math.erfc(one) / 2 for one in np.abs(x)])
    below, above = np.where(x < 0, tail, 1 - tail), np.where(x > 0, tail, 1 - tail)
    return np.where(x[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])


def merged(p: Array, q: Array, ratios: Array) -> tuple[Array, float, float]:
    """Return P-masses at increasing ratios p/q, and masses (p, q) that are left, of ordered outcomes. Outcomes are
    merged, and split if necessary, so that each sum has one of these ratios (post-processing)."""
    exact, found, place, p_sum, q_sum = ratios.tolist(), np.zeros(len(ratios)), 0, 0.0, 0.0
    for p_one, q_one in zip(p.tolist(), q.tolist(), strict=True):
        while place < len(exact) - 1:
            lack, gain = exact[place] * q_sum - p_sum, p_one - exact[place] * q_one
            if gain <= lack:
                break
            found[place] = p_sum + lack / gain * p_one
            p_one, q_one = p_one * (1 - lack / gain), q_one * (1 - lack / gain)
            place, p_sum, q_sum = place + 1, 0.0, 0.0
        p_sum, q_sum = p_sum + p_one, q_sum + q_one
    return found, p_sum, q_sum


class Grid:
    """Losses h i for i from -n to n - 1, n = size / 2."""

    def __init__(self, largest: float, size: int) -> None:
        self.size, self.n, self.h = size, size // 2, 2 * largest / size
        self.losses = np.arange(-self.n, self.n) * self.h

    def profile(self, masses: Array, gammas: Array) -> Array:
        """Return the sums of masses (1 - gamma e^-loss) over larger losses, for a gamma from each step of the grid."""
        above = [np.append(np.cumsum(one[:0:-1])[::-1], 0.0) for one in (masses, masses * np.exp(-self.losses))]
        return np.asarray(np.maximum(above[0] - gammas * above[1], 0.0))

    def up(self, p: Array, q: Array, low: Array, high: Array) -> Array:
        """Return P-masses on the grid above outcomes (p, q), whose losses are between low and high."""
        left = np.clip(np.floor(low / self.h), -self.n, self.n)
        right = np.maximum(np.ceil(high / self.h), left + 1)
        moved = np.clip((p - q * np.exp(left * self.h)) / -np.expm1((left - right) * self.h), 0, p)
        found = np.bincount((left + self.n).astype(np.int64), p - moved, self.size + 1)
        found += np.bincount((np.minimum(right, self.n) + self.n).astype(np.int64), moved, self.size + 1)
        found[-1] += _BEYOND
        return found

    def down(self, p: Array, q: Array) -> Array:
        """Return P-masses on the grid below outcomes (p, q)."""
        p, q = p[(p > 0) & (q > 0)], q[(p > 0) & (q > 0)]
        exact = np.log(p / q) * (8 / self.h)
        order = np.argsort(exact)
        starts = np.flatnonzero(np.diff(np.floor(exact[order]), prepend=np.nan))
        p, q = (np.add.reduceat(one[order], starts) for one in (p, q))
        found, p_sum, q_sum = merged(p, q, np.exp(self.losses))
        if p_sum > 0 and (place := math.floor(math.log(p_sum / q_sum) / self.h) + self.n) >= 0:
            found[min(place, self.size - 1)] += p_sum
        return found


def gaussian_orders(grid: Grid, q: float, s: float, replaces: bool, *_: object) -> tuple[Round, Round]:
    """Return one round of Gaussian noise for clients drawn with probability q: P against Q, and Q against P."""
    first, second = [(1 - q, 0.0), (q, s)], [(1 - q, 0.0), (q, -s)] if replaces else [(1.0, 0.0)]
    edges = np.linspace(-_REACH - s * replaces, _REACH + s, grid.size + 1)
    p, q_of = (np.sum([w * normal_masses(edges, mean) for w, mean in one], axis=0) for one in (first, second))
    logs = [[math.log(w) + mean * edges - mean * mean / 2 for w, mean in one if w] for one in (first, second)]
    losses = np.logaddexp.reduce(logs[0]) - np.logaddexp.reduce(logs[1])
    forth = (grid.up(p, q_of, losses[:-1], losses[1:]), grid.down(p, q_of), 0.0)
    return forth, (grid.up(q_of, p, -losses[1:], -losses[:-1]), grid.down(q_of, p), 0.0)


def epoch_orders(grid: Grid, bins: int, rounds: int, s: float, size: int, share: float) -> tuple[Round, Round]:
    """Return the results of `rounds` rounds of a balls-and-bins epoch, in both orders.

    The likelihood ratio is R = (bins - rounds + X_1 + ... + X_rounds) / bins, X_i = exp(s g_i - s^2/2). An X larger in
    convex order has a larger profile, so X is spread to, or merged on, a grid, whose tails lack at most a `share`.
    """
    spread, reach = math.sqrt(math.expm1(s * s)), math.sqrt(2 * math.log(4 * rounds / share)) + s
    top = math.exp(s * reach - s * s / 2)
    largest = top + rounds + 12 * spread * math.sqrt(rounds)
    h, found = largest / size, []
    count, values = int(min(top / h, size - 2)), h * np.arange(size)
    line = (np.log(np.maximum(h * np.arange(count + 1), 1e-300)) + s * s / 2) / s
    q, p = normal_masses(line, 0.0), normal_masses(line, s)
    high = np.clip(p / h - q * np.arange(count), 0, q)
    up, low = np.zeros(size), np.zeros(size)
    up[:count] += q - high
    up[1 : count + 1] += high
    low[1:] = merged(p, q, values)[0][1:] / values[1:]
    tail_q, tail_p = (math.erfc(one / math.sqrt(2)) / 2 for one in (reach, reach - s))
    summed = [np.fft.irfft(np.fft.rfft(one) ** rounds, size) for one in (up, low)]
    wrapped = tail([(up, rounds)], values, largest)
    noise = 2.2e-16 * (rounds + 30) * math.sqrt(size) * max(float(np.linalg.norm(one)) for one in summed)
    ratio = (bins - rounds + values) / bins
    for order in (0, 1):
        high, low = (np.maximum(one, 0.0) for one in summed)
        sign, slack = 1 - 2 * order, (wrapped + noise) * (1 + (rounds * top / bins if order == 0 else 0.0))
        exact = np.log(np.maximum(ratio, 1e-300)) * sign
        one, two = (ratio, np.ones(size))[::sign]
        above = grid.up(high * one, high * two, exact, exact)
        above[-1] += slack + rounds * tail_q + (rounds / bins * tail_p if order == 0 else 0.0)
        found.append((above, grid.down(low * one, low * two), slack))
    return found[0], found[1]


def fixed_outcomes(q: float, lengths: Array, count: int) -> list[Array]:
    """Return (p, q, smallest losses, largest losses) of about `count` rectangles of the plane in a fixed-size round.

    P = (1-q) N(x) + q N(a), Q = (1-q) N(x) + q N(0), lengths (|x|^2, |a|^2, x.a): one's a or zero, or another's x."""
    (other, own, product), a = lengths, math.sqrt(lengths[1])
    x, y = product / a, math.sqrt(max(other - product**2 / own, 0.0))
    first, last, top = min(0.0, x) - _REACH, max(a, x) + _REACH, y + _REACH
    wide, high = (last - first) * a, (top + _REACH) * y
    step = max(math.sqrt(wide * high / count), wide / count)
    across, along = np.linspace(first, last, int(wide / step) + 2), np.linspace(-_REACH, top, int(high / step) + 2)
    of_x, of_y = {m: normal_masses(across, m) for m in (0.0, a, x)}, {m: normal_masses(along, m) for m in (0.0, y)}
    found = [(1 - q) * np.outer(of_x[x], of_y[y]) + q * np.outer(of_x[mean], of_y[0.0]) for mean in (a, 0.0)]
    low, high = np.sort([x * across[:-1], x * across[1:]], axis=0)
    others = [low[:, None] + y * along[:-1] - other / 2, high[:, None] + y * along[1:] - other / 2]
    for sign, one in ((-1, across[:-1]), (1, across[1:])):  # the loss increases in a.z, its size decreases in x.z
        u = (a * one - own / 2)[:, None]
        found.append(np.log1p(q * np.expm1(u) / ((1 - q) * np.exp(np.where(sign * u > 0, *others)) + q)))
    return [one.ravel() for one in found]


def game(grid: Grid, rounds: list[Array], count: int, shift: float = 0.0) -> Array:
    """Return V(e^x) - (1 - e^x)_+ at x = h i + shift for an adversary who chooses one of these rounds each time. Rounds
    are P-masses of `Grid.up`, or those of `Grid.down` for a lower bound."""
    n, size, upper, gammas, kernels = grid.n, grid.size, len(rounds[0]) > grid.size, np.exp(grid.losses + shift), []
    for one in rounds:
        p, q = one[:size], one[:size] * np.exp(-grid.losses)
        right = grid.profile(p, gammas) + one[size:].sum()
        left = np.maximum(gammas * np.cumsum(q) - np.cumsum(p), 0.0) + gammas * max(1 - q.sum(), 0.0)
        spectrum = np.fft.rfft(np.concatenate([p[n:], np.zeros(size), p[:n]]))
        kernels.append((spectrum, np.where(gammas >= 1, right, left)))
    values = np.zeros(size)
    for _ in range(count):
        padded = np.pad(values, n, mode="edge" if upper else "constant")
        noise = 5e-16 * (1 + math.log2(2 * size) * float(np.linalg.norm(padded)))
        spectrum, values = np.fft.rfft(padded), np.zeros(size)
        for kernel, profile in kernels:
            np.maximum(values, np.fft.irfft(spectrum * kernel, 2 * size)[n:-n] + profile, out=values)
        values = np.clip(values + (noise if upper else -noise), 0.0, np.minimum(gammas, 1.0))
    return values


def fixed_interval(q: float, s: float, count: int, delta: float) -> tuple[float, float]:
    """Return (lower, upper) of the epsilon of `count` rounds of fixed-size sampling under zero-out.

    Vectors x, a of length s suffice (Lemma 4). A round is above another one in both orders if its Gram matrix of (x, a)
    is larger: for 1 + cosine within e of m, |x|^2 = (1 + k e) s^2, |a|^2 = (1 + e/k) s^2, x.a = (m - 1) s^2, any k.
    """
    ends = np.concatenate([[0.0], np.geomspace(2.5e-4, 1, 61), 2 - np.geomspace(1, 0.01, 19)[1:], [2.0]])
    e, m = np.diff(ends) / 2, (ends[1:] + ends[:-1]) / 2
    below = s * s * np.array([(1.0, 1.0, one - 1) for one in (0.0, *m[1::2])])
    for largest in np.geomspace(0.1, 60, 25):
        grid = Grid(largest, 1 << 11)
        worst = grid.up(*fixed_outcomes(q, below[0], 20_000))
        if worst[-1] * count < delta / 1000 and game(grid, [worst], count)[-1] < delta / 50:
            break
    lower, upper, size, k = 0.0, math.inf, 1 << 12, 1.5
    while size < 1 << 15 and upper > lower * (1 + (WIDEST - 1) * 0.9):
        size, k = 2 * size, 3 * k
        grid, above = Grid(largest, size), s * s * np.stack([1 + k * e, 1 + e / k, m - 1], axis=1)
        made = (fixed_outcomes(q, one, 10 * size) for one in above)
        orders = [(grid.up(x, y, low, high), grid.up(y, x, -high, -low)) for x, y, low, high in made]
        values = game(grid, [one for one, _ in orders], count)
        other = values[grid.n : 0 : -1] * np.exp(grid.losses[grid.n :])  # the other order; e^x also multiplies rounding
        if crossing(other, grid.h, delta) > (end := crossing(values[grid.n :], grid.h, delta)):
            end = max(end, crossing(game(grid, [one for _, one in orders], count)[grid.n :], grid.h, delta))
        upper, shift = min(upper, end), 0.0
        attained = [grid.down(*fixed_outcomes(q, one, 10 * size)[:2]) for one in below]
        for _ in range(2):  # the second time with a state just below the first result
            one = game(grid, attained, count, shift)[grid.n :]
            i = int(np.argmax(one <= delta)) - 1
            lower = max(lower, i * grid.h + shift)
            share = math.log(max(one[i], delta) / delta) / math.log(max(one[i], delta) / max(one[i + 1], 1e-300))
            shift = min(max(shift + grid.h * (share - 0.02), 0.0), grid.h)
    return lower, upper * (1 + LOOSE_FIXED)


def composed(grid: Grid, rounds: list[tuple[Round, int]], delta: float) -> tuple[float, float, float]:
    """Return bounds (lower, upper) of epsilon of a composition in one order, and of the chance to leave the grid."""
    found, beyond, total = [], 0.0, sum(count for _, count in rounds)
    for side, sign in ((0, 1), (1, -1)):
        masses = [(np.asarray(one[side])[: grid.size], count) for one, count in rounds]
        power = math.prod(np.fft.rfft(np.fft.ifftshift(one)) ** count for one, count in masses)
        result = np.maximum(np.fft.fftshift(np.fft.irfft(power, grid.size)), 0.0)
        beyond = sum(tail(masses, way * grid.losses, (grid.n - 1) * grid.h) for way in (1, -1))
        noise = 2.2e-16 * (total + 30) * math.sqrt(grid.size) * float(np.linalg.norm(result))
        lost = noise + beyond + sum(count * float(one[0][-1] if side == 0 else one[2]) for one, count in rounds)
        found.append(crossing(grid.profile(result, np.exp(grid.losses))[grid.n :], grid.h, delta - sign * lost))
    return found[1], found[0], beyond


def tail(masses: list[tuple[Array, int]], values: Array, end: float) -> float:
    """Return a bound on the probability that a sum of values exceeds `end`. masses: pairs (masses, count)."""
    logs = [0.0]
    for t in np.geomspace(0.01, 600, 50) / end:
        grown = np.exp(t * values)
        logs.append(sum(count * math.log(max(float(one @ grown), 1e-300)) for one, count in masses) - t * end)
    return math.exp(min(logs))


def crossing(values: Array, h: float, delta: float) -> float:
    """Return the x >= 0 at which a convex curve with these values at e^0, e^h, e^(2h), ... falls to delta."""
    k = int(np.argmax(values <= delta))
    share = (values[k - 1] - delta) / (values[k - 1] - values[k]) if k else 0.0
    return max((k - 1) * h + math.log1p(math.expm1(h) * share), 0.0) if values[k] <= delta else math.inf


def interval(parts: list[tuple[tuple[Any, ...], int]], delta: float) -> tuple[float, float]:
    """Return (lower, upper) of the epsilon of a composition at delta. parts: pairs (kind and numbers, count)."""
    if parts[0][0][0] == "fixed":
        return fixed_interval(parts[0][0][1], parts[0][0][2], parts[0][1], delta)

    def bounds(largest: float, size: int) -> list[float]:
        grid = Grid(largest, size)
        make: dict[str, Any] = {"gaussian": gaussian_orders, "epoch": epoch_orders}
        made = [(make[kind](grid, *numbers, min(8 * size, _MOST), delta * 1e-7), n) for (kind, *numbers), n in parts]
        ends = [composed(grid, [(pair[order], count) for pair, count in made], delta) for order in (0, 1)]
        return [max(column) for column in zip(*ends, strict=True)]

    for largest in np.geomspace(1, 100, 12):  # a larger epsilon has no upper end
        if bounds(largest, 1 << 12)[2] <= 1e-6 * delta:
            break
    lower, upper, size = 0.0, math.inf, 1 << 13
    while size < _MOST and upper > lower * (1 + (WIDEST - 1) / 3) + 1e-9:
        size *= 4
        low, high, _ = bounds(largest, size)
        lower, upper = max(low, lower), min(high, upper)
    return lower, upper * (1 + LOOSE)


def read_chain(content: bytes) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the records of a ledger's lines, and their hashes."""
    records, heads = list[dict[str, Any]](), [""]
    for line in content.splitlines(keepends=True):
        record = json.loads(line)
        chain = record.pop("chain")
        plain = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        heads.append(hashlib.sha256(heads[-1].encode() + plain).hexdigest())
        if chain != heads[-1] or line != b'{"chain":"' + chain.encode() + b'",' + plain[1:] + b"\n":
            raise Refused(f"ledger.jsonl, line {len(records) + 1}: its hash does not match, or it is not canonical.")
        records.append(record)
    return records, heads[1:]


def parts_of(mechanism: Any, rounds: int) -> tuple[float, str, str, float, list[Any]]:
    """Return (noise multiplier, adjacency, sampling, share of clients, parts) of equal rounds."""
    inner, numbers = mechanism, {"name": "all"}
    if mechanism["kind"] == "subsampled" and set(mechanism) == {"kind", "mechanism", "sampling"}:
        inner, numbers = mechanism["mechanism"], mechanism["sampling"]
    name, keys = numbers["name"], set(numbers) - {"name", "stream"}
    if set(inner) != {"kind", "noise_multiplier", "adjacency"} or inner["kind"] != "gaussian":
        raise Unknown(f"mechanism {json.dumps(mechanism)[:200]} is not known here.")
    z, adjacency, replaces = float(inner["noise_multiplier"]), inner["adjacency"], inner["adjacency"] == "replace-one"
    if adjacency in ("add-remove", "zero-out", "replace-one") and 0.05 <= z <= 1e3:
        if name == "all" and not keys:
            return z, adjacency, name, 1.0, [(("gaussian", 1.0, 1 / z, replaces), rounds)]
        if name == "poisson" and keys == {"probability"} and 1e-5 <= (q := float(numbers["probability"])) <= 1:
            return z, adjacency, name, q, [(("gaussian", q, 1 / z, replaces), rounds)]
        if name == "cyclic" and keys == {"period"} and (b := int(numbers["period"])) >= 1:
            return z, adjacency, name, 1 / b, [(("gaussian", 1.0, 1 / z, replaces), -(-rounds // b))]
        if name == "balls-and-bins" and keys == {"bins"} and not replaces and 2 <= (b := int(numbers["bins"])) <= 1e4:
            ends = ((b, rounds // b), (rounds % b, 1))
            return z, adjacency, name, 1 / b, [(("epoch", b, r, 1 / z), n) for r, n in ends if r and n]
        fixed = name == "fixed" and keys == {"cohort", "clients"} and adjacency == "zero-out" and z >= 0.4
        if fixed and 1e-4 <= (q := int(numbers["cohort"]) / int(numbers["clients"])) < 1:
            return z, adjacency, name, q, [(("fixed", q, 1 / z), rounds)]
    raise Unknown(f"{name} {numbers} with noise multiplier {z} under {adjacency} is not known here.")


def verify(given: str | Path, head: str | None = None) -> tuple[str, float, float, str]:
    """Return (verdict, lower, upper, text) of a bundle. Raises Refused, or Unknown for content not known here."""
    folder = Path(given)

    def require(holds: object, text: str, kind: type[Exception] = Refused) -> None:
        if not holds:
            raise kind(text)

    (header, *lines), heads = read_chain((folder / "ledger.jsonl").read_bytes())
    summary = json.loads((folder / "summary.json").read_bytes())
    config = tomllib.loads((folder / "config.toml").read_text())
    require(head is None or head in heads, "the head given is not in the ledger: lines were changed or removed.")
    require(head in (None, heads[-1]), "the ledger has lines after the head given, which are not verified.", Unknown)
    plan, rounds = header.get("plan", {}), len(lines)
    known = {"kind", "version", "unit", "clients", "randomness", "about", "population", "binding", "plan", "solved"}
    simple = set(header) <= known and header["version"] == 1 and header["unit"] == "client"
    require(simple and "project" not in header["about"] and rounds, "the ledger's header is not known here.", Unknown)
    whole = plan.get("rounds") == rounds and not {"skips", "spare"} & set(plan)
    whole &= [one["round"] for one in lines] == list(range(rounds)) and {one["kind"] for one in lines} == {"release"}
    require(whole, "only a run whose planned rounds were all released once, in order, is known here.", Unknown)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for one in lines:
        kinds.setdefault(json.dumps(one["mechanism"], sort_keys=True), []).append(one)
    found, parts = [], list[Any]()
    for some in kinds.values():
        z, adjacency, name, share, more = parts_of(some[0]["mechanism"], len(some))
        require(name in ("all", "poisson") or len(kinds) == 1, "two kinds of rounds are not known.", Unknown)
        stated = some[0]["mechanism"].get("sampling", {}).get("clients", header["clients"])
        require(stated == header["clients"], "a cohort is of another number of clients than the header's.")
        for one in some:
            fields = {"kind", "round", "mechanism", "sensitivity_in_clips", "clip_norm", "noise_std"}
            require(set(one) - {"nonce"} == fields | {"noise_placement", "detail"}, "a line has unknown keys.", Unknown)
            require(one["noise_placement"] == "server", "noise that is not the server's is not known here.", Unknown)
            require(one["sensitivity_in_clips"] == 1 + (adjacency == "replace-one"), "a sensitivity is wrong.")
            require(one["noise_std"] >= z * one["clip_norm"] * (1 - 1e-9) > 0, "a line states less noise than charged.")
        found.append((z, adjacency, name, share))
        parts += more
    z, adjacency, name, share = found[-1]
    require(len({one[1:] for one in found}) == 1, "rounds with different samplings are not known.", Unknown)
    tables = config | {"federation": {key: one for key, one in config["federation"].items() if key != "rounds"}}
    digest = hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()
    require(digest == header["binding"]["configuration"], "config.toml is not the one that the ledger's header binds.")
    require(config["federation"].get("sampling") != "custom", "a user-defined sampler is not known here.", Unknown)
    expected = {key: header.get(key) for key in ("unit", "clients", "randomness", "population")}
    expected |= {"ledger_head": heads[-1], "ledger_entries": rounds, "rounds": rounds, "no_statement": None}
    expected |= {"adjacency": adjacency, "sampling": name, "noise_placement": "server"}
    expected |= {"clip_norm": lines[-1]["clip_norm"]} if len({one["clip_norm"] for one in lines}) == 1 else {}
    expected |= {"noise_multiplier": z} if len(found) == 1 and not summary.get("noise_schedule") else {}
    wrong = [key for key, one in expected.items() if summary.get(key) != one]
    require(not wrong, f"summary.json: {', '.join(wrong)}: not those of the ledger.")
    require(abs(summary["cohort"] - share * header["clients"]) < 1, "summary.json: the cohort is not the ledger's.")
    delta, epsilon, best = summary["delta"], summary["epsilon"], config["privacy"].get("accountant", "best") == "best"
    require(header["about"].get("delta", delta) == delta, "summary.json: delta is not the one fixed in the ledger.")
    require(config["federation"]["clients"] == header["clients"], "config.toml: clients are not the ledger's.")
    require(1e-9 <= delta < 1, f"delta {delta} is not known here.", Unknown)
    (lower, upper), room = interval(parts, delta), f"{LOOSE_FIXED if name == 'fixed' else LOOSE:.2%} room above"
    text = f"epsilon between {lower:.6g} and {upper:.6g}, stated {epsilon}; {room}, {header['randomness']} randomness"
    require(lower <= epsilon, f"epsilon {epsilon} is below {lower:.6g}: it is no bound for these releases.")
    require(epsilon <= upper, f"epsilon {epsilon} is above {upper:.6g} of the releases.", Refused if best else Unknown)
    require((summary.get("lower_bound") or 0) <= upper, "summary.json: the lower bound is above epsilon.")
    if (folder / "pack.json").exists():
        pack = json.loads((folder / "pack.json").read_bytes())
        for file, digest in pack["files"].items():
            inside = Path(file).name == file and (folder / file).is_file()
            same = inside and hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest
            require(same, f"pack.json: {file} is not a file of the bundle with the digest stated.")
        says = re.match(r"Client-level .*? at most (\S+) at delta (\S+) for (\S+) neigh", pack["statement"]) or [""] * 4
        require(says[1], "the statement in pack.json is not known here.", Unknown)
        close = epsilon <= float(says[1]) <= epsilon * 1.001 + 1e-3 and delta <= float(says[2]) <= delta * 1.001
        require(close and says[3] == adjacency, "the statement in pack.json is not that of summary.json.")
    require(upper <= lower * (WIDEST + (name == "fixed") * LOOSE_FIXED), f"the interval is too wide: {text}.", Unknown)
    return ("verified" if head else "consistent with itself"), lower, upper, text


def main(arguments: list[str] | None = None) -> int:
    """Verify one bundle, print the verdict, and return the exit status."""
    parser = argparse.ArgumentParser(description="Verify a published run, with numpy alone.")
    parser.add_argument("bundle")
    parser.add_argument("--head", help="hash of the ledger's last line, from a source that the publisher cannot change")
    given = parser.parse_args(arguments)
    try:
        print("{0}: {3}".format(*verify(given.bundle, given.head)))
        return 0
    except (Refused, Unknown) as error:
        print(f"{'refused' if isinstance(error, Refused) else 'not verified'}: {error}")
    except (OSError, ValueError, ArithmeticError, KeyError, TypeError, AttributeError, RecursionError) as error:
        print(f"not verified: a file is missing or not in the known form ({type(error).__name__}: {error}).")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
