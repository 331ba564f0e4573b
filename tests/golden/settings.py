"""The settings of the golden net: what a change of structure must leave as it is.

Every method, kind of noise, sum, sampler and schedule once, in three rounds of 60 clients of the digits.
"""

from typing import Any

SMALL: dict[str, Any] = {
    "data.train_samples": 480,
    "data.test_samples": 100,
    "federation.clients": 60,
    "federation.cohort": 12,
    "federation.rounds": 3,
    "local.epochs": None,
    "local.steps": 2,
    "model.hidden": [8],
    "run.evaluate_every": 3,
}
Z = {"privacy.noise_multiplier": 1.0}
FIXED = {"federation.sampling": "fixed"}
MASKED, PROTOCOL = {"aggregation.kind": "masked"}, {"aggregation.kind": "protocol"}
UPLOADS = {"privacy.release": "uploads"}
SHARES = FIXED | {"privacy.placement": "clients", "privacy.adjacency": "replace-one"}
COIN_CLIP = {"privacy.clip_norm": 0.5}
PRIVATE = {"privacy.clip_norm": 1.0, "privacy.noise_multiplier": 1.0}
SIGNS = {"privacy.noise": "coins", "privacy.clip_norm": 0.5, "method.options.bound": 0.05}

ONE_BUCKET = {"model.hidden": [6]}
"""A network of d = 460, so that QSGD has one norm, which is a power of two for given updates."""

ONE_BLOCK = {"model.hidden": [3]}
"""A network of d = 235, one block of 256 rotated coordinates, so that the rotation's factor is 1/16."""
DIRECTIONS = {"method.options.projections": 64}
FIVES = {"model.hidden": [2]}
"""A network of d = 5 x 32, so that a mean over given updates is a multiple of a power of two."""
STEP = {"server.learning_rate": 0.25}
"""A step whose product with the mean is exact, with or without one rounding for product and sum together."""
MASKS = {"model.hidden": [4], "mask.scale": 2**0.5}
"""Frozen weights of 1/4 and 1, so that products with pixels, which may cancel, are exact in any order."""

