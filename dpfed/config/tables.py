"""The configuration of a run: typed tables, an unknown key is an error."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from accounting.ledger.regular_file import LARGEST_CONFIGURATION, read_text
from accounting.require import LARGEST_CLIP, SMALLEST_CLIP
from dpfed.config.limits import (
    LARGEST_FLOAT,
    MOST_CLIENTS,
    MOST_LAYERS,
    MOST_SAMPLES,
    Canaries,
    Clients,
    Count,
    Positive,
    Rounds,
    Samples,
    Seed,
    Steps,
    Units,
)
from dpfed.errors import ConfigError

_MOST_SHOWN = 200
_Some = Annotated[int, Field(ge=0, le=MOST_CLIENTS)]


def _held_by_float32(value: float) -> float:
    if not SMALLEST_CLIP <= value <= LARGEST_CLIP:
        raise ValueError(f"must be from {SMALLEST_CLIP:g} to {LARGEST_CLIP:g}, which float32 holds with noise and sums")
    return value


ClipNorm = Annotated[float, AfterValidator(_held_by_float32)]

_USERS = {"alpha": ("dirichlet",), "labels": ("labels", "fedpm"), "samples": ("resampled",)}
"""The partitions that each key of [data] belongs to."""


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Data(_Table):
    """[data] Which samples, and who has them. `name` is a data set that `dpfed.data` knows, or a file .safetensors of
    one's own; `root` the folder that holds it, default $DPFED_DATA_DIR (the current folder for a file); `classes` how
    many labels such a file can have, unless its metadata say so: a public number.

    `partition_seed`: who the clients are follows from it alone, beside the data and the other settings of the division;
    run.seed has no part in it, so that runs that differ in it are on the same clients.

    `train_samples`, `test_samples`: at most so many, drawn by it. `validation`: so many training samples are set
    aside, no client has them, and their score is validation_accuracy. `public` training samples serve as the public
    set of fed-smp-topk: carved out of the training half (then the summary says that they are not protected), or taken
    from the data set `public_from`.

    partition: iid; dirichlet, each label divided by shares ~ Dirichlet(alpha); labels, every client has so many
    `labels`; fedpm, sizes of 10 to 100 parts and at most so many `labels`; resampled, every client has so many
    `samples`, drawn from all with replacement, and there may be millions of clients; natural, as the data set says
    (roles, the column train_clients); nodes, every node of a deployment has samples of its own (docs/deploy.md), and of
    data.name only the test half, and public samples, are used.
    """

    name: str
    root: str | None = None
    classes: Count | None = None
    train_samples: Count | None = None
    test_samples: Count | None = None
    validation: Count | None = None
    public: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    public_from: str | None = None
    partition: Literal["iid", "dirichlet", "labels", "fedpm", "resampled", "natural", "nodes"] = "iid"
    alpha: Positive | None = Field(default=None, validate_default=True)
    labels: Count | None = Field(default=None, validate_default=True)
    samples: Samples | None = Field(default=None, validate_default=True)
    partition_seed: Annotated[int, Field(ge=0)] = 0

    @field_validator("alpha", "labels", "samples")
    @classmethod
    def _fits_the_partition(cls, value: float | None, info: ValidationInfo) -> float | None:
        partition = info.data.get("partition")
        users = _USERS[info.field_name or ""]
        if partition in users and value is None:
            raise ValueError(f"data.partition={partition!r} needs it. Set data.{info.field_name}")
        if partition is not None and partition not in users and value is not None:
            raise ValueError(f"is for data.partition={' or '.join(map(repr, users))}, not {partition!r}. Remove it")
        return value


class Model(_Table):
    """[model] Which network; `hidden` are the widths of hidden layers (mlp, char-lstm)."""

    name: str
    hidden: tuple[Units, ...] | None = Field(default=None, strict=False, max_length=MOST_LAYERS)


class Federation(_Table):
    """[federation] Who takes part. `cohort` is the expected number under poisson, the exact one under fixed; under all
    it is every client, whatever it says."""

    clients: Clients
    cohort: Clients
    rounds: Rounds
    sampling: Literal["poisson", "fixed", "all"] = "poisson"


class Record(_Table):
    """[local.record] DP-SGD inside every client, the unit is a record: per-record gradients clipped to clip_norm, noise
    of noise_multiplier times it on each batch's sum. Batches are drawn by coins of probability batch_size / records.

    A noise multiplier, or an epsilon to calibrate one for, or both. Calibrated for clients of the worst size in the
    rounds that they take part in: all with federation.sampling = "all", else so many that with probability 99% no
    client is drawn more often. Whatever is drawn, the run stops before the round in which a client would exceed
    epsilon. delta defaults to (all training records)^-1.1. Sizes of clients and who takes part count as public.
    """

    clip_norm: ClipNorm
    noise_multiplier: Positive | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    accountant: Literal["best", "rdp", "pld"] = "best"


class Local(_Table):
    """[local] How a client trains; exactly one of epochs and steps.

    strategy: one client after the other (loop), side by side in one pass (vmap) or from CUDA graphs (graphs), or what
    should be faster; chunk: how many side by side at a time, by default as many as fit into `memory` megabytes. None of
    them changes a result beyond rounding.
    precision: of gradients; weights and sums are float32 throughout. bf16 and tf32 (CUDA only) are faster and less
    precise.
    """

    learning_rate: Positive
    learning_rate_decay: Positive = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    epochs: Steps | None = None
    steps: Steps | None = None
    batch_size: Samples
    strategy: Literal["auto", "loop", "vmap", "graphs"] = "auto"
    chunk: Clients | None = None
    memory: Count | None = None
    precision: Literal["float32", "bf16", "tf32"] = "float32"
    record: Record | None = None


class MethodTable(_Table):
    """[method] Which method; sparse ones take a fraction `keep` or a number `k` of coordinates.

    `options` are the compressor's own (`dpfed.compress`); `shared` gives all clients of a round the same noise or
    direction (FedMRN, FedScalar); `error_feedback` adds what compression lost to the client's next update. FedMRN's
    ablations: `progressive`, `stochastic`, `train_masked` = false. FedSparsify: who purges.
    """

    name: str
    keep: float | None = None
    k: int | None = None
    shared: bool = False
    error_feedback: bool = False
    progressive: bool = True
    stochastic: bool = True
    train_masked: bool = True
    purge: Literal["server", "clients"] | None = None
    options: dict[str, bool | int | float | str] = {}


class Mask(_Table):
    """[mask] FedPM and FedMask: frozen weights, initial scores N(0, spread^2), probabilities kept in [edge, 1-edge].

    Clients train under fresh coins in every batch, or (forward = "mean") under the mean of all masks; the network that
    is evaluated has a sampled mask, the threshold at 1/2, or the mean of all masks.
    """

    edge: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    spread: Annotated[float, Field(ge=0, le=LARGEST_FLOAT)] = 1.0
    constant: Literal["kaiming", "published"] = "kaiming"
    scale: Positive = 1.0
    biases: Literal["masked", "absent"] = "masked"
    gradient: Literal["straight-through", "published"] = "straight-through"
    forward: Literal["coins", "mean"] = "coins"
    readout: Literal["sample", "threshold", "mean"] = "sample"


class Adaptive(_Table):
    """[privacy.adaptive] Let the clip norm follow a quantile of the norms (Andrew et al. 2021)."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    rate: Positive = 0.2
    count_noise_std: Positive | None = None


