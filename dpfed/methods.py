"""The methods: named choices of local training, map, code and privacy, and what is true of each."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpfed.errors import ConfigError

NOISED_SUM = "gaussian noise on the sum"


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of `dpfed methods`.

    `nominal_bits_per_parameter` is what a client sends over d, at the preset's compression. `linear` says that the
    server can decode a sum of uploads without seeing one (what secure aggregation needs). `sparse` methods take
    method.keep or method.k, and must unless `sparse` is "optional". `needs_public_data`: the coordinates come from
    data that must be public. `coins`: what is sent is a mask, and privacy is optional and comes from its coins.
    """

    name: str
    paper: str
    local_training: str
    unbiased: bool
    nominal_bits_per_parameter: float
    linear: bool
    private_with: tuple[str, ...]
    what: str
    sparse: Literal["no", "yes", "optional"] = "no"
    needs_public_data: bool = False
    coins: bool = False

    @property
    def private(self) -> bool:
        """Whether the method can be private: then [privacy] is required (optional for coins), else forbidden."""
        return bool(self.private_with)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `dpfed methods --json`."""
        record = asdict(self)
        record["private_with"] = list(self.private_with)
        return record


_FEDPM = "Isik et al. 2023: Sparse Random Networks for Communication-Efficient Federated Learning"
_FED_SMP = "Hu, Guo, Gong: Federated Learning with Sparsified Model Perturbation"

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(
            name="fedavg",
            paper="McMahan et al. 2017: Communication-Efficient Learning of Deep Networks",
            local_training="sgd",
            unbiased=True,
            nominal_bits_per_parameter=32.0,
            linear=True,
            private_with=(),
            what="the whole update",
        ),
        Method(
            name="dp-fedavg",
            paper="McMahan et al. 2018: Learning Differentially Private Recurrent Language Models",
            local_training="sgd",
            unbiased=True,
            nominal_bits_per_parameter=32.0,
            linear=True,
            private_with=(NOISED_SUM, "noise shares of the clients"),
            what="the whole update, clipped",
        ),
        Method(
            name="fedavg-topk",
            paper=_FED_SMP + " (baseline)",
            local_training="sgd",
            unbiased=False,
            nominal_bits_per_parameter=0.05 * (32 + 21),
            linear=False,
            private_with=(),
            what="each client's own k largest coordinates, with their indices",
            sparse="yes",
        ),
        Method(
            name="fedavg-randk",
            paper=_FED_SMP + " (baseline)",
            local_training="sgd",
            unbiased=True,
            nominal_bits_per_parameter=0.4 * 32,
            linear=False,
            private_with=(),
            what="each client's own k random coordinates times d/k, with the seed",
            sparse="yes",
        ),
        Method(
            name="fed-smp-randk",
            paper=_FED_SMP,
            local_training="sgd",
            unbiased=True,
            nominal_bits_per_parameter=0.4 * 32,
            linear=True,
            private_with=(NOISED_SUM, "noise shares of the clients"),
            what="k coordinates that the round's public seed draws, times d/k, clipped",
            sparse="yes",
        ),
        Method(
            name="fed-smp-topk",
            paper=_FED_SMP,
            local_training="sgd",
            unbiased=False,
            nominal_bits_per_parameter=0.005 * 32,
            linear=True,
            private_with=(NOISED_SUM, "noise shares of the clients"),
            what="k coordinates that a public data set ranks highest, clipped",
            sparse="yes",
            needs_public_data=True,
        ),
        Method(
            name="fedpm",
            paper=_FEDPM,
            local_training="masks",
            unbiased=True,
            nominal_bits_per_parameter=1.0,
            linear=True,
            private_with=("coins under a sum of fixed size", "noise and coins, every upload"),
            what="coins of each weight's probability: a mask, range-coded; integers under a sum",
            sparse="optional",
            coins=True,
        ),
        Method(
            name="fedmask",
            paper="Li et al. 2021: FedMask (as a baseline of FedPM: no pruning, one global mask)",
            local_training="masks",
            unbiased=False,
            nominal_bits_per_parameter=1.0,
            linear=True,
            private_with=(),
            what="the mask of probabilities above 1/2, range-coded",
            coins=True,
        ),
    )
}


def method(name: str) -> Method:
    """The method of this name; ConfigError with the nearest one otherwise."""
    if name not in METHODS:
        nearest = difflib.get_close_matches(name, METHODS, n=1, cutoff=0)[0]
        raise ConfigError(f"method.name={name!r}: known are {', '.join(METHODS)}. Did you mean {nearest!r}?")
    return METHODS[name]