# name: (preset, settings). A name's first word may be used with --only.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    # every preset as it is
    "plain fedavg": ("fedavg-digits", {}),
    "plain fedavg-randk": ("fedavg-randk-digits", {}),
    "plain fedavg-topk": ("fedavg-topk-digits", {}),
    "plain drive": ("drive-digits", ONE_BLOCK),
    "plain eden": ("eden-digits", ONE_BLOCK),
    "plain qsgd": ("qsgd-digits", ONE_BUCKET),
    "plain signsgd": ("signsgd-digits", FIVES),
    "plain stochastic-sign": ("stochastic-sign-digits", STEP),
    "plain terngrad": ("terngrad-digits", {"method.options.clip": 16.0}),
    "plain fedmask": ("fedmask-digits", {}),
    "plain fedpm": ("fedpm-digits", {}),
    "plain fedmrn": ("fedmrn-digits", {}),
    "plain fedmrns": ("fedmrns-digits", {}),
    "plain fedscalar": ("fedscalar-digits", DIRECTIONS),
    "plain fedsparsify": ("fedsparsify-digits", {}),
    "plain fedavg feedback": ("fedavg-topk-digits", {"method.error_feedback": True}),
    # Gaussian noise on a sum
    "gauss dp-fedavg epsilon": ("dp-fedavg-digits", {}),
    "gauss dp-fedavg z": ("dp-fedavg-digits", Z | {"run.group": 5}),
    "gauss dp-fedavg zero-out all": (
        "dp-fedavg-digits",
        {"federation.sampling": "all", "privacy.adjacency": "zero-out"},
    ),
    "gauss dp-fedavg fixed rdp": ("dp-fedavg-digits", FIXED | {"privacy.accountant": "rdp"}),
    "gauss fed-smp-randk": ("fed-smp-randk-digits", {}),
    "gauss fed-smp-randk momentum": ("fed-smp-randk-digits", {"server.momentum": 0.9, "privacy.adjacency": "zero-out"}),
    "gauss fed-smp-topk": ("fed-smp-topk-digits", {}),
    "gauss fed-smp-topk client-steps": ("fed-smp-topk-digits", {"method.public_epochs": "client-steps"}),
    "gauss fedscalar shared": ("fedscalar-digits", DIRECTIONS | PRIVATE | {"method.shared": True}),
    "gauss qsgd decoded": ("qsgd-digits", PRIVATE | ONE_BUCKET),
    "gauss drive decoded": ("drive-digits", PRIVATE | ONE_BLOCK),
    "gauss fedmrns decoded": ("fedmrns-digits", PRIVATE),
    "gauss budget stops": ("dp-fedavg-digits", {"privacy.noise_multiplier": 0.8, "privacy.epsilon": 3.0}),
    "gauss dropouts": ("dp-fedavg-digits", Z | {"aggregation.dropout": 0.2}),
    "gauss canaries": ("dp-fedavg-digits", Z | {"audit.canaries": 4}),
    "gauss resumed": ("dp-fedavg-digits", Z | {"server.rule": "adam", "server.learning_rate": 0.01}),
    # adaptive, schedules, correlated
    "adaptive dp-fedavg": ("dp-fedavg-digits", Z | {"privacy.adaptive.quantile": 0.5}),
    "adaptive fed-smp fixed": (
        "fed-smp-randk-digits",
        FIXED | {"privacy.adaptive.quantile": 0.7, "privacy.adaptive.count_noise_std": 3.0},
    ),
    "adaptive resumed": ("dp-fedavg-digits", {"privacy.adaptive.quantile": 0.3, "privacy.adaptive.rate": 0.5}),
    "schedule noise": ("dp-fedavg-digits", {"privacy.noise_schedule": [1.2, 1.0, 0.8]}),
    "schedule noise fed-smp": ("fed-smp-randk-digits", Z | FIXED | {"privacy.noise_schedule": [1.0, 2.0]}),
    "schedule balls-and-bins": ("dp-fedavg-digits", Z | {"federation.sampling": "balls-and-bins"}),
    "schedule allocation": (
        "fed-smp-randk-digits",
        Z | {"federation.sampling": "allocation", "federation.rounds": 5, "run.seed": 1},
    ),
    "schedule min-separation": (
        "dp-fedavg-digits",
        Z | {"federation.sampling": "min-separation", "federation.separation": 3},
    ),
    "schedule lanes": (
        "dp-fedavg-digits",
        Z
        | {
            "federation.sampling": "balls-and-bins",
            "federation.cohort": 10,
            "federation.rounds": 6,
            "federation.lanes": 3,
        },
    ),
    "schedule cyclic": ("dp-fedavg-digits", {"federation.sampling": "cyclic"}),
    "correlated banded": (
        "dp-fedavg-digits",
        {"federation.sampling": "cyclic", "privacy.bands": 2, "federation.rounds": 6},
    ),
    "correlated root momentum": (
        "dp-fedavg-digits",
        Z
        | {
            "federation.sampling": "cyclic",
            "privacy.bands": 2,
            "privacy.factorisation": "square-root",
            "server.momentum": 0.5,
        },
    ),
    "correlated banded momentum": (
        "dp-fedavg-digits",
        {"federation.sampling": "cyclic", "privacy.bands": 3, "federation.rounds": 6, "server.momentum": 0.9},
    ),
    "correlated blt": (
        "dp-fedavg-digits",
        Z | {"federation.sampling": "min-separation", "federation.separation": 4, "privacy.buffers": 2},
    ),
    "correlated fed-smp stays resumed": (
        "fed-smp-randk-digits",
        Z | {"federation.sampling": "cyclic", "privacy.bands": 2, "method.stays": True},
    ),
    # noise of the clients, uploads
    "shares sized": ("dp-fedavg-digits", SHARES | {"aggregation.dropout": 0.2, "aggregation.tolerance": 0.5}),
    "shares charged": (
        "dp-fedavg-digits",
        SHARES
        | {
            "aggregation.dropout": 0.2,
            "privacy.missing_shares": "charged",
            "privacy.noise_multiplier": 1.5,
            "privacy.epsilon": None,
        },
    ),
    "shares calibrated charged": (
        "dp-fedavg-digits",
        SHARES
        | {
            "aggregation.dropout": 0.2,
            "privacy.missing_shares": "charged",
            "privacy.epsilon": 12.0,
            "federation.rounds": 4,
            "aggregation.tolerance": 0.4,
        },
    ),
    "shares aborts": ("dp-fedavg-digits", SHARES | Z | {"aggregation.lost.upload": 6, "aggregation.tolerance": 0.2}),
    "shares integers charged": (
        "dp-fedavg-digits",
        SHARES | {"privacy.noise": "skellam", "aggregation.dropout": 0.1, "privacy.missing_shares": "charged"},
    ),
    "uploads dp-fedavg": ("dp-fedavg-digits", Z | UPLOADS),
    "uploads qsgd": ("qsgd-digits", PRIVATE | UPLOADS | ONE_BUCKET),
    "uploads fed-smp cyclic": ("fed-smp-randk-digits", Z | UPLOADS | {"federation.sampling": "cyclic"}),
    # integers and secure sums
    "masked fedavg": ("fedavg-digits", MASKED | {"aggregation.clip_norm": 5.0}),
    "masked dp-fedavg": ("dp-fedavg-digits", MASKED),
    "masked dp-fedavg unrotated": ("dp-fedavg-digits", MASKED | Z | {"aggregation.rotation": False}),
    "masked fed-smp": ("fed-smp-randk-digits", MASKED | Z | FIXED | {"aggregation.rotation": False}),
    "masked fedscalar shared": ("fedscalar-digits", DIRECTIONS | MASKED | PRIVATE | {"method.shared": True}),
    "masked fedmrn shared": ("fedmrn-digits", MASKED | {"method.shared": True}),
    "masked fedpm": ("fedpm-digits", MASKED),
    "masked skellam shares": (
        "dp-fedavg-digits",
        MASKED | {"privacy.noise": "skellam", "privacy.placement": "clients", "aggregation.dropout": 0.1},
    ),
    "protocol dp-fedavg": (
        "dp-fedavg-digits",
        PROTOCOL | FIXED | Z | {"aggregation.dropout": 0.1, "federation.cohort": 8},
    ),
    "protocol fedavg aborts": (
        "fedavg-digits",
        PROTOCOL | FIXED | {"aggregation.clip_norm": 5.0, "aggregation.lost.share": 5, "federation.cohort": 8},
    ),
    "integers server discrete": (
        "dp-fedavg-digits",
        {"privacy.noise": "discrete-gaussian", "privacy.noise_multiplier": 1.0},
    ),
    "integers secure randomness": (
        "dp-fedavg-digits",
        {"privacy.noise": "discrete-gaussian", "run.randomness": "secure", "privacy.noise_multiplier": 1.0},
    ),
    # coins
    "coins fedpm-private": ("fedpm-private-digits", STEP | {"privacy.epsilon": 0.5}),
    "coins fedpm-private masked": ("fedpm-private-digits", STEP | MASKED | {"privacy.epsilon": 0.5}),
    "coins fedpm-private uploads": ("fedpm-private-digits", STEP | UPLOADS),
    "coins of masks": ("fedpm-digits", COIN_CLIP | {"mask.edge": 0.1}),
    "coins of masks noise": (
        "fedpm-digits",
        COIN_CLIP | FIXED | {"mask.edge": 0.1, "privacy.noise_std": 0.2, "privacy.correction": "invert"},
    ),
    "coins of masks fisher": (
        "fedpm-digits",
        COIN_CLIP | FIXED | {"mask.edge": 0.1, "privacy.clip_metric": "fisher", "privacy.linf_clip": 0.2},
    ),
    "coins signs": ("stochastic-sign-digits", STEP | SIGNS),
    "coins signs keep uploads": ("stochastic-sign-digits", STEP | SIGNS | UPLOADS | {"method.keep": 0.5}),
    "coins signs masked": ("stochastic-sign-digits", STEP | SIGNS | MASKED | {"privacy.linf_clip": 0.2}),
    "coins trials": ("stochastic-sign-digits", STEP | SIGNS | {"privacy.trials": 4}),
    "coins trials masked bits": (
        "stochastic-sign-digits",
        STEP | SIGNS | MASKED | {"privacy.trials": 3, "privacy.count_bits": 5, "privacy.slots": 40},
    ),
    "coins fedmrns": (
        "fedmrns-digits",
        {
            "privacy.noise": "coins",
            "privacy.clip_norm": 0.5,
            "method.shared": True,
            "method.options.noise": "bernoulli",
        },
    ),
    "coins canaries": ("fedpm-private-digits", STEP | {"audit.canaries": 4, "privacy.epsilon": 0.5}),
    "coins calibrated stops": (
        "stochastic-sign-digits",
        STEP | SIGNS | {"privacy.clip_norm": None, "privacy.epsilon": 1.0, "server.average": 0.875},
    ),
    "dithered": ("dp-dithered-digits", {}),
    "dithered fixed z": ("dp-dithered-digits", Z | FIXED),
    # records
    "records": ("fedavg-digits", {"local.record.clip_norm": 1.0, "local.record.noise_multiplier": 1.0}),
    # refused: errors are kept, too
    "refused coins z": ("fedpm-private-digits", Z),
    "refused bands gaussian fedpm": ("fed-smp-randk-digits", {"privacy.bands": 2}),
    "refused trials on noise": ("dp-fedavg-digits", {"privacy.trials": 4}),
    "refused gaussian masked": ("dp-fedavg-digits", MASKED | {"privacy.noise": "gaussian"}),
}

