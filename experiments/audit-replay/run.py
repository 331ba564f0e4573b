"""Power and false alarms of the replay audit: planted faults, correct settings, correct pieces drawn by a seed.

python experiments/audit-replay/run.py plants          faults in dpfed, unsound networks, losses and record mixtures
python experiments/audit-replay/run.py faults          the faults of experiments/audit-faults
python experiments/audit-replay/run.py runs            the faults of whole runs of experiments/audit-faults
python experiments/audit-replay/run.py field           functions of experiments/audit-field, under equal seeds
python experiments/audit-replay/run.py planted         one table of plants in a plain loop, Opacus, Flower and dpfed.run
python experiments/audit-replay/run.py patterns        thirteen patterns after arXiv 2602.17454
python experiments/audit-replay/run.py settings        the private settings of the golden net
python experiments/audit-replay/run.py ranks           private settings of two processes, as torchrun starts them
python experiments/audit-replay/run.py flower          private settings in Flower's simulation, in Flower's environment
python experiments/audit-replay/run.py sound --count 200
python experiments/audit-replay/run.py page            docs/replay-power.md from the results

Results are in results.jsonl, one per line; an interrupted part can be resumed.
"""

import argparse
import importlib.util
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import dpfed
from accounting import Gaussian
from dpfed.api.replay import ConfiguredRun
from dpfed.audit import Verdict
from dpfed.audit.replays.pairs import REMOVED, Pair
from dpfed.audit.round.whole_round import UpdatesByClient
from dpfed.config.tables import override, parse, set_key
from dpfed.errors import DpfedError
from dpfed.methods.catalogue import preset_tables
from dpfed.round import run_round
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from tests.dpfed.audit.faults import FAULTS  # faults and pieces exist in the tests only
from tests.dpfed.audit.replays.patterns import PATTERNS
from tests.dpfed.audit.replays.planted import FAULTS as PLANTED_FAULTS
from tests.dpfed.audit.replays.planted import HOSTS, PLANTED, TWINS
from tests.dpfed.audit.replays.plants import NETWORKS, PLANTS, RECORDS, SOUND
from tests.dpfed.audit.replays.sound_pieces import SoundPiece
from tests.dpfed.audit.run_faults import FAULTS as RUN_FAULTS
from tests.dpfed.audit.run_folders import TABLES
from tests.golden.settings import SETTINGS, SMALL

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("results.jsonl")
PAGE = ROOT / "docs" / "replay-power.md"
Named = tuple[str, Callable[..., Any]]


def of_plants() -> Iterator[Named]:
    for one in (*PLANTS, *NETWORKS, *RECORDS, *SOUND):
        yield one.name, one


def of_planted() -> Iterator[Named]:
    for one in (*PLANTED, *TWINS):
        if one.host != "Flower app" or importlib.util.find_spec("flwr"):
            yield (one.name if one.name.startswith("twin of ") else one.id), one


def of_patterns() -> Iterator[Named]:
    for one in PATTERNS:
        yield one.name, one


def of_faults() -> Iterator[Named]:
    for fault in FAULTS:
        sound, broken = fault.make()
        yield fault.name, _rounds(broken)
        yield f"twin of {fault.name}", _rounds(sound)


def _rounds(case: Any) -> Callable[..., None]:
    """Return a call of three rounds of a planted fault, whose clients' updates are the data."""

    def call(data: Any, out: Path) -> None:
        one = case.one_round
        drawn = torch.randn(
            one.method.sampler.clients, len(one.state.broadcast), generator=torch.Generator().manual_seed(5)
        )
        rows = [row / (40 if i % 2 else 4) for i, row in enumerate(drawn)]  # within the clip norm, and beyond it
        removed = data.pair is not None and data.pair.change == REMOVED  # by the sampler, which leaves ids as they are
        moves = torch.stack(rows if removed else list(data(rows)))
        state = one.state
        for _ in range(3):
            state = run_round(state, one.method, UpdatesByClient(moves=moves), seeds=one.seeds, ledger=None).state

    return call


def of_runs() -> Iterator[Named]:
    for fault in RUN_FAULTS:
        yield fault.name, BrokenRun(fault)


