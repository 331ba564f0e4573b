"""Specification of a method in plain values, for tables, commands and refusals, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from dpfed.config.kinds import Noise

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
"""Server rules that move every entry by about the same amount."""


@dataclass(frozen=True, kw_only=True)
class MethodSpecification:
    """Specification of a method: one row of `dpfed methods`.

    `nominal_bits_per_parameter` is the number of bits of an upload over d, at the preset's compression, without
    headers. `linear` says that the server can decode a sum of uploads without seeing one (what secure aggregation
    needs); `linear_if_shared`: if method.shared is set. `scheme` is the compressor's name in `dpfed.compress`, None for
    masks. `takes`: the configuration keys that this method has beside the common ones; "mask" is a whole table.
    `sparse` methods need method.keep or method.k, unless `sparse` is "optional". `noise`: the only noise that uploads
    can have, None if [privacy] chooses it. `options_of_coins`: the compressor's options that apply with privacy.noise =
    "coins"; None if it is not possible. `needs_public_data`: coordinates follow from data that must be public.
    `same_coordinates`: uploads of all rounds have equal coordinates. `privacy`: required, optional, or never possible,
    which `never_because` explains, with the `nearest_private` method. `seed_purpose`: purpose of the seeds that the
    compressor draws from. `sends_models`: uploads are sparse models and not updates. `follows_rounds`: the setting that
    follows from federation.rounds. `audited_clip_norm`: the clip norm at which one upload is audited, None for the
    preset's. `presets`: tables by the preset's name, default one of the method's name that sets nothing more
    (`dpfed.methods.presets`).
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

    @property
    def private_with(self) -> tuple[str, ...]:
        """The ways in which the method can be private."""
        if self.privacy == "never":
            return ()
        if self.dithered:
            return (DITHERED,)
        if self.coins:
            return (COINS_SUMMED, COINS_SEEN)
        if self.linear:
            return (NOISED_SUM, SHARES, NOISED_UPLOADS)
        coins = (COINS_SUMMED, COINS_SEEN) if self.signs_can_be_private else ()
        return (DECODED, NOISED_UPLOADS, *coins, *((SHARED_SUM,) if self.linear_if_shared else ()))

    @property
    def coins(self) -> bool:
        """True if clients train and send masks: Bernoulli samples of probabilities."""
        return self.noise == "coins"

    @property
    def signs_can_be_private(self) -> bool:
        """True if privacy.noise = "coins" may be set, for signs."""
        return self.options_of_coins is not None

    @property
    def dithered(self) -> bool:
        """True if the quantiser's error is the noise."""
        return self.noise == "dithered"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of `dpfed methods --json`."""
        record = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "presets"}
        derived = {"private_with": self.private_with, "signs_can_be_private": self.signs_can_be_private}
        return record | derived | {"dithered": self.dithered}