UPLOAD_AUDITS: dict[str, tuple[str, dict[str, Any]]] = {
    "audit dp-fedavg": ("dp-fedavg", {}),
    "audit dp-fedavg poisson": ("dp-fedavg", {"federation.sampling": "poisson"}),
    "audit dp-fedavg adaptive": ("dp-fedavg", {"privacy.adaptive.quantile": 0.5}),
    "audit dp-fedavg masked": ("dp-fedavg", MASKED),
    "audit qsgd": ("qsgd", {}),
    "audit fedpm": ("fedpm", {}),
}

LOOPS: dict[str, dict[str, Any]] = {
    "loop poisson": {"epsilon": 3.0, "randomness": "simulated"},
    "loop fixed z": {"noise_multiplier": 1.0, "sampling": "fixed", "randomness": "simulated", "delta": 1e-4},
    "loop balls-and-bins": {"noise_multiplier": 1.0, "sampling": "balls-and-bins", "randomness": "simulated"},
    "loop discrete": {
        "noise_multiplier": 1.0,
        "noise": "discrete-gaussian",
        "randomness": "simulated",
        "dimension": 20,
    },
    "loop skellam fixed": {"epsilon": 4.0, "noise": "skellam", "sampling": "fixed", "randomness": "simulated"},
    "loop secure": {"noise_multiplier": 1.0, "dimension": 20},
}

TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"trained {name.removeprefix('plain ')}": (name, {}) for name in SETTINGS if name.startswith("plain ")},
    "trained fedmask": ("plain fedmask", MASKS),
    "trained fedpm": ("plain fedpm", MASKS),
    "trained momentum decay": ("plain fedavg", {"local.momentum": 0.5, "local.learning_rate_decay": 0.5}),
    "trained epochs with a last batch": (
        "plain fedavg",
        {"local.steps": None, "local.epochs": 2, "local.batch_size": 5},
    ),
    "trained adam": ("plain fedavg", {"local.optimizer": "adam", "local.learning_rate": 0.01}),
    "trained one after another": ("plain fedavg", {"local.strategy": "loop"}),
    "trained side by side": ("plain fedavg", {"local.strategy": "vmap", "local.momentum": 0.5}),
    "trained weight decay": ("plain fedavg", {"local.weight_decay": 0.01, "server.rule": "adam"}),
    "trained server momentum resumed": ("plain fedavg", {"server.momentum": 0.9}),
    "trained dp-fedavg": ("gauss dp-fedavg z", {}),
    "trained fed-smp-randk": ("gauss fed-smp-randk", Z),
    "trained fed-smp-topk": ("gauss fed-smp-topk", Z),
    "trained fed-smp-topk client-steps": ("gauss fed-smp-topk client-steps", Z),
    "trained adaptive": ("adaptive dp-fedavg", {}),
    "trained canaries": ("gauss canaries", {}),
    "trained coins of masks": ("coins of masks", MASKS),
    "trained coins signs": ("coins signs", {}),
    "trained coins fedmrns": ("coins fedmrns", {}),
    "trained dithered": ("dithered fixed z", {}),
    "trained records": ("records", {}),
}
"""name: (setting, more settings), of two rounds with real training."""