class BrokenRun:
    """Return a call of the first eight rounds of a whole run with a planted fault."""

    pairs = 9

    def __init__(self, fault: Any) -> None:
        self._fault = fault

    def __call__(self, data: Any, out: Path) -> None:
        fault = self._fault
        for owner, name, broken in fault.patches:  # in the process of the audit's run alone
            setattr(owner, name, broken)
        settings = [*fault.settings, *(["run.evaluate_every=1"] if data.reporting else [])]
        plain = override(TABLES, settings)
        plain["federation"]["rounds"] = min(plain["federation"]["rounds"], 8)
        federation.run(fault.broken(build(parse(plain, source="fault"))), out)


def of_field() -> Iterator[Named]:
    folder = ROOT / "experiments" / "audit-field" / "bugs"
    sys.path.insert(0, str(folder))
    for file in sorted(folder.glob("*.py")):
        bug = importlib.import_module(file.stem)
        if isinstance(getattr(bug, "SETTING", {"claim": ()})["claim"], Gaussian):  # others draw cohorts or bound no sum
            gone = GONE.get(str(bug.SETTING["claim"].adjacency))
            yield file.stem, _seeded(bug.broken, gone)
            yield f"twin of {file.stem}", _seeded(bug.sound, gone)


GONE = {"add-remove": "removed", "zero-out": "zeroed"}
"""Changes of a client's update that give neighbours for every function, by adjacency."""


def _seeded(function: Callable[..., Any], gone: str | None) -> Callable[..., None]:
    """Return a call that releases a function's output on four clients, under three seeds.

    The mechanism's input is the output on the clients' updates minus the output on zeros with equal seed.
    """
    updates = [torch.randn(16, generator=torch.Generator().manual_seed(one)) for one in range(4)]

    def call(data: Any, out: Path) -> None:
        found = data(dict(enumerate(updates)))
        held = np.stack([one.double().numpy() if len(one) else np.zeros(16) for one in found.values()])
        for seed in range(3):
            noise = np.hstack(function(np.zeros_like(held), seed))
            release = dpfed.audit.mechanism(lambda total, noise=noise: total + noise, sensitivity=1.0, name="release")
            release(np.hstack(function(held, seed)) - noise)

    pairs = [Pair(half, "far") for half in ((0, 1), (2, 3), (0,), (3,))]
    call.pairs = pairs if gone is None else [*pairs, *(Pair(half, gone) for half in ((0, 1), (2,), (3,)))]
    return call


def of_settings() -> Iterator[Named]:
    for name, (preset, settings) in SETTINGS.items():
        plain = preset_tables(preset)
        for key, value in (SMALL | settings).items():
            set_key(plain, key, value, given=key, form="table.key=value")
        private = "privacy" in plain or "record" in plain["local"]
        if private:
            (plain["privacy"] if "privacy" in plain else plain["local"]["record"]).setdefault("delta", 60**-1.1)
            yield name, _configured(plain)


def _configured(plain: dict[str, Any]) -> Callable[..., None]:
    def call(data: Any, out: Path) -> None:
        dpfed.run(plain, {"run.evaluate_every": 1} if data.reporting else {}, out=out, progress=False)

    return call


def of_ranks() -> Iterator[Named]:
    """Return the settings with their clients in two processes."""
    for name, (preset, settings) in AMONG.items():
        yield f"two ranks: {name}", _with_pairs(ConfiguredRun(_small(preset, settings), processes=2), name)


def of_flower() -> Iterator[Named]:
    """Return the settings on Flower's server and client apps."""
    for name, (preset, settings) in AMONG.items():
        yield f"Flower: {name}", _with_pairs(ConfiguredRun(_small(preset, settings), engine="flower"), name)


def _with_pairs(run: ConfiguredRun, name: str) -> Callable[..., None]:
    """Return a call with all pairs for the first setting, with equal data and two halves for the others."""

    def call(data: Any, out: Path) -> None:
        run(data, out)

    call.pairs = None if name == next(iter(AMONG)) else 3
    return call


def _small(preset: str, settings: dict[str, Any]) -> dict[str, Any]:
    plain = preset_tables(preset)
    for key, value in (AMONG_SMALL | settings).items():
        set_key(plain, key, value, given=key, form="table.key=value")
    return plain


