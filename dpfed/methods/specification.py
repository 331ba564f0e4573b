"""A method: its properties in plain values, and the functions that build a run of it; this module needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal

from dpfed import stages
from dpfed.config.noise_of_methods import Noise

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

SPARSE = ("method.keep", "method.k")
COMPRESSED = ("method.options", "method.error_feedback")
SHARED = ("method.shared",)
STAYS = ("method.stays",)
NOISELESS = ("method.noiseless",)
PUBLIC = ("method.public_epochs",)

ADAPTIVE = ("adam", "yogi", "adagrad")
"""Adaptive server rules, which move every entry by about the same amount."""


def whole_update(s: Any) -> Stages:
    """Return the chain of the whole update, compressed by the method's scheme."""
    whole: Stages = s.updates(stages.SendAll(size=s.size))
    return whole


def refuse_nothing(config: Config) -> Iterator[str]:
    """Yield no messages, for a method all of whose settings can be combined."""
    yield from ()


@dataclass(frozen=True, kw_only=True)
class MethodSpecification:
    """A method: one row of `dpfed methods`, and the functions that build it; no other code depends on its name.

    paper: source of the method; what: description of an upload; unbiased: True if the decoded mean is unbiased
    nominal_bits_per_parameter: bits of an upload without headers, divided by d, at the preset's compression
    scheme: name of the compressor in `dpfed.compress`; None for masks and dithered noise
    linear: True if the server can decode the sum of uploads, as secure aggregation requires
    linear_if_shared: True if the method is linear with method.shared = true
    takes: configuration keys that this method has in addition to the common ones; "mask" stands for a whole table
    sparse: "yes" if method.keep or method.k is required, "optional" if it is allowed
    privacy: [privacy] is "required", "optional" or "never" allowed; `never_because` gives the reason, and
        `nearest_private` a similar private method
    noise: the only noise that uploads can have; None if privacy.noise chooses it
    options_of_coins: options of the compressor that apply with privacy.noise = "coins"; None if it is not supported
    needs_public_data: True if coordinates are chosen by training on public data
    same_coordinates: True if uploads of all rounds have the same coordinates
    seed_purpose: purpose from which the compressor's seeds are derived
    sends_models: True if uploads are sparse models, not updates
    follows_rounds: description of the setting that depends on federation.rounds, if there is one
    audited_clip_norm: clip norm at which `dpfed audit METHOD` audits one upload; None for the preset's
    presets: tables by the preset's name (`dpfed.methods.catalogue`); if empty, the method has one preset with its name
    stages: makes the chain of stages of an upload from `dpfed.methods.settings.Settings`
    course: makes the local training of clients from `dpfed.methods.parts.TrainingParts`; by default that of [local] on
        the weights of the model
    server: makes the server's rule from `ServerParts`; by default that of [server] for the weights of the model
    refusals: yields messages for settings that this method cannot combine
    """

    name: str
    paper: str
    unbiased: bool
    nominal_bits_per_parameter: float
    what: str
    scheme: str | None
    local_training: str = "sgd"
    linear: bool = False
    privacy: Literal["never", "required", "optional"] = "optional"
    takes: tuple[str, ...] = COMPRESSED
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sparse: Literal["no", "yes", "optional"] = "no"
    noise: Noise | None = None
    options_of_coins: tuple[str, ...] | None = None
    linear_if_shared: bool = False
    needs_public_data: bool = False
    same_coordinates: bool = False
    nearest_private: str = "dp-fedavg"
    never_because: str = "it adds no noise"
    follows_rounds: str | None = None
    audited_clip_norm: float | None = None
    seed_purpose: str = "code"
    sends_models: bool = False
    stages: Callable[[Any], Stages] = whole_update
    course: Callable[[Any], Course] = methodcaller("optimizer")
    server: Callable[[Any], ServerRule] = methodcaller("step")
    refusals: Callable[[Config], Iterator[str]] = refuse_nothing

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
        return self.noise == "coins"

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
        building = ("presets", "stages", "course", "server", "refusals")
        record = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in building}
        derived = {"private_with": self.private_with, "signs_can_be_private": self.signs_can_be_private}
        return record | derived | {"dithered": self.dithered}
