"""All tests and measurements that need a GPU, as Markdown under the device's name.

    make bench-gpu                                   runs the next command with .venv, or else with GPU_PYTHON=python3
    PYTHONPATH=. python benchmarks/on_gpu.py [--out gpu.md] [--pfl-python P] [--adapters-python P] [--quick]

Parts, in this order: the tests that need a GPU; Fed-SMP's run on Fashion-MNIST, 180 rounds, in each precision (target:
30 s in float32; needs DPFED_DATA_DIR); rounds compared with other libraries (`local_training.py`); strategies and
chunks compared with the choice of "auto" (`strategies.py`); encoding compared with training (`encoding_share.py`;
target: at most 10%); a round's steps of every method (`overhead.py`); a step of LoRA compared with the whole network
(`examples/adapters/client_costs.py`). A failing part is reported, and the next part runs; a part ends after its limit,
with what it has printed. Results of each part are written at once. Nothing is installed or downloaded: torch may be the
machine's own, and the script names other packages that are missing. --quick uses two rounds, the smallest network and
no other library, to test the parts; with --device cpu it needs no GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

NEEDED = (
    *("torch", "numpy", "scipy", "pydantic", "cyclopts", "filelock", "jinja2", "rich", "safetensors", "tomli_w"),
    *("constriction", "cryptography", "cloudpickle", "dp_accounting", "joblib", "matplotlib", "opacus", "pytest"),
)
if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
    raise SystemExit(
        f"{sys.executable}: lacks {', '.join(missing)}. Without a network, carry their wheels: pip download on another "
        "machine, then pip install --no-index --find-links WHEELS --no-deps PACKAGES."
    )

import torch  # noqa: E402

from accounting.rounding import upwards  # noqa: E402

HERE = Path(__file__).resolve().parent
LIMIT = 600.0
"""Seconds in which a part ends."""
PYTEST = (sys.executable, "-m", "pytest", "-o", "addopts=-q --import-mode=importlib", "-rs")
PRECISIONS = {"cuda": ("float32", "tf32", "bf16"), "cpu": ("float32",)}


def card(device: str) -> str:
    """Return the device's name and the relevant versions."""
    if device == "cpu":
        return f"{platform.processor() or 'CPU'} (no GPU: a trial of the benchmark itself), torch {torch.__version__}"
    found = torch.cuda.get_device_properties(0)
    return f"{found.name}, {found.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}, torch {torch.__version__}"


def printed(*command: str | Path, limit: float = LIMIT, **environment: str) -> str:
    """Return the output of a command, or the reason of its failure; after `limit` seconds it is ended."""
    began = time.perf_counter()
    try:
        done = subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            check=False,
            env={"PYTHONPATH": str(HERE.parent), "PYTHONUNBUFFERED": "1", **os.environ, **environment},
            cwd=HERE,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return f"{said.decode() if isinstance(said, bytes) else said}\n\n(ended after its limit of {limit:.0f} s)"
    seconds = f"{time.perf_counter() - began:.0f} s"
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-12:]
        return "\n".join([f"Failed after {seconds}, exit status {done.returncode}:", "", "```", *last, "```"])
    return f"{done.stdout.strip()}\n\n({seconds})"


def whole_runs(device: str, quick: bool) -> str:
    """Return seconds and accuracy of Fed-SMP's golden plan in every precision."""
    if not quick and not os.environ.get("DPFED_DATA_DIR"):
        return "Not run: DPFED_DATA_DIR names no folder with Fashion-MNIST."
    preset, rounds = ("fed-smp-randk-digits", 2) if quick else ("fed-smp-randk-fashion-mnist", 180)
    lines = ["| precision | rounds | s | accuracy | epsilon | strategy |", "|---|--:|--:|--:|--:|---|"]
    for precision in PRECISIONS[device]:
        with tempfile.TemporaryDirectory() as folder:
            settings = [f"run.device={device}", f"local.precision={precision}", f"federation.rounds={rounds}"]
            words = [word for one in settings for word in ("--set", one)]
            said = printed(sys.executable, "-m", "dpfed", "run", preset, "--out", f"{folder}/run", *words)
            file = Path(folder) / "run" / "summary.json"
            if not file.exists():
                lines.append(f"| {precision} | | | | | {said.splitlines()[0]} |")
                continue
            one = json.loads(file.read_text())
            lines.append(
                f"| {precision} | {one['rounds']} | {one['seconds']:.1f} | {100 * one['test_accuracy']:.2f}% "
                f"| {upwards(one['epsilon'])} | {one['local_training']['strategy']}, {one['local_training']['chunk']} |"
            )
    return "\n".join(lines)


def parts(device: str, quick: bool, pfl: str | None, adapters: str | None) -> Iterator[tuple[str, str]]:
    """Yield titles and tables."""
    chosen = ("-k", device) if quick else ()
    yield "Tests", printed(*PYTEST, *chosen, HERE.parent / "tests/dpfed/runs/test_devices.py")
    yield "Fed-SMP on Fashion-MNIST", whole_runs(device, quick)
    if not quick:
        beside = ("--pfl-python", pfl) if pfl else ()
        yield (
            "Rounds beside other libraries",
            printed(sys.executable, "local_training.py", "--device", device, "--force", *beside),
        )
    fewer: Sequence[str] = ("--tasks", "MLP 2.4k", "--chunks", "10", "--rounds", "1") if quick else ()
    precisions = ("--precision", *PRECISIONS[device])
    yield "Strategies", printed(sys.executable, "strategies.py", "--device", device, *precisions, *fewer)
    yield (
        "Encoding beside training",
        printed(sys.executable, "encoding_share.py", "--device", device, *(("--clients", "1") if quick else ())),
    )
    least: Sequence[str] = ("--methods", "fed-smp-randk", "--rounds", "1", "--cohort", "4") if quick else ()
    yield (
        "A round's steps",
        printed(sys.executable, "overhead.py", "--device", device, "--clock", "wall", *least, CUDA_LAUNCH_BLOCKING="1"),
    )

    if adapters:
        yield (
            "Adapters",
            printed(adapters, HERE.parent / "examples" / "adapters" / "client_costs.py", "2", "32", device),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pfl-python", help="Python of an environment with pfl 0.6.0; left out: pfl is not run")
    parser.add_argument("--adapters-python", help="that of `make test-adapters`; left out: no step of LoRA")
    parser.add_argument("--device", choices=list(PRECISIONS), default="cuda")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no CUDA GPU here: nothing was measured. --quick --device cpu tries the benchmark.")
    text = f"# On a GPU: {card(options.device)}\n"
    print(text, flush=True)
    for title, table in parts(options.device, options.quick, options.pfl_python, options.adapters_python):
        piece = f"## {title}\n\n{table}\n"
        print(piece, flush=True)
        text += f"\n{piece}"
        if options.out:
            options.out.write_text(text)


if __name__ == "__main__":
    main()