NOISE = {"privacy.epsilon": None, "privacy.noise_multiplier": 1.0}
AMONG_SMALL = {
    "federation.rounds": 2,
    "federation.clients": 30,
    "federation.cohort": 8,
    "data.train_samples": 420,
    "local.epochs": None,
    "local.steps": 2,
    "model.hidden": [8],
}
AMONG: dict[str, tuple[str, dict[str, Any]]] = {
    "Gaussian": ("dp-fedavg-digits", NOISE),
    "rand-k": ("fed-smp-randk-digits", NOISE),
    "top-k": ("fed-smp-topk-digits", NOISE),
    "fixed cohorts": ("dp-fedavg-digits", NOISE | {"federation.sampling": "fixed"}),
    "adaptive clip": ("dp-fedavg-digits", NOISE | {"privacy.adaptive.quantile": 0.5, "privacy.adaptive.rate": 0.2}),
    "every upload": ("dp-fedavg-digits", NOISE | {"privacy.release": "uploads", "privacy.adjacency": "zero-out"}),
    "private coins": ("fedpm-private-digits", {}),
    "private records": (
        "fedavg-digits",
        {"local.record.clip_norm": 1.0, "local.record.noise_multiplier": 1.0, "local.batch_size": 5},
    ),
}


def of_sound(count: int) -> Iterator[Named]:
    """Audit random pieces until `count` of them are accepted by dpfed; every 16th with its trial and all pairs."""
    for seed in itertools.count():
        if sum(part == "sound" and one["verdict"] != "refused" for (part, _), one in kept().items()) >= count:
            return
        piece = SoundPiece(seed, bare=seed % 16 > 0, pairs=5 if seed % 16 else None)
        yield piece.name, piece


def kept() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the stored results by part and name."""
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    return {(one["part"], one["name"]): one for one in map(json.loads, lines)}


def audit(part: str, name: str, call: Callable[..., Any]) -> dict[str, Any]:
    """Return the line of one audit, with all its pairs."""
    began = time.monotonic()
    try:
        found: Verdict | None = dpfed.audit.replay(call, getattr(call, "pairs", None), to_the_end=True)
        words = ""
    except (DpfedError, ValueError) as error:
        found, words = None, f"{type(error).__name__}: {error}"
    counted = [] if found is None else [one for one in found.evidence.pairs if one.outcome in ("pass", "fail")]
    failed = None if found is None else found.failed
    return {
        "part": part,
        "name": name,
        "verdict": "refused" if found is None else found.verdict,
        "found_by": sum(one.outcome == "fail" for one in counted),
        "pairs": len(counted),
        "first": words if failed is None else failed.words,
        "pair": "" if failed is None else failed.pair.words,
        "seconds": round(time.monotonic() - began, 1),
        "to_find": 0.0 if failed is None else _seconds_to_find(found.evidence.pairs),
    }


def _seconds_to_find(pairs: Any) -> float:
    """Return the seconds of the runs of all pairs up to the first that failed."""
    last = next(place for place, one in enumerate(pairs) if one.outcome == "fail")
    return round(sum(one.findings.seconds for one in pairs[: last + 1]), 1)


def page() -> str:
    """Return the page of results."""
    found = list(kept().values())
    lines = [
        "# What replay audits find",
        "",
        "For readers who want to know what a pass is worth. Made by `python experiments/audit-replay/run.py page`.",
        "",
    ]
    for part, title in (
        ("plants", "Planted faults, unsound networks and losses"),
        ("faults", "Faults of whole rounds"),
        ("runs", "Faults of whole runs"),
        ("field", "Bugs of the field, in functions that take a seed"),
        ("patterns", "Thirteen patterns after arXiv 2602.17454, reduced to a plain loop (not the libraries' code)"),
    ):
        rows = [one for one in found if one["part"] == part]
        of_faults = [one for one in rows if not _is_sound(one)]
        if not rows:
            continue
        lines += [f"## {title}", "", "| fault | found by pairs | first seen as |", "|---|---:|---|"]
        layers = {fault.name: ", ".join(dict.fromkeys(layer.name for layer in fault.layers)) for fault in FAULTS}
        layers |= {fault.name: f"`dpfed audit FOLDER`: {fault.check}" for fault in RUN_FAULTS}
        layers["budget spent twice (MOSTLY AI)"] = "the ledger: every release is a line"
        for one in of_faults:
            seen = (
                one["first"].replace("|", "/")
                if one["verdict"] == "fail"
                else f"not by replay: {layers.get(one['name'], 'trials (experiments/audit-field)')}"
            )
            lines.append(f"| {one['name']} | {one['found_by']} of {one['pairs']} | {seen} |")
        lines += ["", f"{sum(one['verdict'] == 'fail' for one in of_faults)} of {len(of_faults)} are found.", ""]
    lines += [*planted_table({one["name"]: one for one in found if one["part"] == "planted"}), ""]
    lines += ["## False alarms", "", "| sound code | audits | pairs | alarms |", "|---|---:|---:|---:|"]
    for part, words, chosen in (
        ("plants", "twins of the planted faults", _is_sound),
        ("faults", "twins of the faults of rounds", _is_sound),
        ("field", "twins of the bugs of the field", _is_sound),
        ("planted", "twins of the plants by host", _is_sound),
        ("settings", "private settings of the golden net", lambda one: True),
        ("ranks", "private settings of two processes", lambda one: True),
        ("flower", "private settings in Flower's simulation, nodes in one process", lambda one: True),
        ("sound", "networks, losses, stages and samplers drawn by a seed", lambda one: True),
    ):
        rows = [one for one in found if one["part"] == part and chosen(one) and one["verdict"] != "refused"]
        alarms = sum(one["verdict"] == "fail" for one in rows)
        if rows:
            lines.append(f"| {words} | {len(rows)} | {sum(one['pairs'] for one in rows):,} | {alarms} |")
    return "\n".join([*lines, ""])


def _is_sound(one: dict[str, Any]) -> bool:
    return one["name"].startswith("twin of ") or one["name"] in {sound.name for sound in SOUND}


def planted_table(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the table of plants in the four hosts."""
    lines = [
        "## One table of plants, as a stranger's code and as dpfed's",
        "",
        "Cells: pairs that find the fault, seconds of the pairs up to the first of them, and the row.",
        "In Opacus, the unit is the record, and sizes are norms of gradients.",
        "",
        f"| fault | {' | '.join(HOSTS)} |",
        f"|---|{'---|' * len(HOSTS)}",
    ]
    for name in PLANTED_FAULTS:
        cells = [
            _planted_cell(found.get(f"{host}: {name}"), found.get(f"{host}: {name}, std stated")) for host in HOSTS
        ]
        cells[-1] = OF_METHODS.get(name, cells[-1])
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


