"""Record what every setting of the golden net gives, and compare it with the answers that are stored.

    python tests/golden/record.py [WORD ...]     say what differs, and store it (only settings whose name has a WORD)

An answer holds the chain of stages, the first and the last ledger line, epsilon, uplink, keys of the summary, the
verdict of `dpfed audit run` with the checks that failed, and fingerprints of the model and of diagnostics.jsonl. A
refused setting's answer is its error. Fingerprints are compared only with the torch and processor that recorded them.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

import dpfed
from accounting.errors import AccountingError
from dpfed.audit.round.method_setting import audit_upload
from dpfed.audit.run import audit_run
from dpfed.config.tables import parse, set_key
from dpfed.errors import DpfedError, RunInterrupted
from dpfed.methods.presets import preset_tables
from dpfed.runs.experiment import build
from dpfed.runs.loop import run

try:
    from golden.settings import LOOPS, SETTINGS, SMALL, UPLOAD_AUDITS
except ModuleNotFoundError:  # run as a script
    from settings import LOOPS, SETTINGS, SMALL, UPLOAD_AUDITS  # type: ignore[no-redef]

ANSWERS = Path(__file__).parent / "answers.jsonl"
NAMES = [*SETTINGS, *LOOPS, *UPLOAD_AUDITS]
DELTA, DELTA_OF_RECORDS = 60**-1.1, 480**-1.1
FINGERPRINTS = ("state", "diagnostics", "norm", "pairs", "score_gap", "lower_bound")
"""Keys of an answer that depend on the last bits of floating-point sums."""


def machine() -> str:
    """Return the name of what fingerprints depend on: torch's version and the processor's instructions."""
    return f"torch {torch.__version__.partition('+')[0]}, {torch.backends.cpu.get_cpu_capability()}"


def answer_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the answer of the setting `name`, as JSON has it; a refusal's answer is its error's class and text."""
    try:
        if name in SETTINGS:
            found = _run(name, folder)
        elif name in LOOPS:
            found = _loop(LOOPS[name], folder)
        else:
            found = _upload_audit(*UPLOAD_AUDITS[name])
    except (DpfedError, AccountingError) as error:
        found = {"error": type(error).__name__, "text": str(error).replace(str(folder), "FOLDER")}
    return json.loads(json.dumps(_rounded(found)))


def _run(name: str, folder: Path) -> dict[str, Any]:
    preset, settings = SETTINGS[name]
    plain = preset_tables(preset)
    for key, value in (SMALL | settings).items():
        set_key(plain, key, value, given=key, form="table.key=value")
    if "privacy" in plain:
        plain["privacy"].setdefault("delta", DELTA)
    if "record" in plain["local"]:
        plain["local"]["record"].setdefault("delta", DELTA_OF_RECORDS)
    config = parse(plain, source=name)
    experiment = build(config)
    if "resumed" in name:
        done: list[int] = []
        with suppress(RunInterrupted):
            run(experiment, folder, on_round=lambda record: done.append(1), stop=lambda: len(done) == 1)
        experiment = build(config)
    summary = run(experiment, folder, resume="resumed" in name).summary
    ledger = _lines(folder / "ledger.jsonl")
    answer = {
        "chain": repr(experiment.method.stages),
        "epsilon": summary["epsilon"],
        "rounds": summary["rounds"],
        "stopped_by": summary["stopped_by"],
        "uplink": summary["uplink_megabytes_total"],
        "summary": sorted(summary),
        **_of_ledger(ledger),
    }
    if config.run.randomness != "secure":
        answer |= _of_weights(load_file(folder / "model.safetensors"))
        answer["diagnostics"] = _of_diagnostics(folder / "diagnostics.jsonl")
    return answer | (_of_audit(folder) if ledger else {})


def _loop(plan: dict[str, Any], folder: Path) -> dict[str, Any]:
    folder.mkdir()
    path = folder / "ledger.jsonl"
    private = dpfed.ClientLevel(
        clients=60, cohort=12, clip_norm=1.0, rounds=3, ledger=path, **({"delta": DELTA} | plan)
    )
    released = {}
    for step in private.rounds():
        rows = torch.from_numpy(np.random.default_rng(step.round).normal(size=(60, 20)).astype(np.float32))
        released[str(step.round)] = step.release(rows[step.cohort]).numpy()
    repeatable = plan.get("randomness") == "simulated"
    return {
        "epsilon": private.guarantee().epsilon,
        **_of_ledger(_lines(path)),
        **(_of_weights(released) if repeatable else {}),
        **_of_audit(path),
    }


def _upload_audit(method: str, settings: dict[str, Any]) -> dict[str, Any]:
    words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    found = audit_upload(method, settings=words, draws=20_000, seed=3).to_dict()
    keys = ("claimed_epsilon", "delta", "score_gap", "verdict", "adjacency", "mechanism", "pairs")
    return {key: found[key] for key in keys} | {
        "checks": {check["name"]: check["passed"] for check in found["checks"]},
    }


def _of_ledger(ledger: list[dict[str, Any]]) -> dict[str, Any]:
    bare = [{key: value for key, value in line.items() if key not in ("chain", "nonce")} for line in ledger[1:]]
    return {"lines": len(ledger), "first": bare[0] if bare else None, "last": bare[-1] if bare else None}


def _of_audit(path: Path) -> dict[str, Any]:
    audit = audit_run(path)
    failed = [check.name for check in audit.checks if check.passed is False]
    return {"audit": str(audit.verdict), "checks": len(audit.checks), "failed": failed}


def _of_weights(weights: dict[str, Any]) -> dict[str, Any]:
    whole = np.concatenate([np.asarray(weights[name], dtype=np.float64).ravel() for name in sorted(weights)])
    return {"state": _digest((np.round(whole, 6) + 0.0).tobytes()), "norm": float(f"{np.linalg.norm(whole):.7g}")}


def _of_diagnostics(path: Path) -> str:
    """Return a fingerprint of what the operator keeps, without times, floats to five digits."""
    kept = [{key: value for key, value in line.items() if key != "seconds"} for line in _lines(path)]
    short = json.loads(json.dumps(kept), parse_float=lambda text: float(f"{float(text):.5g}"))
    return _digest(json.dumps(short, sort_keys=True).encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.9g}")
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
    return value


def stored() -> dict[str, dict[str, Any]]:
    """Return the stored answers by name, and under "" the machine that recorded them."""
    return {line.pop("name"): line for line in _lines(ANSWERS)}


def differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield one line for each value that differs; numbers differ beyond 1e-8 relative."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from differences(before.get(key), now.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(before, float) and isinstance(now, float):
        if abs(before - now) > 1e-8 * max(abs(before), abs(now)):
            yield f"{path}: {before} -> {now}"
    elif before != now:
        yield f"{path}: {str(before)[:300]} -> {str(now)[:300]}"


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    answers, before = stored(), stored()
    answers[""] = {"machine": machine()}
    with tempfile.TemporaryDirectory() as home:
        for number, name in enumerate(NAMES):
            if not words or any(word in name for word in words):
                answers[name] = answer_of(name, Path(home) / str(number))
                found = list(differences(before[name], answers[name])) if name in before else ["new"]
                print(*(f"{name}: {line}\n" for line in found), sep="", end="", flush=True)
    lines = [json.dumps({"name": name} | answers[name], sort_keys=True) for name in ["", *NAMES] if name in answers]
    ANSWERS.write_text("\n".join(lines) + "\n")
    print(f"{ANSWERS}: {len(NAMES)} settings")


if __name__ == "__main__":
    main(sys.argv[1:])