class PrivacyTable(_Table):
    """[privacy] A noise multiplier, or an epsilon to calibrate one for, or both (then the run stops at epsilon).

    Coins (fedpm; with noise = "coins" and an `edge` also stochastic-sign and fedmrns): a clip norm of the move of the
    coins' probabilities, or an epsilon to calibrate it for, or both; `release` says what is seen, the sum of
    exactly `slots` uploads or every upload; `noise_std` is added to the probabilities before the coins. `clip_metric`
    "fisher": clip_norm and linf_clip are of the move over sqrt(theta (1 - theta)), theta the public probability.
    `others`: whether the other clients of a sum are relied on to keep to linf_clip ("near-reference", which a run with
    plain sums does itself) or only to the edge ("anywhere", the default of secure sums).

    Integer noise (discrete-gaussian, skellam) is added to integers before their sum is reduced modulo 2^b: the only
    noise on secure sums (aggregation.kind), which take discrete-gaussian where none is given; elsewhere the default is
    gaussian. In shares of the clients (placement), or in a secure sum, Poisson sampling has sums of `slots` uploads:
    those who were drawn and others that send noise only, or zeros. Missing shares: each is sized so
    that the noise suffices with aggregation.tolerance of them missing, or what arrived is charged.
    """

    clip_norm: ClipNorm | None = None
    noise: Literal["gaussian", "discrete-gaussian", "skellam", "coins"] | None = None
    edge: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    linf_clip: ClipNorm | None = None
    clip_metric: Literal["euclidean", "fisher"] = "euclidean"
    others: Literal["near-reference", "anywhere"] | None = None
    noise_std: Annotated[float, Field(ge=0, le=LARGEST_FLOAT)] | None = None
    release: Literal["sum", "uploads"] | None = None
    slots: Clients | None = None
    correction: Literal["none", "linear", "invert"] | None = None
    noise_multiplier: Positive | None = None
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    adjacency: Literal["add-remove", "zero-out", "replace-one"] | None = None
    accountant: Literal["best", "rdp", "pld"] = "best"
    placement: Literal["server", "clients"] = "server"
    missing_shares: Literal["sized", "charged"] = "sized"
    adaptive: Adaptive | None = None