OF_METHODS = {
    "noise 1% short": "`dpfed audit METHOD`: noise",
    "noise anticorrelated between rounds": "`dpfed audit METHOD`: seeds",
}
"""Rows of a round's audit that find what a replay of `dpfed.run` does not (experiments/audit-faults)."""


def _planted_cell(one: dict[str, Any] | None, stated: dict[str, Any] | None) -> str:
    if one is None:
        return "not run"
    if one["verdict"] == "fail":
        first = re.sub(r" \(.*", "", re.sub(r" by [\d.e+-]+, at most.*", "", one["first"]))
        return f"{one['found_by']} of {one['pairs']}, {one['to_find']} s: {first}"
    if stated is not None and stated["verdict"] == "fail":
        return f"only with `mechanism(std=)`, {stated['to_find']} s"
    return "by none ([limitations](limitations.md))"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "part",
        choices=[
            "plants",
            "faults",
            "runs",
            "field",
            "planted",
            "patterns",
            "settings",
            "ranks",
            "flower",
            "sound",
            "page",
        ],
    )
    options.add_argument("--count", type=int, default=200, help="of sound pieces")
    options.add_argument("--only", default="", help="names that contain this, done again")
    given = options.parse_args()
    torch.set_num_threads(1)
    if given.part == "page":
        PAGE.write_text(page())
        return
    named: dict[str, Callable[[], Iterator[Named]]] = {
        "plants": of_plants,
        "faults": of_faults,
        "runs": of_runs,
        "field": of_field,
        "planted": of_planted,
        "patterns": of_patterns,
        "settings": of_settings,
        "ranks": of_ranks,
        "flower": of_flower,
        "sound": lambda: of_sound(given.count),
    }
    done = kept()
    for name, call in named[given.part]():
        if ((given.part, name) in done and not given.only) or given.only not in name:
            continue
        line = audit(given.part, name, call)
        with RESULTS.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(
            line["verdict"],
            f"{line['found_by']} of {line['pairs']}",
            name,
            line["first"][:160],
            line["seconds"],
            flush=True,
        )


if __name__ == "__main__":
    main()
