"""Is the model in the folder the one that the run left?"""

from __future__ import annotations

import math

import numpy as np

from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.evidence.run_lines import JsonValues, Unavailable
from dpfed.audit.evidence.saved import sha256_of, values_of
from dpfed.methods.catalogue import method

Finding = tuple[bool | None, str]

_FILES = {"model_sha256": "model.safetensors", "mask_sha256": "model.mask.safetensors"}


def model_is_the_runs(files: RunFiles) -> Finding:
    """Claim checked: the files of the model have the SHA-256 that summary.json states; the clip norm in checkpoint and
    summary is that of the last line of metrics; and, but for masks, whose network is not in the folder, the model holds
    the numbers of the checkpoint, or of its moving average where that is the model (server.average)."""
    summary = JsonValues(files.summary, "summary.json")
    for key, name in _FILES.items():
        if not (summary.held(key) or (files.path / name).exists() or key == "model_sha256"):
            continue
        if not summary.held(key):
            raise Unavailable(f"summary.json: has no {key!r}. The run was made by a version that did not write it.")
        files.compared.add(key)
        if sha256_of(files.path / name) != summary.text(key):
            return False, f"{name}: is not the file that summary.json names by its hash."
    norm = files.published[-1].clip_norm if files.published else None
    if norm is not None and not math.isclose(files.checkpoint.clip_norm, norm, rel_tol=1e-12):
        return (
            False,
            f"checkpoint.safetensors: its clip norm is {files.checkpoint.clip_norm:.6g}, metrics.jsonl has {norm:.6g}.",
        )
    if method(files.config.method.name).coins:
        return (
            True,
            "the model has the hash that summary.json states; a mask's network is not compared with probabilities.",
        )
    model = files.checkpoint.broadcast
    if files.config.server.average is not None:
        if "average" not in files.checkpoint.memory:
            return False, "checkpoint.safetensors: holds no average of models, which config.toml asks for."
        model = files.checkpoint.memory["average"]
    if not np.array_equal(np.sort(model.float().numpy()), values_of(files.path / "model.safetensors")):
        return False, "model.safetensors: does not hold the numbers of checkpoint.safetensors."
    return True, "the model has the hash that summary.json states, and holds the numbers of the checkpoint."