ALL_INSIDE = {
    *("masked fedavg", "masked dp-fedavg", "masked skellam shares", "protocol dp-fedavg", "protocol fedavg aborts"),
    *("integers server discrete", "integers secure randomness", "shares integers charged", "masked fedscalar shared"),
    *("plain drive", "plain eden", "gauss drive decoded"),
}
"""Settings whose rows are rotated before they are rounded: a row that a clip has scaled leaves the grid there."""

NOT_ON_THE_GRID = {
    **dict.fromkeys(["gauss fed-smp-topk", "gauss fed-smp-topk client-steps"], "the start is the network's"),
    **dict.fromkeys(
        ["plain drive", "plain eden", "gauss drive decoded"], "a row's scale is a quotient, and decoding adds multiples"
    ),
    **dict.fromkeys(["plain fedmrns", "gauss fedmrns decoded"], "a mask over uniform noise"),
    **dict.fromkeys(["gauss fedscalar shared"], "a clip scales numbers to which all clients add"),
    **dict.fromkeys(
        ["schedule lanes", "correlated banded momentum", "correlated blt"], "coefficients of earlier noise are roots"
    ),
    **dict.fromkeys(
        ["shares sized", "shares charged", "shares calibrated charged", "shares aborts"], "normals of each client"
    ),
    **dict.fromkeys(["uploads dp-fedavg", "uploads qsgd", "uploads fed-smp cyclic"], "normals of each client"),
    **dict.fromkeys(["dithered", "dithered fixed z"], "uniform dither of each client"),
}
"""Settings of the second layer in which some items are real numbers on no grid, and the reason. Their items that are
the same bits everywhere are stored as bits, the others as numbers."""

SLOW = {
    *("plain fedavg", "gauss dp-fedavg epsilon", "gauss dp-fedavg z", "gauss dp-fedavg fixed rdp"),
    *("gauss fed-smp-randk", "gauss fed-smp-randk momentum", "gauss fed-smp-topk"),
    *("gauss fed-smp-topk client-steps", "gauss budget stops", "adaptive fed-smp fixed", "schedule noise"),
    *("schedule noise fed-smp", "schedule balls-and-bins", "schedule allocation", "schedule lanes"),
    *(
        "adaptive resumed",
        "schedule min-separation",
        "shares sized",
        "shares charged",
        "shares calibrated charged",
        "shares aborts",
        "masked dp-fedavg",
    ),
    *("masked fed-smp", "masked fedscalar shared", "masked skellam shares", "protocol dp-fedavg"),
    *(
        "integers server discrete",
        "coins fedmrns",
        "trained fed-smp-topk client-steps",
        "coins fedpm-private",
        "coins fedpm-private masked",
        "coins fedpm-private uploads",
        "coins of masks",
    ),
    *("coins of masks noise", "coins of masks fisher", "coins signs", "coins signs keep uploads"),
    *("coins signs masked", "coins trials", "coins trials masked bits", "coins canaries"),
    *("coins calibrated stops", "dithered", "dithered fixed z", "records", "loop fixed z"),
    *("loop skellam fixed", "trained dp-fedavg", "trained coins of masks", "trained dithered"),
    *("audit dp-fedavg", "audit dp-fedavg poisson", "audit dp-fedavg adaptive", "audit dp-fedavg masked"),
    *("audit qsgd", "audit fedpm"),
}
"""Settings that take more than half a second, most of it the account's; what they promise is in quick ones, too."""