class Aggregation(_Table):
    """[aggregation] How uploads are summed, and which clients are lost on the way.

    kind: plain, a trusted sum; masked, pairwise and self masks in Z_2^b with keys from one secret; protocol, the whole
    of Bonawitz et al. 2017. `neighbours` clients share masks with each other (0: all with all); a client's secrets come
    back while more than the fraction `threshold` of its neighbourhood answers.

    dropout: chance that a client is lost in a round, at a random step or at `dropout_at`; `lost` says instead how many
    of the round's clients are lost at each step. Which ones comes from run.seed.

    tolerance: fraction of the uploads that may be missing, beyond it a round is not released. Without one: no limit, or
    where clients add noise shares so many that one round in a thousand ends that way. Refused for private plain sums
    whose noise is not the clients': they never end, since ending would tell how many took part.

    least_participants: the fewest clients that a secure sum may hold. Every client refuses, at every step, a sum of
    fewer. Without one: as many as `tolerance` and `threshold` leave of a round's clients; 2 where their number is
    drawn anew and nothing rests on it (Poisson sampling without [privacy]).

    Numbers become integers: `steps` of them to the clip norm, after a public `rotation` or not; the modulus is the
    least with which a round of rows that do not follow the rotation's signs wraps around with at most
    `wrap_probability`: accuracy rests on it, privacy does not. Without [privacy] updates longer than
    `clip_norm` are clipped to it.
    """

    kind: Literal["plain", "masked", "protocol"] = "plain"
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    dropout_at: Literal["any", "advertise", "share", "upload", "unmask", "late"] = "any"
    lost: dict[Literal["advertise", "share", "upload", "unmask", "late"], _Some] = {}
    tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None
    neighbours: _Some = 0
    threshold: Annotated[float, Field(gt=0.5, le=1)] = 0.6
    least_participants: Annotated[int, Field(ge=2)] | None = None
    steps: Count | None = None
    rotation: bool = True
    wrap_probability: Annotated[float, Field(gt=0, lt=1)] = 1e-6
    clip_norm: ClipNorm | None = None


class Audit(_Table):
    """[audit] Made-up clients for `dpfed audit run`: so many `canaries`, each in a round of its own by a fair coin."""

    canaries: Canaries = 0


class ServerTable(_Table):
    """[server] What the server does with the mean update: a step; or, for masks, the Beta posterior."""

    rule: Literal["step", "posterior"] = "step"
    learning_rate: Positive = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    prior: Annotated[float, Field(ge=1, le=LARGEST_FLOAT)] = 1.0
    reset_every: Annotated[int, Field(ge=0, le=10**15)] = 1


class RunTable(_Table):
    """[run] Seed, device, bookkeeping. `randomness` "secure" takes cohorts and noise from the operating system."""

    seed: Seed = 0
    device: str = "auto"
    group: Clients = 20
    evaluate_every: Count = 1
    randomness: Literal["simulated", "secure"] = "simulated"


