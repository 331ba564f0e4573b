"""A small GPT-2 over characters, its LoRA and FFA-LoRA adapters, and the roles of Shakespeare as clients.
dpfed run lora.toml --load language_model.py, after pretrain.py has made public.safetensors in the same folder."""

import os
from pathlib import Path

import numpy as np
from safetensors.torch import load_model
from torch import nn

import dpfed
from dpfed.data.shakespeare import VOCABULARY, character_codes, lines_by_role
from dpfed.errors import ConfigError, DataError

LENGTH = 32
RANK, ALPHA, LAYERS = 4, 8, ["c_attn", "c_proj", "c_fc"]
PUBLIC_WEIGHTS = Path("public.safetensors")


class NextCharacters(nn.Module):
    """Map character indices [b, length] to logits [b, characters, length] of each next character."""

    def __init__(self, gpt2):
        super().__init__()
        self.gpt2 = gpt2

    def forward(self, inputs):
        return self.gpt2(input_ids=inputs.long(), use_cache=False).logits.transpose(1, 2)


def gpt2(layers=2, width=32):
    """Return the network with new random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": layers, "n_head": 4, "n_embd": width, "n_positions": LENGTH, "vocab_size": len(VOCABULARY)}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"bos_token_id": None, "eos_token_id": None}
    return GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout, **ends, attn_implementation="eager"))


def pretrained():
    """Return the network with the weights that pretrain.py learned from the public roles."""
    if not PUBLIC_WEIGHTS.exists():
        raise ConfigError(f"{PUBLIC_WEIGHTS}: not in {Path.cwd()}. Run pretrain.py there first.")
    network = gpt2()
    load_model(network, PUBLIC_WEIGHTS)
    return network


def with_adapters(network, train_a=True):
    """Add A and B to every layer of LAYERS; peft freezes all other weights. B starts at 0, A at random."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(
        network, LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=LAYERS, fan_in_fan_out=True)
    )
    for name, parameter in adapted.named_parameters():
        if "lora_A" in name:
            parameter.requires_grad_(train_a)
    return adapted


def full(input_shape, classes):
    """Return a network of which every weight is trained and sent."""
    return NextCharacters(pretrained())


def lora(input_shape, classes):
    """Return a network of which A and B of every adapter are trained and sent (Hu et al. 2021)."""
    return NextCharacters(with_adapters(pretrained()))


def ffa_lora(input_shape, classes):
    """Train and send B only; A stays random, so that a sum of updates is a sum of products (Sun et al. 2024)."""
    return NextCharacters(with_adapters(pretrained(), train_a=False))


def roles(half):
    """Return every second role in the order of first speeches; half: 0 for public roles, 1 for the clients."""
    root = os.environ.get("DPFED_DATA_DIR")
    if root is None:
        raise DataError("DPFED_DATA_DIR: is not set. It names the folder that holds shakespeare/input.txt.")
    return [lines for lines in list(lines_by_role(Path(root)).values())[half::2] if lines]


def windows(lines):
    """Return pieces of LENGTH characters [n, LENGTH], and the pieces shifted by one character, without a remainder."""
    text = character_codes(" ".join(lines))
    count = max(0, (len(text) - 1) // LENGTH)
    seen, following = text[: count * LENGTH], text[1 : count * LENGTH + 1]
    return seen.reshape(count, LENGTH).astype(np.float32), following.reshape(count, LENGTH).astype(np.int64)


def dataset(name, half):
    """Return roles with at least one piece in the first 80% of their lines as clients; other lines are for tests."""
    parts = [(windows(lines[: len(lines) * 4 // 5]), windows(lines[len(lines) * 4 // 5 :])) for lines in roles(half)]
    parts = [(train, test) for train, test in parts if len(train[0])]
    train, test = ([np.concatenate(both) for both in zip(*halves, strict=True)] for halves in zip(*parts, strict=True))
    held = [len(part[0][0]) for part in parts]
    return dpfed.data.Dataset(
        name=name,
        train_inputs=train[0],
        train_labels=train[1],
        test_inputs=test[0],
        test_labels=test[1],
        classes=len(VOCABULARY),
        train_clients=np.repeat(np.arange(len(held)), held),
        natural_clients=len(held),
    )


dpfed.models.register("gpt2-full", full)
dpfed.models.register("gpt2-lora", lora)
dpfed.models.register("gpt2-ffa-lora", ffa_lora)
dpfed.data.register("public-roles", lambda: dataset("public-roles", 0))
dpfed.data.register("private-roles", lambda: dataset("private-roles", 1))
