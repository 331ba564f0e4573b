"""FedMRN: clients train and send which entries of seeded random noise make up their update."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.facts import COMPRESSED, SHARED, compressed

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_FEDMRN = "Li et al. 2024: Masked Random Noise for Communication-Efficient Federated Learning"


def masked_noise(s: Settings) -> Stages:
    """A bit a weight; with privacy.noise = "coins" (fedmrns) the signs are private coins."""
    if s.signs_are_coins:
        return s.coins(s.public_signs())
    return s.updates(stages.SendAll(size=s.size))


_ABLATIONS = ("method.progressive", "method.stochastic", "method.train_masked")

METHODS = (
    compressed(
        "fedmrn",
        "fedmrn",
        _FEDMRN,
        training="masked noise",
        bits=1.0,
        unbiased=False,
        what="which entries of seeded noise to keep: one bit a weight, trained through the mask",
        takes=(*COMPRESSED, *SHARED, *_ABLATIONS),
        stages=masked_noise,
    ),
    compressed(
        "fedmrns",
        "fedmrns",
        _FEDMRN,
        training="masked noise",
        bits=1.0,
        unbiased=False,
        what="the sign of each entry of seeded noise: one bit a weight, trained through the mask",
        coins=True,
        takes=(*COMPRESSED, *SHARED, *_ABLATIONS),
        stages=masked_noise,
    ),
)
