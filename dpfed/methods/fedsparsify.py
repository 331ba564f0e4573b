"""FedSparsify: clients prune their models further every round, and send what is left of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.facts import compressed

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages


def pruned_models(s: Settings) -> Stages:
    """The model's nonzero weights and a bitmap."""
    return s.updates(stages.SendAll(size=s.size))


METHODS = (
    compressed(
        "fedsparsify",
        "fedsparsify",
        "Stripelis et al. 2022: Federated Progressive Sparsification",
        training="pruned",
        bits=0.03 * 32 + 0.2,
        unbiased=False,
        what="the model's largest weights and a bitmap, fewer every round",
        takes=("method.options", "method.purge"),
        stages=pruned_models,
    ),
)
