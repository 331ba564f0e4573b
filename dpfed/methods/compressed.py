"""Methods that compress updates or models: SignSGD, stochastic signs, TernGrad, QSGD, DRIVE, EDEN, FedScalar,
dithered noise, FedSparsify.

FedScalar: a client sends the inner products of its update with p random directions.

Dithered noise: DP-FedAvg whose privacy noise is the error of a quantiser, at less than one bit per parameter.

FedSparsify: the model is pruned further in every round, and clients send the remaining weights and a bitmap.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.specification import ADAPTIVE, MethodSpecification, whole_update

if TYPE_CHECKING:
    from dpfed.config.tables import Config
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_EDEN = "Vargaftik et al. 2022: EDEN: Communication-Efficient and Robust Distributed Mean Estimation"


def stochastic_signs(s: Settings) -> Stages:
    """Return the chain that sends stochastic signs; with privacy.noise = "coins" their randomness is the privacy
    noise."""
    if s.signs_are_private:
        return s.coins(s.public_signs(float(s.config.method.options["bound"])))
    return whole_update(s)


def refuse_data_as_bound(config: Config) -> Iterator[str]:
    """Yield messages for private signs whose size would be computed from private data, and for sparse non-private
    signs."""
    table, method = config.privacy, config.method
    if table is None or table.noise != "coins":
        if method.keep is not None or method.k is not None:
            yield (
                f"method.keep or method.k with method.name={method.name!r}: is supported for private stochastic signs "
                "only. Set privacy.noise='coins', or remove it."
            )
        return
    bound = method.options.get("bound")
    if not isinstance(bound, int | float) or isinstance(bound, bool) or not 0 < bound < math.inf:
        yield (
            f"privacy.noise='coins' with method.options bound={bound!r}: needs a public number; 'linf' and 'l2' are "
            "computed from private data."
        )


_FEDSCALAR = "Rostami, Kia 2024: FedScalar: A Communication Efficient Federated Learning"


def inner_products(s: Settings) -> Stages:
    """Return the chain that sends inner products with random directions.

    Each client has its own directions. With method.shared all clients of a round have the same ones, and the server can
    sum the inner products before it decodes.
    """
    return s.updates(s.shared_directions()) if s.config.method.shared else whole_update(s)


def refuse_own_directions(config: Config) -> Iterator[str]:
    """Yield a message for directions that are kept for the whole run (method.stays) but are not shared."""
    if config.method.stays and not config.method.shared:
        yield (
            "method.stays=True has no effect here: it applies to directions that all clients share. Set "
            "method.shared=true, or remove the key."
        )


def dithered_update(s: Settings) -> Stages:
    """Return the chain that clips all d coordinates and quantises them; the decoding error is the Gaussian noise."""
    return s.dithered(stages.SendAll(size=s.size))


def refuse_lost_zeros(config: Config) -> Iterator[str]:
    """Yield messages for settings that would not preserve the zeros of sparse models, and for private votes on
    zeros."""
    name, clients_purge = config.method.name, config.method.purge == "clients"
    if config.privacy is not None and clients_purge and config.privacy.release == "sum":
        yield (
            "method.purge='clients' with [privacy]: the majority vote over entries is a release of its own that no "
            "account covers. Use purge 'server', or privacy.release 'uploads', which noises every model first."
        )
    if clients_purge and config.server.rule in ADAPTIVE:
        yield (
            f"server.rule={config.server.rule!r} with method.name={name!r}: this rule would not keep the zeros on "
            "which clients agree. Use 'step'."
        )
    if config.server.average is not None:
        yield f"server.average with method.name={name!r}: an average of sparse models is not sparse. Remove it."


METHODS = (
    MethodSpecification(
        name="signsgd",
        scheme="signsgd",
        paper="Bernstein et al. 2018: signSGD: Compressed Optimisation for Non-Convex Problems",
        nominal_bits_per_parameter=1.0,
        unbiased=False,
        what="signs (+1 of zero, also where a weight has no gradient) and one scale",
    ),
    MethodSpecification(
        name="stochastic-sign",
        scheme="stochastic-sign",
        paper="Safaryan, Richtarik 2021: Stochastic Sign Descent Methods",
        nominal_bits_per_parameter=1.0,
        unbiased=True,
        what="random signs of mean x / B and the bound B: the largest entry, or the L2 norm (options.bound)",
        options_of_coins=("bound",),
        sparse="optional",
        stages=stochastic_signs,
        refusals=refuse_data_as_bound,
    ),
    MethodSpecification(
        name="terngrad",
        scheme="terngrad",
        paper="Wen et al. 2017: TernGrad: Ternary Gradients to Reduce Communication",
        nominal_bits_per_parameter=1.6,
        unbiased=True,
        what="three levels and one scale",
    ),
    MethodSpecification(
        name="qsgd",
        scheme="qsgd",
        paper="Alistarh et al. 2017: QSGD: Communication-Efficient SGD via Quantization and Encoding",
        nominal_bits_per_parameter=2.0,
        unbiased=True,
        what="random rounding to s levels in buckets, entropy-coded",
        presets={"qsgd": {"method": {"options": {"levels": 16}}}},
    ),
    MethodSpecification(
        name="drive",
        scheme="drive",
        paper="Vargaftik et al. 2021: DRIVE: One-bit Distributed Mean Estimation",
        nominal_bits_per_parameter=1.0,
        unbiased=True,
        what="signs of the rotated update and a scale a block",
    ),
    MethodSpecification(
        name="eden",
        scheme="eden",
        paper=_EDEN,
        nominal_bits_per_parameter=2.0,
        unbiased=True,
        what="b-bit centroids of the rotated update and a scale a block",
        presets={"eden": {"method": {"options": {"bits": 2}}}},
    ),
    MethodSpecification(
        name="fedscalar",
        scheme="fedscalar",
        paper=_FEDSCALAR,
        nominal_bits_per_parameter=0.0,
        unbiased=True,
        what="the update's products with p random directions, the client's or (method.shared) the round's",
        linear_if_shared=True,
        keys=("method.shared", "method.stays"),
        stages=inner_products,
        refusals=refuse_own_directions,
    ),
    MethodSpecification(
        name="dp-dithered",
        paper="Hegazy et al. 2024: Compression with Exact Error Distribution for Federated Learning",
        unbiased=True,
        nominal_bits_per_parameter=0.88,
        what="the whole update, clipped, through a quantiser with Gaussian error",
        scheme=None,
        privacy="required",
        stages=dithered_update,
    ),
    MethodSpecification(
        name="fedsparsify",
        scheme="fedsparsify",
        paper="Stripelis et al. 2022: Federated Progressive Sparsification",
        local_training="pruned",
        nominal_bits_per_parameter=0.03 * 32 + 0.2,
        unbiased=False,
        what="the model's largest weights and a bitmap, fewer every round",
        keys=("method.purge",),
        follows_rounds="the sparsity of fedsparsify",
        refusals=refuse_lost_zeros,
    ),
)
