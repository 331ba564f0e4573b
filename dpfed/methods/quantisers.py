"""Methods that quantise updates: SignSGD, stochastic signs, TernGrad, QSGD, DRIVE, EDEN."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.method import FederatedMethod
from dpfed.methods.specification import COMPRESSED, SPARSE, MethodSpecification

if TYPE_CHECKING:
    from dpfed.config.tables import Config
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_EDEN = "Vargaftik et al. 2022: EDEN: Communication-Efficient and Robust Distributed Mean Estimation"


def quantised_update(s: Settings) -> Stages:
    """Return the chain that compresses updates by the scheme with the method's name."""
    return s.updates(stages.SendAll(size=s.size))


def stochastic_signs(s: Settings) -> Stages:
    """Return the chain that sends stochastic signs; with privacy.noise = "coins" their randomness is the privacy
    noise."""
    if s.signs_are_private:
        return s.coins(s.public_signs(float(s.config.method.options["bound"])))
    return s.updates(stages.SendAll(size=s.size))


def refuse_data_as_bound(config: Config) -> Iterator[str]:
    """Yield messages for private signs whose size would be computed from private data, and for sparse non-private
    signs."""
    table, method = config.privacy, config.method
    if table is None or table.noise != "coins":
        if method.keep is not None or method.k is not None:
            yield (
                f"method.keep or method.k with method.name={method.name!r}: is supported for private stochastic signs "
                "only. "
                "Set privacy.noise='coins', or remove it."
            )
        return
    bound = method.options.get("bound")
    if not isinstance(bound, int | float) or isinstance(bound, bool) or not 0 < bound < math.inf:
        yield (
            f"privacy.noise='coins' with method.options bound={bound!r}: needs a public number; 'linf' and 'l2' are "
            "computed from private data."
        )


METHODS = (
    FederatedMethod(
        specification=MethodSpecification(
            name="signsgd",
            scheme="signsgd",
            paper="Bernstein et al. 2018: signSGD: Compressed Optimisation for Non-Convex Problems",
            nominal_bits_per_parameter=1.0,
            unbiased=False,
            what="signs (+1 of zero, also where a weight has no gradient) and one scale",
        ),
        stages=quantised_update,
    ),
    FederatedMethod(
        specification=MethodSpecification(
            name="stochastic-sign",
            scheme="stochastic-sign",
            paper="Safaryan, Richtarik 2021: Stochastic Sign Descent Methods",
            nominal_bits_per_parameter=1.0,
            unbiased=True,
            what="random signs of mean x / B and the bound B: the largest entry, or the L2 norm (options.bound)",
            options_of_coins=("bound",),
            sparse="optional",
            takes=(*COMPRESSED, *SPARSE),
        ),
        stages=stochastic_signs,
        refusals=refuse_data_as_bound,
    ),
    FederatedMethod(
        specification=MethodSpecification(
            name="terngrad",
            scheme="terngrad",
            paper="Wen et al. 2017: TernGrad: Ternary Gradients to Reduce Communication",
            nominal_bits_per_parameter=1.6,
            unbiased=True,
            what="three levels and one scale",
        ),
        stages=quantised_update,
    ),
    FederatedMethod(
        specification=MethodSpecification(
            name="qsgd",
            scheme="qsgd",
            paper="Alistarh et al. 2017: QSGD: Communication-Efficient SGD via Quantization and Encoding",
            nominal_bits_per_parameter=2.0,
            unbiased=True,
            what="random rounding to s levels in buckets, entropy-coded",
            presets={"qsgd": {"method": {"options": {"levels": 16}}}},
        ),
        stages=quantised_update,
    ),
    FederatedMethod(
        specification=MethodSpecification(
            name="drive",
            scheme="drive",
            paper="Vargaftik et al. 2021: DRIVE: One-bit Distributed Mean Estimation",
            nominal_bits_per_parameter=1.0,
            unbiased=True,
            what="signs of the rotated update and a scale a block",
        ),
        stages=quantised_update,
    ),
    FederatedMethod(
        specification=MethodSpecification(
            name="eden",
            scheme="eden",
            paper=_EDEN,
            nominal_bits_per_parameter=2.0,
            unbiased=True,
            what="b-bit centroids of the rotated update and a scale a block",
            presets={"eden": {"method": {"options": {"bits": 2}}}},
        ),
        stages=quantised_update,
    ),
)
