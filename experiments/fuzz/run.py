"""Coverage-guided fuzzing of every parser by atheris (libFuzzer for Python).

    pip install atheris
    python experiments/fuzz/run.py --inputs 1000000 --out /tmp/fuzz

Each parser of tests/fuzz/parsers.py runs in a separate process in which dpfed and accounting are instrumented. Three
of four inputs of a sealed format get a valid seal (checksum, hash chain, compression), so that they pass its check.
An input with an undocumented error is stored in OUT, once for each place that raises, and the fuzzer continues.
libFuzzer stops at a limit of memory (--memory MB of resident set) or of time per input (--seconds). Prints a row for
each parser and writes OUT/figures.json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import traceback
import zlib
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Parsers that take milliseconds per input get fewer inputs.
SHARES = {
    "summary": 0.1,
    "metrics": 0.1,
    "diagnostics": 0.1,
    "sweep": 0.1,
    "mask-file": 0.02,
    "cifar": 0.05,
    "shakespeare": 0.1,
    "payload": 0.5,
    "leaf": 0.3,
    "mat-deflated": 0.5,
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--out", type=Path, default=Path("/tmp/dpfed-fuzz"))
    options.add_argument("--only", nargs="*", default=[])
    options.add_argument("--memory", type=int, default=3000)
    options.add_argument("--seconds", type=int, default=20)
    options.add_argument("--worker", help=argparse.SUPPRESS)
    given = options.parse_args()
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    if given.worker:
        work(given.worker, given)
        return 0
    from fuzz.parsers import PARSERS

    chosen = given.only or list(PARSERS)
    whole = sum(SHARES.get(name, 1.0) for name in chosen)
    figures = []
    print(
        f"{'parser':14}{'inputs':>10}{'read':>10}{'faults':>8}{'edges':>8}{'peak MB':>9}{'slowest s':>11}{'seconds':>9}"
    )
    for name in chosen:
        figure = run(name, -(-round(given.inputs * SHARES.get(name, 1.0)) // max(whole, 1e-9)), given)
        figures.append(figure)
        print(
            "{parser:14}{inputs:>10}{read:>10}{faults:>8}{edges:>8}{peak_mb:>9}{slowest:>11.2f}{seconds:>9.0f}".format(
                **figure
            ),
            flush=True,
        )
    total = {key: sum(figure[key] for figure in figures) for key in ("inputs", "read", "faults", "seconds")}
    total |= {key: max(figure[key] for figure in figures) for key in ("peak_mb", "slowest")}
    print("in all:", json.dumps(total))
    (given.out / "figures.json").write_text(json.dumps({"parsers": figures, "total": total}, indent=2) + "\n")
    return 1 if total["faults"] else 0


def run(name: str, inputs: float, given: argparse.Namespace) -> dict:
    """Run one parser in a separate process; return the output of libFuzzer and the worker."""
    folder = given.out / name
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--worker", name, "--inputs", str(int(inputs)), "--out", str(given.out)]
    command += ["--seed", str(given.seed), "--memory", str(given.memory), "--seconds", str(given.seconds)]
    began = time.perf_counter()
    with open(folder / "log", "wb") as log:
        ended = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False, cwd=ROOT).returncode
    log_text = (folder / "log").read_text(errors="replace")
    counts = json.loads((folder / "counts.json").read_text())
    stats = {key: float(value) for key, value in re.findall(r"stat::(\w+):\s+([\d.]+)", log_text)}
    edges = [int(value) for value in re.findall(r"cov: (\d+)", log_text)]
    return {
        "parser": name,
        "inputs": counts["inputs"],
        "read": counts["read"],
        "faults": len(counts["faults"]) + (ended != 0),
        "edges": max(edges, default=0),
        "peak_mb": int(stats.get("peak_rss_mb", -1)),
        "slowest": counts["slowest"],
        "seconds": time.perf_counter() - began,
    }


def work(name: str, given: argparse.Namespace) -> None:
    """Fuzz one parser in this process. libFuzzer ends it; counts are on disk by then."""
    import atheris

    with atheris.instrument_imports(include=["dpfed", "accounting"]):
        from fuzz.parsers import PARSERS

    parser, folder = PARSERS[name], given.out / name
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, seed in enumerate(parser.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    counts = {"inputs": 0, "read": 0, "slowest": 0.0, "faults": []}

    def save() -> None:
        (folder / "counts.json").write_text(json.dumps(counts, indent=2) + "\n")

    def one(content: bytes) -> None:
        counts["inputs"] += 1
        as_it_is = (
            parser.sealed is None or zlib.crc32(content) % 4 == 0
        )  # named by content, so that a run can be repeated
        whole = content if as_it_is else parser.sealed(content)
        began = time.perf_counter()
        try:
            counts["read"] += parser.accepts(whole)
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in frames if "/dpfed/" in frame.filename or "/accounting/" in frame.filename]
            place = f"{type(error).__name__} at {(ours or frames)[-1].filename}:{(ours or frames)[-1].lineno}"
            if place not in [fault["place"] for fault in counts["faults"]]:
                kept = folder / f"fault-{len(counts['faults'])}"
                kept.write_bytes(whole)
                counts["faults"].append({"place": place, "message": str(error)[:300], "input": str(kept)})
                save()
        counts["slowest"] = max(counts["slowest"], time.perf_counter() - began)
        if counts["inputs"] % 500 == 0 or counts["inputs"] >= given.inputs:
            save()

    save()
    atheris.Setup(
        [
            sys.argv[0], f"-runs={given.inputs}", f"-seed={given.seed}", f"-rss_limit_mb={given.memory}",
            f"-timeout={given.seconds}", "-max_len=8192", "-len_control=0", "-print_final_stats=1",
            f"-artifact_prefix={folder}/", str(corpus),
        ],
        one,
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
