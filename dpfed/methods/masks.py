"""Methods whose clients train a mask: FedPM and FedMask over frozen random weights, FedMRN over seeded random noise.

FedPM and FedMask train the probabilities of a mask and send a mask. In FedMRN the masked noise is the update.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import methodcaller
from typing import TYPE_CHECKING

from dpfed.methods.specification import ADAPTIVE, MethodSpecification, whole_update

if TYPE_CHECKING:
    from dpfed.config.tables import Config
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

_FEDPM = "Isik et al. 2023: Sparse Random Networks for Communication-Efficient Federated Learning"


def sampled_masks(s: Settings) -> Stages:
    """Return the chain that sends masks sampled from the trained probabilities; under [privacy] this sampling is the
    noise."""
    bound = s.bound_of_moves
    return s.coins(s.coordinates_of_signs() if bound is None else s.public_signs(bound))


def threshold_masks(s: Settings) -> Stages:
    """Return the chain that sends threshold masks, whose ones are the probabilities above 1/2."""
    return s.coins(s.coordinates_of_signs(), stochastic=False)


def refusals_of_masks(config: Config) -> Iterator[str]:
    """Yield messages for optimizers and server rules that do not apply to masks, and for trials without mask.bound."""
    name, server = config.method.name, config.server
    moves = config.mask is not None and config.mask.bound is not None
    if server.rule not in ("step", "posterior", *ADAPTIVE):
        yield f"server.rule={server.rule!r} with masks: this rule is for updates. Use 'step' or 'posterior'."
    if server.rule in ADAPTIVE:
        yield (
            f"server.rule={server.rule!r} with method.name={name!r}: its step would leave the range of probabilities. "
            "Use 'step'."
        )
    if config.local.optimizer == "adamw" or config.local.weight_decay:
        yield (
            f"local.weight_decay or local.optimizer='adamw' with method.name={name!r}: would pull masks' scores to 0, "
            "not weights. Use 'sgd' or 'adam' without weight decay."
        )
    if config.local.proximal or config.local.rates:
        yield (
            f"local.proximal or local.rates with method.name={name!r}: masks have scores, not the weights that these "
            "keys are about. Remove them."
        )
    if config.privacy is None:
        if moves:
            yield (
                f"mask.bound={config.mask and config.mask.bound!r} has no effect here: it is for fedpm with [privacy], "
                "whose Bernoulli samples are the noise. Set that, or remove the key."
            )
        return
    if server.rule == "posterior" and moves:
        yield "server.rule='posterior' with mask.bound: the masks are stochastic signs of moves. Use rule 'step'."
    if config.privacy.trials > 1 and not moves:
        yield (
            f"privacy.trials={config.privacy.trials} with method.name={name!r}: is for stochastic-sign, and for fedpm "
            "with mask.bound. Remove it."
        )


def refusals_of_threshold_masks(config: Config) -> Iterator[str]:
    """Yield messages for keys of random masks, which have no effect on threshold masks."""
    if config.mask is not None and config.mask.forward != "coins":
        yield (
            f"mask.forward={config.mask.forward!r} has no effect here: it is for method.name='fedpm', whose masks are "
            "random. Set that, or remove the key."
        )
    yield from refusals_of_masks(config)


_PRIVATE: dict[str, object] = {
    # The noise is Bernoulli samples in a sum of fixed size. The clip norm follows from epsilon: False removes the key
    # clip_norm that the data set's defaults have.
    "privacy": {"release": "sum", "adjacency": "zero-out", "clip_norm": False},
    # All scores start at 0, and the mean of all masks is trained and evaluated, because after a sum with this noise a
    # sampled mask has a low accuracy.
    "mask": {"edge": 0.2, "spread": 0.0, "forward": "mean", "readout": "mean"},
    "server": {"learning_rate": 0.05, "momentum": 0.9},
}


def masked_noise(s: Settings) -> Stages:
    """Return the chain that sends one bit per weight.

    With privacy.noise = "coins" (fedmrns), the bits are stochastic signs whose randomness is the privacy noise.
    """
    if s.signs_are_private:
        return s.coins(s.public_signs(s.noise_size, noise_purpose=s.specification.seed_purpose))
    return whole_update(s)


def refusals_of_masked_noise(config: Config) -> Iterator[str]:
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

_MASKED_NOISE = MethodSpecification(
    name="fedmrn",
    scheme="fedmrn",
    paper="Li et al. 2024: Masked Random Noise for Communication-Efficient Federated Learning",
    local_training="masked noise",
    nominal_bits_per_parameter=1.0,
    unbiased=False,
    what="which entries of seeded noise to keep: one bit a weight, trained through the mask",
    keys=("method.shared", "method.progressive", "method.stochastic", "method.train_masked"),
    audited_clip_norm=0.02,
    seed_purpose=_NOISE_SEEDS,
    stages=masked_noise,
    refusals=refusals_of_masked_noise,
)

METHODS = (
    MethodSpecification(
        name="fedpm",
        paper=_FEDPM,
        local_training="masks",
        unbiased=True,
        nominal_bits_per_parameter=1.0,
        linear=True,
        what="Bernoulli samples of each weight's probability: a mask, range-coded; integers under a sum",
        scheme=None,
        sparse="optional",
        keys=("method.public_epochs",),
        presets={
            "fedpm": {"mask": {"edge": 0.01}, "server": {"rule": "posterior"}},
            "fedpm-private": _PRIVATE,
        },
        stages=sampled_masks,
        refusals=refusals_of_masks,
    ),
    MethodSpecification(
        name="fedmask",
        paper="Li et al. 2021: FedMask (as a baseline of FedPM: no pruning, one global mask)",
        local_training="masks",
        unbiased=False,
        nearest_private="fedpm",
        nominal_bits_per_parameter=1.0,
        linear=True,
        what="the mask of probabilities above 1/2, range-coded",
        scheme=None,
        privacy="never",
        presets={"fedmask": {"mask": {"edge": 0.01, "readout": "threshold"}, "server": {"rule": "posterior"}}},
        stages=threshold_masks,
        course=methodcaller("masks", forward="threshold"),
        refusals=refusals_of_threshold_masks,
    ),
    _MASKED_NOISE,
    replace(
        _MASKED_NOISE,
        name="fedmrns",
        scheme="fedmrns",
        what="the sign of each entry of seeded noise: one bit a weight, trained through the mask",
        options_of_coins=("noise", "alpha"),
    ),
)
