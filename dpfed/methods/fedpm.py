"""FedPM and FedMask: clients train the probabilities of a mask over fixed random weights, and send a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpfed.methods.facts import COINS_SEEN, COINS_SUMMED, SPARSE, MethodFacts

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_FEDPM = "Isik et al. 2023: Sparse Random Networks for Communication-Efficient Federated Learning"


def masks(s: Settings) -> Stages:
    """Coins of the trained probabilities; under [privacy] their randomness is the noise."""
    return s.coins(s.public_signs() if s.coins_of_moves else s.coordinates_of_coins())


_PRIVATE: dict[str, Any] = {
    # Coins under a sum of fixed size are the noise: clip_norm follows from epsilon, so the data sets' own is taken out.
    "privacy": {"release": "sum", "adjacency": "zero-out", "clip_norm": False},
    # All scores start at 0 and the mean of all masks is trained and read out: with so noisy a sum a sampled mask says
    # little.
    "mask": {"edge": 0.2, "spread": 0.0, "forward": "mean", "readout": "mean"},
    "server": {"learning_rate": 0.05, "momentum": 0.9},
}

METHODS = (
    MethodFacts(
        name="fedpm",
        paper=_FEDPM,
        local_training="masks",
        unbiased=True,
        nominal_bits_per_parameter=1.0,
        linear=True,
        private_with=(COINS_SUMMED, COINS_SEEN),
        what="coins of each weight's probability: a mask, range-coded; integers under a sum",
        scheme=None,
        privacy="optional",
        sparse="optional",
        stages=masks,
        takes=(*SPARSE, "mask"),
        presets={
            "fedpm": {"mask": {"edge": 0.01}, "server": {"rule": "posterior"}},
            "fedpm-private": _PRIVATE,
        },
    ),
    MethodFacts(
        name="fedmask",
        paper="Li et al. 2021: FedMask (as a baseline of FedPM: no pruning, one global mask)",
        local_training="masks",
        unbiased=False,
        nominal_bits_per_parameter=1.0,
        linear=True,
        private_with=(),
        what="the mask of probabilities above 1/2, range-coded",
        scheme=None,
        privacy="never",
        stages=masks,
        takes=("mask",),
        presets={"fedmask": {"mask": {"edge": 0.01, "readout": "threshold"}, "server": {"rule": "posterior"}}},
    ),
)
