"""Thirty networks of torchvision, timm and transformers, in small configurations, that a private round is tried with.

`.venv-adapters/bin/python tests/networks_of_others.py` trains all of them and writes the table of docs/data.md.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import dpfed
from dpfed.errors import DpfedError

PAGE = Path(__file__).parents[1] / "docs" / "data.md"
BEGIN, END = "<!-- networks: begin -->", "<!-- networks: end -->"
CLASSES, LENGTH, WORDS = 3, 6, 20
SETTINGS = {
    "federation.rounds": 1,
    "federation.cohort": 2,
    "local.batch_size": 2,
    "local.epochs": 1,
    "privacy.epsilon": None,
    "privacy.noise_multiplier": 1.0,
}
DRAW = torch.Generator().manual_seed(0)


def torchvision_models() -> Any:
    """Return torchvision.models. Its compiled operators may be built for another torch; no network here uses them."""
    try:
        import torchvision.models
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
        import torchvision.models
    return torchvision.models


_KEPT: list[Any] = []


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


def of_torchvision() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield (name, function that makes the network) for images [3, 32, 32]."""
    models = torchvision_models()
    block = models.convnext.CNBlockConfig
    yield "resnet18", lambda: models.resnet18(num_classes=CLASSES)
    yield "resnet18, GroupNorm", lambda: models.resnet18(num_classes=CLASSES, norm_layer=group_norm)
    yield "mobilenet_v2", lambda: models.mobilenet_v2(num_classes=CLASSES, width_mult=0.25)
    yield (
        "mobilenet_v2, GroupNorm",
        lambda: models.mobilenet_v2(num_classes=CLASSES, width_mult=0.25, norm_layer=group_norm),
    )
    yield "efficientnet_b0", lambda: models.efficientnet_b0(num_classes=CLASSES)
    yield "shufflenet_v2_x0_5", lambda: models.shufflenet_v2_x0_5(num_classes=CLASSES)
    yield "squeezenet1_1", lambda: models.squeezenet1_1(num_classes=CLASSES)
    yield "googlenet", lambda: models.googlenet(num_classes=CLASSES, init_weights=False)
    yield "densenet", lambda: models.DenseNet(4, (1, 1), 8, num_classes=CLASSES)
    yield "convnext", lambda: models.ConvNeXt([block(16, 32, 1), block(32, None, 1)], num_classes=CLASSES)
    yield "vision_transformer", lambda: models.VisionTransformer(32, 8, 1, 2, 16, 16, num_classes=CLASSES)
    yield ("swin_transformer", lambda: models.SwinTransformer([4, 4], 8, [1, 1], [1, 2], [4, 4], num_classes=CLASSES))


