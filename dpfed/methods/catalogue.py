"""The methods: named choices of local training, map, code and privacy, and what is true of each."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpfed.errors import ConfigError

NOISED_SUM = "gaussian noise on the sum"
SHARES = "noise shares of the clients"
DECODED = "gaussian noise on the sum of uploads that a trusted server decodes and clips"
NOISED_UPLOADS = "gaussian noise before the compression, every upload seen"
SHARED_SUM = "gaussian noise on the sum, if method.shared"
COINS_SUMMED = "coins under a sum of fixed size"
COINS_SEEN = "noise and coins, every upload seen"


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row of `dpfed methods`.

    `nominal_bits_per_parameter` is what a client sends over d, at the preset's compression, without headers. `linear`
    says that the server can decode a sum of uploads without seeing one (what secure aggregation needs). `scheme` is
    the compressor's name in `dpfed.compress`, None for coins. `sparse` methods take method.keep or method.k, and must
    unless `sparse` is "optional". `coins_possible`: privacy.noise may be "coins". `needs_public_data`: the coordinates
    come from data that must be public. `privacy`: whether a [privacy] table is required, optional or never possible.
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
    sparse: Literal["no", "yes", "optional"] = "no"
    needs_public_data: bool = False
    coins_possible: bool = False

    @property
    def coins(self) -> bool:
        """Whether what is trained and sent is a mask."""
        return self.local_training == "masks"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `dpfed methods --json`."""
        record = asdict(self)
        record["private_with"] = list(self.private_with)
        return record


_FED_SMP = "Hu, Guo, Gong: Federated Learning with Sparsified Model Perturbation"
_FEDPM = "Isik et al. 2023: Sparse Random Networks for Communication-Efficient Federated Learning"
_FEDMRN = "Li et al. 2024: Masked Random Noise for Communication-Efficient Federated Learning"
_FEDSCALAR = "Rostami, Kia 2024: FedScalar: A Communication Efficient Federated Learning"
_EDEN = "Vargaftik et al. 2022: EDEN: Communication-Efficient and Robust Distributed Mean Estimation"


def _compressed(
    name: str,
    scheme: str,
    paper: str,
    *,
    bits: float,
    unbiased: bool,
    what: str,
    training: str = "sgd",
    coins: bool = False,
    summed: bool = False,
) -> Method:
    """An update through a compressor that a sum does not commute with."""
    return Method(
        name=name,
        paper=paper,
        local_training=training,
        unbiased=unbiased,
        nominal_bits_per_parameter=bits,
        linear=False,
        private_with=(DECODED, NOISED_UPLOADS, *([COINS_SUMMED] if coins else []), *([SHARED_SUM] if summed else [])),
        what=what,
        scheme=scheme,
        privacy="optional",
        coins_possible=coins,
    )


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
            scheme="dense",
            privacy="never",
        ),
        Method(
            name="dp-fedavg",
            paper="McMahan et al. 2018: Learning Differentially Private Recurrent Language Models",
            local_training="sgd",
            unbiased=True,
            nominal_bits_per_parameter=32.0,
            linear=True,
            private_with=(NOISED_SUM, SHARES, NOISED_UPLOADS),
            what="the whole update, clipped",
            scheme="dense",
            privacy="required",
        ),
        Method(
            name="fedavg-topk",
            paper=_FED_SMP + " (baseline)",
            local_training="sgd",
            unbiased=False,
            nominal_bits_per_parameter=0.05 * 32 + 0.29,
            linear=False,
            private_with=(),
            what="each client's own k largest coordinates, with their indices",
            scheme="topk",
            privacy="never",
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
            scheme="randk",
            privacy="never",
            sparse="yes",
        ),
        Method(
            name="fed-smp-randk",
            paper=_FED_SMP,
            local_training="sgd",
            unbiased=True,
            nominal_bits_per_parameter=0.4 * 32,
            linear=True,
            private_with=(NOISED_SUM, SHARES, NOISED_UPLOADS),
            what="k coordinates that the round's public seed draws, times d/k, clipped",
            scheme="dense",
            privacy="required",
            sparse="yes",
        ),
        Method(
            name="fed-smp-topk",
            paper=_FED_SMP,
            local_training="sgd",
            unbiased=False,
            nominal_bits_per_parameter=0.005 * 32,
            linear=True,
            private_with=(NOISED_SUM, SHARES, NOISED_UPLOADS),
            what="k coordinates that a public data set ranks highest, clipped",
            scheme="dense",
            privacy="required",
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
            private_with=(COINS_SUMMED, COINS_SEEN),
            what="coins of each weight's probability: a mask, range-coded; integers under a sum",
            scheme=None,
            privacy="optional",
            sparse="optional",
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
            scheme=None,
            privacy="never",
        ),
        _compressed(
            "fedmrn",
            "fedmrn",
            _FEDMRN,
            training="masked noise",
            bits=1.0,
            unbiased=False,
            what="which entries of seeded noise to keep: one bit a weight, trained through the mask",
        ),
        _compressed(
            "fedmrns",
            "fedmrns",
            _FEDMRN,
            training="masked noise",
            bits=1.0,
            unbiased=False,
            what="the sign of each entry of seeded noise: one bit a weight, trained through the mask",
            coins=True,
        ),
        _compressed(
            "fedscalar",
            "fedscalar",
            _FEDSCALAR,
            bits=0.0,
            unbiased=True,
            what="the update's products with p random directions, the client's or (method.shared) the round's",
            summed=True,
        ),
        _compressed(
            "signsgd",
            "signsgd",
            "Bernstein et al. 2018: signSGD: Compressed Optimisation for Non-Convex Problems",
            bits=1.0,
            unbiased=False,
            what="signs and one scale",
        ),
        _compressed(
            "stochastic-sign",
            "stochastic-sign",
            "Safaryan, Richtarik 2021: Stochastic Sign Descent Methods",
            bits=1.0,
            unbiased=True,
            what="random signs of mean x / B and the bound B",
            coins=True,
        ),
        _compressed(
            "terngrad",
            "terngrad",
            "Wen et al. 2017: TernGrad: Ternary Gradients to Reduce Communication",
            bits=1.6,
            unbiased=True,
            what="three levels and one scale",
        ),
        _compressed(
            "qsgd",
            "qsgd",
            "Alistarh et al. 2017: QSGD: Communication-Efficient SGD via Quantization and Encoding",
            bits=2.0,
            unbiased=True,
            what="random rounding to s levels in buckets, entropy-coded",
        ),
        _compressed(
            "drive",
            "drive",
            "Vargaftik et al. 2021: DRIVE: One-bit Distributed Mean Estimation",
            bits=1.0,
            unbiased=True,
            what="signs of the rotated update and a scale a block",
        ),
        _compressed(
            "eden",
            "eden",
            _EDEN,
            bits=2.0,
            unbiased=True,
            what="b-bit centroids of the rotated update and a scale a block",
        ),
        _compressed(
            "fedsparsify",
            "fedsparsify",
            "Stripelis et al. 2022: Federated Progressive Sparsification",
            training="pruned",
            bits=0.03 * 32 + 0.2,
            unbiased=False,
            what="the model's largest weights and a bitmap, fewer every round",
        ),
    )
}


def method(name: str) -> Method:
    """The method of this name; ConfigError with the nearest one otherwise."""
    if name not in METHODS:
        nearest = difflib.get_close_matches(name, METHODS, n=1, cutoff=0)[0]
        raise ConfigError(f"method.name={name!r}: known are {', '.join(METHODS)}. Did you mean {nearest!r}?")
    return METHODS[name]
