"""Updates through a quantiser: SignSGD, stochastic signs, TernGrad, QSGD, DRIVE, EDEN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.facts import COMPRESSED, SPARSE, compressed

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_EDEN = "Vargaftik et al. 2022: EDEN: Communication-Efficient and Robust Distributed Mean Estimation"


def quantised(s: Settings) -> Stages:
    """The scheme that has the method's name."""
    return s.updates(stages.SendAll(size=s.size))


def random_signs(s: Settings) -> Stages:
    """The same; with privacy.noise = "coins" the random signs are what makes the round private."""
    if s.signs_are_coins:
        return s.coins(s.public_signs())
    return s.updates(stages.SendAll(size=s.size))


METHODS = (
    compressed(
        "signsgd",
        "signsgd",
        "Bernstein et al. 2018: signSGD: Compressed Optimisation for Non-Convex Problems",
        bits=1.0,
        unbiased=False,
        what="signs and one scale",
        stages=quantised,
    ),
    compressed(
        "stochastic-sign",
        "stochastic-sign",
        "Safaryan, Richtarik 2021: Stochastic Sign Descent Methods",
        bits=1.0,
        unbiased=True,
        what="random signs of mean x / B and the bound B",
        coins=True,
        sparse="optional",
        takes=(*COMPRESSED, *SPARSE),
        stages=random_signs,
    ),
    compressed(
        "terngrad",
        "terngrad",
        "Wen et al. 2017: TernGrad: Ternary Gradients to Reduce Communication",
        bits=1.6,
        unbiased=True,
        what="three levels and one scale",
        stages=quantised,
    ),
    compressed(
        "qsgd",
        "qsgd",
        "Alistarh et al. 2017: QSGD: Communication-Efficient SGD via Quantization and Encoding",
        bits=2.0,
        unbiased=True,
        what="random rounding to s levels in buckets, entropy-coded",
        preset={"method": {"options": {"levels": 16}}},
        stages=quantised,
    ),
    compressed(
        "drive",
        "drive",
        "Vargaftik et al. 2021: DRIVE: One-bit Distributed Mean Estimation",
        bits=1.0,
        unbiased=True,
        what="signs of the rotated update and a scale a block",
        stages=quantised,
    ),
    compressed(
        "eden",
        "eden",
        _EDEN,
        bits=2.0,
        unbiased=True,
        what="b-bit centroids of the rotated update and a scale a block",
        preset={"method": {"options": {"bits": 2}}},
        stages=quantised,
    ),
)
