"""FedMRN: clients train and send a mask that selects entries of seeded random noise; the masked noise is their
update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpfed.methods.specification import MethodSpecification, whole_update

if TYPE_CHECKING:
    from dpfed.config.tables import Config
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_FEDMRN = "Li et al. 2024: Masked Random Noise for Communication-Efficient Federated Learning"


def masked_noise(s: Settings) -> Stages:
    """Return the chain that sends one bit per weight.

    With privacy.noise = "coins" (fedmrns), the bits are stochastic signs whose randomness is the privacy noise.
    """
    if s.signs_are_private:
        return s.coins(s.public_signs(s.noise_size, noise_purpose=s.specification.seed_purpose))
    return whole_update(s)


def refusals(config: Config) -> Iterator[str]:
    """Yield messages for optimizers that cannot train masked noise, and for settings that do not allow private
    signs."""
    local, table, method = config.local, config.privacy, config.method
    if local.optimizer != "sgd" or local.weight_decay:
        yield (
            f"local.optimizer or local.weight_decay with method.name={method.name!r}: masked noise is trained by plain "
            "SGD."
        )
    if local.proximal or local.rates:
        yield f"local.proximal or local.rates with method.name={method.name!r}: are for weights. Remove them."
    if table is None or table.noise != "coins":
        return
    if not method.shared or method.options.get("noise") != "bernoulli":
        yield (
            f"privacy.noise='coins' with {method.name}: needs method.shared=true and method.options.noise='bernoulli': "
            "the sum of masks can be decoded only if all clients of a round have the same noise of one size. Set both."
        )
    if table.trials > 1:
        yield (
            f"privacy.trials={table.trials} with method.name={method.name!r}: is for stochastic-sign, and for fedpm "
            "with mask.bound. Remove it."
        )


_NOISE_SEEDS = "fedmrn.noise"
"""Purpose from which the seeds of clients' noise are derived (`dpfed.clients.masks`)."""

_KEYS = ("method.shared", "method.progressive", "method.stochastic", "method.train_masked")

METHODS = (
    MethodSpecification(
        name="fedmrn",
        scheme="fedmrn",
        paper=_FEDMRN,
        local_training="masked noise",
        nominal_bits_per_parameter=1.0,
        unbiased=False,
        what="which entries of seeded noise to keep: one bit a weight, trained through the mask",
        keys=_KEYS,
        audited_clip_norm=0.02,
        seed_purpose=_NOISE_SEEDS,
        stages=masked_noise,
        refusals=refusals,
    ),
    MethodSpecification(
        name="fedmrns",
        scheme="fedmrns",
        paper=_FEDMRN,
        local_training="masked noise",
        nominal_bits_per_parameter=1.0,
        unbiased=False,
        what="the sign of each entry of seeded noise: one bit a weight, trained through the mask",
        options_of_coins=("noise", "alpha"),
        keys=_KEYS,
        audited_clip_norm=0.02,
        seed_purpose=_NOISE_SEEDS,
        stages=masked_noise,
        refusals=refusals,
    ),
)
