"""Second verifier of a published run, on numpy alone: `python second_verifier.py BUNDLE [--head HASH]`.

The file imports nothing of this package and can be copied away from it. It bounds epsilon from both sides by Fourier
transforms of privacy loss distributions. Upper end: the mass of every loss moves to both neighbours on a grid, with the
masses of both distributions preserved. Lower end: outcomes with nearly equal losses are merged (post-processing).
Kinds: Gaussian noise on all clients, Poisson, cyclic, balls-and-bins. Everything else is "not verified". Fixed-size
sampling has no interval below 0.1% without the game of docs/theory.md, Theorem 7.
Exit status: 0 verified or consistent with itself, 1 otherwise.
"""

import argparse
import hashlib
import json
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WIDEST = 1.001
"""Largest upper end of the interval over its lower end with which an epsilon is verified."""
LOOSE = 1e-4
"""Relative room above the interval, for the coarser grid of the accountant that printed epsilon."""
_MOST_POINTS, _MOST_OF_EPOCHS = 1 << 22, 1 << 20
Array = np.ndarray[Any, np.dtype[Any]]
Mixture = Sequence[tuple[float, float]]
"""Weights and means of Gaussians of variance 1."""


class Refused(Exception):
    """Contradiction in the bundle."""


class Unknown(Exception):
    """Content that this file does not know, so nothing is verified."""


def normal_masses(edges: Array, mean: float) -> Array:
    """Return the masses of N(mean, 1) between consecutive edges, each with a small relative error."""
    x = (edges - mean) / math.sqrt(2)
    tail = np.zeros(len(x))
    near = np.abs(x) < 27
    tail[near] = [math.erfc(one) / 2 for one in np.abs(x[near])]
    below, above = np.where(x < 0, tail, 1 - tail), np.where(x > 0, tail, 1 - tail)
    return np.where(x[:-1] > 0, above[:-1] - above[1:], below[1:] - below[:-1])