def of_timm() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield (name, function that makes the network) for images [3, 32, 32]."""
    import timm
    from timm.models.convnext import ConvNeXt
    from timm.models.metaformer import MetaFormer
    from timm.models.mlp_mixer import MlpMixer

    small = {"img_size": 32, "num_classes": CLASSES, "patch_size": 8, "embed_dim": 16}
    tiny = small | {"depth": 1, "num_heads": 2}
    yield "vit_tiny_patch16_224", lambda: timm.create_model("vit_tiny_patch16_224", **tiny)
    yield "deit_tiny_distilled_patch16_224", lambda: timm.create_model("deit_tiny_distilled_patch16_224", **tiny)
    yield "MlpMixer", lambda: MlpMixer(num_blocks=1, **small)
    yield "ConvNeXt", lambda: ConvNeXt(dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), num_classes=CLASSES)
    yield "MetaFormer", lambda: MetaFormer(dims=(8, 16), depths=(1, 1), num_classes=CLASSES)
    yield "resnet10t", lambda: timm.create_model("resnet10t", num_classes=CLASSES)
    yield "resnetv2_50", lambda: timm.create_model("resnetv2_50", num_classes=CLASSES)
    yield "efficientnet_lite0", lambda: timm.create_model("efficientnet_lite0", num_classes=CLASSES)


def of_transformers() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield (name, function that makes the network) for texts of LENGTH tokens, of images if its name has "Image"."""
    import transformers

    base = {"vocab_size": WORDS, "pad_token_id": 0, "num_labels": CLASSES}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 16}
    bert = base | layers | {"max_position_embeddings": 16, "embedding_size": 16}
    gpt = base | {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    image = layers | {"image_size": 32, "patch_size": 8, "num_labels": CLASSES}
    named: dict[str, dict[str, Any]] = {
        "BertForSequenceClassification": bert,
        "RobertaForSequenceClassification": bert,
        "ElectraForSequenceClassification": bert,
        "AlbertForSequenceClassification": bert,
        "DistilBertForSequenceClassification": base
        | {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": 16},
        "BertForTokenClassification": bert,
        "GPT2ForSequenceClassification": gpt,
        "GPT2LMHeadModel": gpt,
        "LlamaForSequenceClassification": bert | {"num_key_value_heads": 2},
        "ViTForImageClassification": image,
    }
    for name, options in named.items():
        kind = getattr(transformers, name)
        yield name, lambda kind=kind, options=options: kind(kind.config_class(**options))


LIBRARIES = {"torchvision": of_torchvision, "timm": of_timm, "transformers": of_transformers}


def networks() -> Iterator[tuple[str, str, Callable[[], nn.Module]]]:
    """Yield (library, name, function that makes the network)."""
    for library, listed in LIBRARIES.items():
        for name, make in listed():
            yield library, name, make


def clients_of(library: str, name: str) -> Any:
    """Return the data of four clients with two samples each, in the form that the network takes."""

    def some(count: int) -> Any:
        if name.endswith("ForImageClassification"):
            return {"pixel_values": torch.randn(count, 3, 32, 32, generator=DRAW), "labels": torch.arange(count) % 3}
        if library != "transformers":
            return torch.randn(count, 3, 32, 32, generator=DRAW), torch.arange(count) % CLASSES
        tokens = torch.randint(1, WORDS, (count, LENGTH), generator=DRAW)
        each = tokens % CLASSES if "Token" in name else torch.arange(count) % CLASSES
        labels = torch.cat([tokens[:, 1:], torch.full((count, 1), -100)], 1) if "LMHead" in name else each
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}

    classes, ignored = (WORDS, -100) if "LMHead" in name else (CLASSES, None)
    return dpfed.data.from_clients([some(2) for _ in range(4)], some(6), classes=classes, ignored=ignored)


def found_of_network(library: str, name: str, make: Callable[[], nn.Module]) -> str:
    """Return "taken" after one private round whose model is saved, or the text of the refusal before round 1."""
    torch.manual_seed(0)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        rounds: list[Any] = []
        given = {
            "data": clients_of(library, name),
            "model": make(),
            "out": Path(folder) / "run",
            "progress": rounds.append,
        }
        try:
            done = dpfed.run("dp-fedavg-digits", SETTINGS, **given)
        except DpfedError as error:
            return ("refused: " if not rounds else "failed: ") + " ".join(str(error).split())
        done.model.load_state_dict(done.model.state_dict())
        return "taken" if done.guarantee.epsilon > 0 else "not private"


def outcome_of_network(library: str, name: str, make: Callable[[], nn.Module]) -> str:
    """Return the first sentence of the outcome for a cell of the table, without the name of the network."""
    said = found_of_network(library, name, make).partition(". ")[0].replace("|", "&#124;")
    return re.sub(r"model\.name='\w+'", "the network", re.sub(r"layer '.*?'", "a layer", said))


def shown(name: str) -> str:
    """Return the name of a network as markdown."""
    return f"`{name.replace(', ', '` with `')}`"


def table() -> str:
    """Return the outcomes, with the networks of each, as markdown."""
    found: dict[str, dict[str, list[str]]] = {}
    for library, name, make in networks():
        said = outcome_of_network(library, name, make)
        found.setdefault(said, {}).setdefault(library, []).append(shown(name))
    listed = {
        said: "; ".join(f"{library}: {', '.join(names)}" for library, names in by.items()) for said, by in found.items()
    }
    rows = [f"| {said} | {names} |" for said, names in listed.items()]
    return "\n".join(["| one private round of dp-fedavg | networks |", "|---|---|", *rows])


if __name__ == "__main__":
    made, text = table(), PAGE.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(f"{text[:begin]}\n{made}\n{text[end:]}")