class Config(_Table):
    """A whole run."""

    data: Data
    model: Model
    federation: Federation
    local: Local
    method: MethodTable
    mask: Mask | None = None
    privacy: PrivacyTable | None = None
    aggregation: Aggregation = Aggregation()
    audit: Audit = Audit()
    server: ServerTable = ServerTable()
    run: RunTable = RunTable()

    def to_dict(self) -> dict[str, Any]:
        """Plain tables without the keys that are not set, as TOML wants them."""
        return _without_none(self.model_dump(mode="json"))


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked; ConfigError if it cannot be read."""
    try:
        return tomllib.loads(read_text(path, at_most=LARGEST_CONFIGURATION))
    except OSError as error:
        raise ConfigError(f"{path}: the configuration cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: also numbers of 5000 digits
        raise ConfigError(f"{path}: not TOML ({error}).") from None


def parse(tables: Mapping[str, Any], *, source: str) -> Config:
    """The checked configuration; every wrong or unknown key in one ConfigError that names `source` and the key."""
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        problems = "\n  ".join(_problem(item) for item in error.errors(include_url=False))
        raise ConfigError(f"{source}:\n  {problems}") from None


def parse_written(tables: Mapping[str, Any], *, source: str) -> Config:
    """The configuration that a run wrote into its folder. A setting that its version did not have yet counts as today's
    default, but for data.partition_seed: before there was one, run.seed divided the data."""
    data, run = tables.get("data"), tables.get("run")
    if isinstance(data, Mapping) and isinstance(run, Mapping) and "seed" in run and "partition_seed" not in data:
        tables = {**tables, "data": {**data, "partition_seed": run["seed"]}}
    return parse(tables, source=source)


def override(tables: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """`tables` with `table.key=value` settings put in; values are TOML, a bare word is a string."""
    result = _copied(tables)
    for setting in settings:
        path, equals, text = setting.partition("=")
        *tables_on_the_way, key = path.strip().split(".")
        if not equals or not tables_on_the_way:
            raise ConfigError(f"--set {setting}: must be table.key=value, as in --set federation.rounds=10.")
        place = result
        for name in tables_on_the_way:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {setting}: {name} is a value, not a table.")
        place[key] = _toml_value(text.strip())
    return result


def flat(tables: Any, path: str = "") -> Any:
    """Nested tables as dotted keys: {"a": {"b": 1}} and {"a.b": 1} mean the same."""
    if not isinstance(tables, Mapping):
        return tables
    found: dict[str, Any] = {}
    for key, value in tables.items():
        name = f"{path}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: value}
    return found


def _copied(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in tables.items()}


def _toml_value(text: str) -> Any:
    for written in (text, text.replace(".", "0.", 1)):  # .2 is not TOML, but people write it
        try:
            return tomllib.loads(f"value = {written}")["value"]
        except (ValueError, RecursionError):
            if not text.lstrip("+-").startswith("."):
                break
    return text


def _problem(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        known = _known_keys(item["loc"][:-1])
        nearest = difflib.get_close_matches(str(item["loc"][-1]), known, n=1, cutoff=0)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        return f"{where}: unknown key; known here: {', '.join(known)}.{hint}"
    if item["type"] == "missing":
        return f"{where}: is missing and has no default."
    return f"{where}={shown(item['input'])}: {item['msg']}."


def shown(value: Any) -> str:
    """The value as messages show it: its beginning, where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:  # an integer of 5000 digits, a table in a table in a table ...
        return f"a value that cannot be shown ({type(error).__name__})"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _known_keys(location: Sequence[Any]) -> list[str]:
    tables: dict[tuple[str, ...], type[BaseModel]] = {
        (): Config,
        ("data",): Data,
        ("model",): Model,
        ("federation",): Federation,
        ("local",): Local,
        ("local", "record"): Record,
        ("method",): MethodTable,
        ("mask",): Mask,
        ("privacy",): PrivacyTable,
        ("privacy", "adaptive"): Adaptive,
        ("aggregation",): Aggregation,
        ("audit",): Audit,
        ("server",): ServerTable,
        ("run",): RunTable,
    }
    table = tables.get(tuple(str(part) for part in location))
    return sorted(table.model_fields) if table else []
