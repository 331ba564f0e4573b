"""A method: its properties in plain values, and the functions that build a run of it; this module needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from dpfed import stages
from dpfed.config.noise_of_methods import NOISE, Noise

if TYPE_CHECKING:
    from dpfed.clients.task import Course
    from dpfed.config.tables import Config
    from dpfed.server.rules import ServerRule
    from dpfed.stages.chain import Stages

NOISED_SUM = "gaussian noise on the sum"
SHARES = "noise shares of the clients"
DECODED = "gaussian noise on the sum of uploads that a trusted server decodes and clips"
NOISED_UPLOADS = "gaussian noise before the compression, every upload seen"
SHARED_SUM = "gaussian noise on the sum, if method.shared"
DITHERED = "the gaussian error of the quantiser, before a trusted server decodes"
COINS_SUMMED = "Bernoulli samples in a sum of fixed size"
COINS_SEEN = "Bernoulli samples, every upload seen"

ADAPTIVE = ("adam", "yogi", "adagrad")
"""Adaptive server rules, which move every entry by about the same amount."""


def whole_update(s: Any) -> Stages:
    """Return the chain of the whole update, compressed by the method's scheme."""
    whole: Stages = s.updates(stages.SendAll(size=s.size))
    return whole


@dataclass(frozen=True, kw_only=True)
class MethodSpecification:
    """A method: one row of `dpfed methods`, and the functions that build it; no other code depends on its name.

    Its local training gives its rule of the server, whether uploads are masks or models, and, with `scheme` and
    `sparse`, the keys of its configuration.

    paper: source of the method; what: description of an upload; unbiased: True if the decoded mean is unbiased
    nominal_bits_per_parameter: bits of an upload without headers, divided by d, at the preset's compression
    scheme: name of the compressor in `dpfed.compress`; None for masks and dithered noise
    linear: True if the server can decode the sum of uploads, as secure aggregation requires
    linear_if_shared: True if the method is linear with method.shared = true
    keys: configuration keys that this method has beside those that follow from the other fields (`takes`)
    local_training: clients train the weights ("sgd"), a mask over frozen weights, a mask over seeded noise, or weights
        of which more are pruned in every round
    sparse: "yes" if method.keep or method.k is required, "optional" if it is allowed
    privacy: [privacy] is "required", "optional" or "never" allowed; `never_because` gives the reason, and
        `nearest_private` a similar private method
    options_of_coins: options of the compressor that apply with privacy.noise = "coins"; None if it is not supported
    needs_public_data: True if coordinates are chosen by training on public data
    same_coordinates: True if uploads of all rounds have the same coordinates
    seed_purpose: purpose from which the compressor's seeds are derived
    follows_rounds: description of the setting that depends on federation.rounds, if there is one
    audited_clip_norm: clip norm at which `dpfed audit METHOD` audits one upload; None for the preset's
    presets: tables by the preset's name (`dpfed.methods.catalogue`); if empty, the method has one preset with its name
    stages: makes the chain of stages of an upload from `dpfed.methods.settings.Settings`
    course: makes the local training of clients from `dpfed.methods.parts.TrainingParts`; None for `local_training`
    server: makes the server's rule from `TrainingParts`; None for the rule of [server] for what clients train
    refusals: yields messages for settings that this method cannot combine; None if it has none
    """

    name: str
    paper: str
    unbiased: bool
    nominal_bits_per_parameter: float
    what: str
    scheme: str | None
    local_training: Literal["sgd", "masks", "masked noise", "pruned"] = "sgd"
    linear: bool = False
    privacy: Literal["never", "required", "optional"] = "optional"
    keys: tuple[str, ...] = ()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sparse: Literal["no", "yes", "optional"] = "no"
    options_of_coins: tuple[str, ...] | None = None
    linear_if_shared: bool = False
    needs_public_data: bool = False
    same_coordinates: bool = False
    nearest_private: str = "dp-fedavg"
    never_because: str = "it adds no noise"
    follows_rounds: str | None = None
    audited_clip_norm: float | None = None
    seed_purpose: str = "code"
    stages: Callable[[Any], Stages] = whole_update
    course: Callable[[Any], Course] | None = None
    server: Callable[[Any], ServerRule] | None = None
    refusals: Callable[[Config], Iterator[str]] | None = None

    @property
    def takes(self) -> tuple[str, ...]:
        """Configuration keys that this method has in addition to the common ones; "mask" stands for a whole table."""
        sparse = () if self.sparse == "no" else ("method.keep", "method.k")
        options = () if self.scheme is None else ("method.options",)
        feedback = () if self.scheme is None or self.sends_models else ("method.error_feedback",)
        return *sparse, *options, *feedback, *self.keys, *(("mask",) if self.sends_masks else ())

    @property
    def private_with(self) -> tuple[str, ...]:
        """Descriptions of the kinds of privacy noise that the method supports."""
        if self.privacy == "never":
            return ()
        if self.dithered:
            return (DITHERED,)
        if self.sends_masks:
            return (COINS_SUMMED, COINS_SEEN)
        if self.linear:
            return (NOISED_SUM, SHARES, NOISED_UPLOADS)
        coins = (COINS_SUMMED, COINS_SEEN) if self.signs_can_be_private else ()
        return (DECODED, NOISED_UPLOADS, *coins, *((SHARED_SUM,) if self.linear_if_shared else ()))

    @property
    def sends_masks(self) -> bool:
        """True if clients train and send masks: Bernoulli samples of probabilities."""
        return self.local_training == "masks"

    @property
    def sends_models(self) -> bool:
        """True if uploads are sparse models, not updates."""
        return self.local_training == "pruned"

    @property
    def noise(self) -> Noise | None:
        """The only noise that uploads can have; None if privacy.noise chooses it."""
        return "coins" if self.sends_masks else NOISE.get(self.name)

    @property
    def signs_can_be_private(self) -> bool:
        """True if privacy.noise = "coins" is allowed, with which stochastic signs are the privacy noise."""
        return self.options_of_coins is not None

    @property
    def dithered(self) -> bool:
        """True if the quantiser's error is the privacy noise."""
        return self.noise == "dithered"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `dpfed methods --json`."""
        building = ("presets", "stages", "course", "server", "refusals", "keys")
        derived = ("takes", "noise", "sends_models", "private_with", "signs_can_be_private", "dithered")
        return {
            name: getattr(self, name)
            for name in (*(one.name for one in fields(self)), *derived)
            if name not in building
        }
