"""Convert the model of a run to an adapter for peft and check it: python saved_adapter.py RUN.

Writes RUN/adapter; exit status 1 if a new network with this adapter does not have the loss in summary.json."""

import json
import sys
from pathlib import Path

from language_model import NextCharacters, dataset, lora, pretrained
from pretrain import mean_loss, tests_of
from safetensors.torch import load_file

CLOSE = 1e-3
"""Tolerance in nats; losses on other hardware or in other batches differ by far less."""


def save_adapter(run):
    """Write RUN/adapter in peft's format: trained weights and, for FFA-LoRA, the frozen A."""
    network = lora((), 0)
    saved = load_file(run / "model.safetensors")
    found = network.load_state_dict(saved, strict=False)
    missing = [name for name in found.missing_keys if "lora_" in name]
    if missing or found.unexpected_keys:
        sys.exit(f"{run}: is no adapter of this network: lacks {missing}, has {found.unexpected_keys} beside it.")
    network.gpt2.save_pretrained(run / "adapter")
    return run / "adapter"


def losses(adapter):
    """Return the test loss on the clients' roles of new networks without and with the adapter."""
    from peft import PeftModel

    tests = tests_of(dataset("private-roles", 1))
    without = mean_loss(NextCharacters(pretrained()), *tests)
    return without, mean_loss(NextCharacters(PeftModel.from_pretrained(pretrained(), adapter)), *tests)


def fault(run, without, found):
    """Return the fault of the adapter for these losses, or None if the adapter is correct."""
    stated = json.loads((run / "summary.json").read_text())["test_loss"]
    if abs(found - stated) > CLOSE:
        return (
            f"the run states {stated:.4f}, a fresh network with its adapter has {found:.4f}, without it {without:.4f}"
        )
    if abs(found - without) <= CLOSE:
        return f"the adapter changes nothing: {found:.4f} with and without it"
    return None


if __name__ == "__main__":
    run = Path(sys.argv[1])
    without, found = losses(save_adapter(run))
    if wrong := fault(run, without, found):
        sys.exit(f"{run / 'adapter'}: {wrong}.")
    print(f"{run / 'adapter'}: test loss {found:.4f}, as the run states; {without:.4f} without it")
