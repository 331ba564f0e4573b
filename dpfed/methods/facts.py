"""What is true of a method, in plain values: asked by tables, commands and refusals, without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

NOISED_SUM = "gaussian noise on the sum"
SHARES = "noise shares of the clients"
DECODED = "gaussian noise on the sum of uploads that a trusted server decodes and clips"
NOISED_UPLOADS = "gaussian noise before the compression, every upload seen"
SHARED_SUM = "gaussian noise on the sum, if method.shared"
DITHERED = "the gaussian error of the quantiser, before a trusted server decodes"
COINS_SUMMED = "coins under a sum of fixed size"
COINS_SEEN = "coins, every upload seen"

SPARSE = ("method.keep", "method.k")
COMPRESSED = ("method.options", "method.error_feedback")
SHARED = ("method.shared",)
STAYS = ("method.stays",)


@dataclass(frozen=True, kw_only=True)
class MethodFacts:
    """What is true of a method: one row of `dpfed methods`.

    `stages` makes its chain of stages from the settings of a run (`dpfed.methods.settings.Settings`).
    `nominal_bits_per_parameter` is what a client sends over d, at the preset's compression, without headers. `linear`
    says that the server can decode a sum of uploads without seeing one (what secure aggregation needs). `scheme` is
    the compressor's name in `dpfed.compress`, None for coins. `takes`: the keys of the configuration that this method
    has beside those of all; "mask" is a whole table. `sparse` methods need method.keep or method.k, unless `sparse` is
    "optional". `coins_possible`: privacy.noise may be "coins". `dithered`:
    the quantiser's own error is the noise. `needs_public_data`: the coordinates come from data that
    must be public. `privacy`: whether a [privacy] table is required, optional or never possible. `presets`: tables by
    the preset's name, default one of the method's name that sets nothing more (`dpfed.methods.presets`).
    """

    name: str
    paper: str
    local_training: str
    unbiased: bool
    nominal_bits_per_parameter: float
    linear: bool
    private_with: tuple[str, ...]
    what: str
    scheme: str | None
    privacy: Literal["never", "required", "optional"]
    stages: Callable[[Settings], Stages]
    takes: tuple[str, ...] = ()
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sparse: Literal["no", "yes", "optional"] = "no"
    needs_public_data: bool = False
    coins_possible: bool = False
    dithered: bool = False
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def coins(self) -> bool:
        """Whether what is trained and sent is a mask."""
        return self.local_training == "masks"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `dpfed methods --json`."""
        record = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("stages", "presets")}
        return record | {"private_with": list(self.private_with), "takes": list(self.takes)}


def compressed(
    name: str,
    scheme: str,
    paper: str,
    *,
    bits: float,
    unbiased: bool,
    what: str,
    stages: Callable[[Settings], Stages],
    training: str = "sgd",
    coins: bool = False,
    summed: bool = False,
    sparse: Literal["no", "yes", "optional"] = "no",
    takes: tuple[str, ...] = COMPRESSED,
    preset: Mapping[str, Any] | None = None,
) -> MethodFacts:
    """An update through a compressor that a sum does not commute with."""
    return MethodFacts(
        name=name,
        paper=paper,
        local_training=training,
        unbiased=unbiased,
        nominal_bits_per_parameter=bits,
        linear=False,
        private_with=(
            DECODED,
            NOISED_UPLOADS,
            *([COINS_SUMMED, COINS_SEEN] if coins else []),
            *([SHARED_SUM] if summed else []),
        ),
        what=what,
        scheme=scheme,
        privacy="optional",
        stages=stages,
        sparse=sparse,
        takes=takes,
        presets={name: preset or {}},
        coins_possible=coins,
    )