def poisson_points(losses: Array, q: float, s: float) -> Array:
    """Return x where (1-q) N(0) + q N(s) against N(0) has these losses; -infinity below the smallest loss."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        grown = np.where(losses < 700, np.maximum(np.expm1(np.minimum(losses, 700)) + q, 0) / q, np.inf)
        logs = losses if q == 1 else np.where(losses < 700, np.log(grown), losses - math.log(q))
        return np.asarray((logs + s * s / 2) / s)


def replaced_points(losses: Array, q: float, s: float) -> Array:
    """Return x where (1-q) N(0) + q N(s) against (1-q) N(0) + q N(-s) has these losses."""
    size = np.abs(losses)  # the loss is an odd function of x
    c, b = q * math.exp(-s * s / 2), (1 - q) * -np.expm1(-size)
    root = np.log((b + np.sqrt(b * b + 4 * c * c * np.exp(-size))) / (2 * c)) + size
    return np.asarray(np.sign(losses) * root / s)


class Round(NamedTuple):
    """Round in one order. up: P-masses of a distribution above it on the grid, the last at infinity. down: P-masses of
    one below it, if every loss is reduced by m and every delta by `slack`."""

    up: Array
    down: Array
    m: float
    slack: float = 0.0


class Grid:
    """Losses h i for i from -n to n - 1, n = size / 2."""

    def __init__(self, largest: float, size: int) -> None:
        self.size, self.n, self.h = size, size // 2, 2 * largest / size
        self.losses = np.arange(-self.n, self.n) * self.h

    def up(self, p: Array, q: Array) -> Array:
        """Return P-masses on the grid above bins (p, q) below, between and above its losses; the last: infinity."""
        inner_p, inner_q = p[1:-1], q[1:-1]
        high = np.clip((inner_p - inner_q * np.exp(self.losses[:-1])) / -math.expm1(-self.h), 0, inner_p)
        found = np.concatenate([inner_p - high, [0.0, p[-1]]])
        found[1:-1] += high
        found[0] += p[0]
        return found

    def down(self, p: Array, q: Array, places: Array) -> tuple[Array, float]:
        """Return (P-masses on the grid, m) of outcomes (p, q), merged by their nearest places."""
        kept = (places >= 0) & (p > 0)
        places = np.minimum(places[kept], self.size - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            p_sum, q_sum = (np.bincount(places, one[kept], self.size) for one in (p, q))
            offset = np.where(p_sum > 0, np.log(p_sum) - np.log(q_sum) - self.losses, 0.0)
        room = self.h
        while p_sum[offset < -room / 2].sum() * self.h < room / 2 and room > self.h * 1e-6:
            room /= 2
        late = offset < -room
        found = np.where(late, 0.0, p_sum)
        to = np.flatnonzero(late) - np.ceil(-offset[late] / self.h).astype(int)  # a lower loss, at most the true one
        np.add.at(found, to[to >= 0], p_sum[late][to >= 0])
        return found, room

    def of_line(self, points: Callable[[Array], Array], first: Mixture, second: Mixture) -> tuple[Round, Round]:
        """Return the rounds of P against Q, and of Q against P with reflected losses. `points` inverts the loss."""
        at, between, places = points(self.losses), points(self.losses[1:] - self.h / 2), np.arange(self.size)
        p, q = (mixed_masses(at, one) for one in (first, second))
        p_merged, q_merged = (mixed_masses(between, one) for one in (first, second))
        reflected = [np.concatenate([[0.0, 0.0], one[-2:1:-1], [one[0] + one[1]]]) for one in (q, p)]
        back = self.up(*reflected)
        back[1] += q[-1]
        return (
            Round(self.up(p, q), *self.down(p_merged, q_merged, places)),
            Round(back, *self.down(q_merged[1:], p_merged[1:], self.size - places[1:])),
        )


def mixed_masses(edges: Array, parts: Mixture) -> Array:
    """Return the masses of a mixture of Gaussians below, between and above the edges."""
    edges = np.concatenate([[-np.inf], edges, [np.inf]])
    return np.asarray(sum(weight * normal_masses(edges, mean) for weight, mean in parts))


def gaussian_orders(grid: Grid, q: float, s: float, replaces: bool) -> tuple[Round, Round]:
    """Return one round of Gaussian noise for clients drawn with probability q, in both orders."""
    if replaces and q < 1:
        return grid.of_line(partial(replaced_points, q=q, s=s), [(1 - q, 0.0), (q, s)], [(1 - q, 0.0), (q, -s)])
    s *= 1 + replaces
    return grid.of_line(partial(poisson_points, q=q, s=s), [(1 - q, 0.0), (q, s)], [(1.0, 0.0)])


def epoch_orders(grid: Grid, bins: int, rounds: int, s: float, size: int, share: float) -> tuple[Round, Round]:
    """Return the results of `rounds` rounds of a balls-and-bins epoch, in both orders.

    The likelihood ratio is R = (bins - rounds + X_1 + ... + X_rounds) / bins with X_i = exp(s g_i - s^2/2). A variable
    that is larger in convex order has a larger profile, so X is spread to, or merged on, a grid of its own, whose tails
    lack at most a `share`.
    """
    spread, reach = math.sqrt(math.expm1(s * s)), math.sqrt(2 * math.log(4 * rounds / share)) + s
    top = math.exp(s * reach - s * s / 2)
    largest = top + rounds + 12 * spread * math.sqrt(rounds)
    h, found = largest / size, []
    count = int(min(top / h, size - 2))
    values = h * np.arange(size)
    with np.errstate(divide="ignore"):
        at, between = np.log(h * np.arange(count + 1)), np.log(h * (np.arange(count + 1) + 0.5))
    lines = [(logs + s * s / 2) / s for logs in (at, np.concatenate([[-np.inf], between]))]
    (q, p), (q_low, p_low) = ([normal_masses(line, 0.0), normal_masses(line, s)] for line in lines)
    high = np.clip(p / h - q * np.arange(count), 0, q)
    up = np.zeros(size)
    up[:count] += q - high
    up[1 : count + 1] += high
    with np.errstate(divide="ignore", invalid="ignore"):
        offset = np.where(q_low > 0, np.abs(p_low / q_low - values[: count + 1]), np.inf)
    widest = np.argsort(-offset)  # outcomes that are left out: a share 1e3 of masses
    kept = widest[np.cumsum((p_low + q_low)[widest]) > 1e3 * share / rounds]
    low, room = np.zeros(size), float(offset[kept[0]]) * rounds / bins
    low[kept] = q_low[kept]
    tail_q, tail_p = (math.erfc(one / math.sqrt(2)) / 2 for one in (reach, reach - s))
    summed = [np.fft.irfft(np.fft.rfft(one) ** rounds, size) for one in (up, low)]
    wrapped = tail([(up, rounds)], values, largest)
    noise = 2.2e-16 * (rounds + 30) * math.sqrt(size) * max(float(np.linalg.norm(one)) for one in summed)
    ratio = (bins - rounds + values) / bins
    for order in (0, 1):
        high, low = (np.maximum(one, 0.0) for one in summed)
        sign, weight = 1 - 2 * order, 1 + rounds * top / bins if order == 0 else 1.0
        slack = (wrapped + noise) * weight
        missing = slack + rounds * tail_q + (rounds / bins * tail_p if order == 0 else 0.0)
        exact = np.log(np.maximum(ratio, 1e-300)) * sign
        place = np.floor(exact / grid.h).astype(np.int64)
        share_up = -np.expm1(place * grid.h - exact) / -math.expm1(-grid.h)
        mass = high * ratio if order == 0 else high
        spread_up = np.zeros(grid.size + 1)
        for step, part in ((0, 1 - share_up), (1, share_up)):
            spread_up += np.bincount(np.clip(place + grid.n + step, 0, grid.size), mass * part, grid.size + 1)
        spread_up[-1] += missing
        lower_ratio = np.maximum(ratio - sign * room, 1e-300)
        p_low, q_low = (low * lower_ratio, low) if order == 0 else (low, low * lower_ratio)
        places = np.rint(np.log(lower_ratio) * sign / grid.h).astype(np.int64) + grid.n
        found.append(Round(spread_up, *grid.down(p_low, q_low, places), slack))
    return found[0], found[1]


def orders_of(grid: Grid, kind: str, *numbers: Any, delta: float) -> tuple[Round, Round]:
    """Return the results of one part of a composition in both orders."""
    if kind == "gaussian":
        return gaussian_orders(grid, *numbers)
    return epoch_orders(grid, *numbers, min(8 * grid.size, _MOST_OF_EPOCHS), delta * 1e-7)  # type: ignore[call-arg]


def composed(grid: Grid, rounds: list[tuple[Round, int]], delta: float) -> tuple[float, float, float]:
    """Return bounds (lower, upper) of epsilon of a composition in one order, and of the chance to leave the grid."""
    found, outside, total = [], 0.0, sum(count for _, count in rounds)
    for side in ("up", "down"):
        masses = [(getattr(one, side)[: grid.size], count) for one, count in rounds]
        product = math.prod(np.fft.rfft(np.fft.ifftshift(one)) ** count for one, count in masses)
        result = np.fft.fftshift(np.fft.irfft(product, grid.size))
        beyond = sum(tail(masses, sign * grid.losses, (grid.n - 1) * grid.h) for sign in (1, -1))
        noise = 2.2e-16 * (total + 30) * math.sqrt(grid.size) * float(np.linalg.norm(result))
        result, error = np.maximum(result, 0.0), noise + beyond
        if side == "up":
            outside, certain = beyond, [min(float(one.up[-1]), 1 - 1e-9) for one, _ in rounds]
            infinite = -math.expm1(
                sum(count * math.log1p(-one) for one, (_, count) in zip(certain, rounds, strict=True))
            )
            found.append(smallest_epsilon(result, grid.losses, delta - infinite - error))
        else:
            error += sum(count * one.slack for one, count in rounds)
            less = sum(count * one.m for one, count in rounds)
            found.append(max(smallest_epsilon(result, grid.losses, delta + error) - less, 0.0))
    return found[1], found[0], outside


def tail(masses: list[tuple[Array, int]], values: Array, end: float) -> float:
    """Return a bound on the probability that a sum of values exceeds `end`. masses: pairs (masses, count)."""
    best = 1.0
    for t in np.geomspace(0.01, 600, 50) / end:
        grown = np.exp(t * values)
        log = sum(count * math.log(max(float(one @ grown), 1e-300)) for one, count in masses)
        best = min(best, math.exp(min(log - t * end, 0.0)))
    return best


def smallest_epsilon(masses: Array, losses: Array, delta: float) -> float:
    """Return the smallest epsilon >= 0 with sum of masses (1 - e^(epsilon - loss)) over larger losses <= delta."""
    if delta <= 0:
        return math.inf
    p, loss = masses[losses > 0], losses[losses > 0]
    above = np.cumsum(p[::-1])[::-1]
    weighted = np.cumsum((p * np.exp(-loss))[::-1])[::-1]
    if above.sum() == 0 or above[0] - weighted[0] <= delta:
        return 0.0
    at = np.append(above[1:], 0.0) - np.exp(loss) * np.append(weighted[1:], 0.0)  # delta at each loss
    k = int(np.argmax(at <= delta))
    return math.log((above[k] - delta) / weighted[k])


def interval(parts: list[tuple[tuple[Any, ...], int]], delta: float) -> tuple[float, float]:
    """Return (lower, upper) of the epsilon of a composition at delta. parts: pairs (kind and numbers, count)."""

    def bounds(largest: float, size: int) -> list[float]:
        grid = Grid(largest, size)
        made = [(orders_of(grid, *part, delta=delta), count) for part, count in parts]
        ends = [composed(grid, [(pair[order], count) for pair, count in made], delta) for order in (0, 1)]
        return [max(column) for column in zip(*ends, strict=True)]

    largest = 1.0
    while bounds(largest, 1 << 12)[2] > 1e-6 * delta:
        largest *= 1.5
        if largest > 100:
            raise Unknown("losses above 100: epsilon is too large for this verifier.")
    lower, upper, size, width = 0.0, math.inf, 1 << 13, math.inf
    most = _MOST_OF_EPOCHS >> 2 if any(part[0] == "epoch" for part, _ in parts) else _MOST_POINTS
    while size < most and upper > lower * (1 + (WIDEST - 1) / 3) + 1e-9:
        size *= 4
        low, high, _ = bounds(largest, size)
        lower, upper = max(low, lower), min(high, upper)
        if not upper - lower < width * 0.9:
            break
        width = upper - lower
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
    inner: Any = mechanism
    numbers: Any = {"name": "all"}
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
    require(
        head in (None, heads[-1]), "the ledger has lines after the head given, which vouches for none of them.", Unknown
    )
    plan, rounds = header.get("plan", {}), len(lines)
    known = {"kind", "version", "unit", "clients", "randomness", "about", "population", "binding", "plan", "solved"}
    simple = set(header) <= known and header["version"] == 1 and header["unit"] == "client"
    require(simple and "project" not in header["about"] and rounds, "the ledger's header is not known here.", Unknown)
    whole = plan.get("rounds") == rounds and not {"skips", "spare"} & set(plan)
    whole &= [one["round"] for one in lines] == list(range(rounds)) and {one["kind"] for one in lines} == {"release"}
    require(whole, "only a run whose planned rounds were all released once, in order, is known here.", Unknown)
    kinds: dict[str, list[Any]] = {}
    for one in lines:
        kinds.setdefault(json.dumps(one["mechanism"], sort_keys=True), []).append(one)
    found, parts = [], list[Any]()
    for some in kinds.values():
        z, adjacency, name, share, more = parts_of(some[0]["mechanism"], len(some))
        require(name not in ("cyclic", "balls-and-bins") or len(kinds) == 1, "two schedules are not known.", Unknown)
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
    tables = {key: one for key, one in config.items() if key != "federation"}
    tables["federation"] = {key: one for key, one in config["federation"].items() if key != "rounds"}
    digest = hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()
    require(digest == header["binding"]["configuration"], "config.toml is not the one that the ledger's header binds.")
    expected = {"ledger_head": heads[-1], "ledger_entries": rounds, "rounds": rounds, "clients": header["clients"]}
    expected |= {"unit": "client", "adjacency": adjacency, "sampling": name, "randomness": header["randomness"]}
    expected |= {"clip_norm": lines[-1]["clip_norm"], "population": header.get("population")}
    expected |= {"noise_placement": "server", "no_statement": None}
    expected |= {"noise_multiplier": z} if len(found) == 1 else {}
    wrong = [key for key, one in expected.items() if summary.get(key) != one]
    require(not wrong, f"summary.json: {', '.join(wrong)}: not those of the ledger.")
    require(abs(summary["cohort"] - share * header["clients"]) < 1, "summary.json: the cohort is not the ledger's.")
    delta, epsilon = summary["delta"], summary["epsilon"]
    require(header["about"].get("delta", delta) == delta, "summary.json: delta is not the one fixed in the ledger.")
    require(config["federation"]["clients"] == header["clients"], "config.toml: clients are not the ledger's.")
    require(1e-9 <= delta < 1, f"delta {delta} is not known here.", Unknown)
    lower, upper = interval(parts, delta)
    text = f"epsilon between {lower:.6g} and {upper:.6g}, stated {epsilon}; {header['randomness']} randomness"
    require(lower <= epsilon, f"epsilon {epsilon} is below {lower:.6g}: it is no bound for these releases.")
    require(epsilon <= upper, f"epsilon {epsilon} is above {upper:.6g}: it is not that of these releases.")
    require((summary.get("lower_bound") or 0) <= upper, "summary.json: the lower bound is above epsilon.")
    if (folder / "pack.json").exists():
        pack = json.loads((folder / "pack.json").read_bytes())
        for name, digest in pack["files"].items():
            inside = Path(name).name == name and (folder / name).is_file()
            require(inside, f"pack.json names {name}, which is not in the bundle.")
            require(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, f"{name}: its digest differs.")
        pattern = r"Client-level .*? at most (\S+) at delta (\S+) for (\S+) neighbours,"
        says = re.match(pattern, pack["statement"]) or [""] * 4
        require(says[1], "the statement in pack.json is not known here.", Unknown)
        close = epsilon <= float(says[1]) <= epsilon * 1.001 + 1e-3 and delta <= float(says[2]) <= delta * 1.001
        require(close and says[3] == adjacency, "the statement in pack.json is not that of summary.json.")
    require(upper <= lower * WIDEST, f"the interval is wider than {WIDEST}; {text}.", Unknown)
    return ("verified" if head else "consistent with itself"), lower, upper, text


def main(arguments: Sequence[str] | None = None) -> int:
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
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        print(f"not verified: a file is missing or not in the known form ({type(error).__name__}: {error}).")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
