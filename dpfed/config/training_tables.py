"""Tables [local], [local.record], [method] and [mask]: training of a client, and its upload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dpfed.config import limits

LIST = "[...]"
"""Text in messages for a local.schedule that is a list of factors."""

_Strategy = Annotated[
    Literal["auto", "loop", "vmap"], BeforeValidator(lambda given: "vmap" if given == "graphs" else given)
]
_Factors = Annotated[tuple[limits.Positive, ...], Field(strict=False, min_length=1, max_length=limits.MOST_FACTORS)]


class RecordTable(limits.Table):
    """DP-SGD inside every client; the unit of privacy is a record.

    Give a noise multiplier, an epsilon to calibrate a noise multiplier, or both. Calibration assumes a client of the
    worst size, and a number of its rounds. That number is all rounds with federation.sampling = "all", otherwise one
    that no client exceeds with probability 99%. The run always stops before the round in which a client would exceed
    epsilon. Numbers of records of clients, and the rounds in which they take part, count as public.
    """

    clip_norm: limits.ClipNorm
    """L2 clip norm of one record's gradient."""

    noise_multiplier: limits.Positive | None = None
    """Noise on each batch's sum has standard deviation noise_multiplier times clip_norm."""

    noise: Literal["gaussian", "discrete-gaussian"] = "gaussian"
    """Noise on a batch's sum. discrete-gaussian: clipped gradients are rounded to integers, and exactly drawn integer
    noise is added to their sum; the default with run.release = true."""

    steps: limits.Positive | None = None
    """Number of integer steps per clip_norm, for discrete-gaussian noise; default: the smallest number for which
    rounding increases the norm bound of a clipped gradient by at most 1%."""

    epsilon: limits.Positive | None = None
    """Privacy budget of the records of every client: the epsilon that none of them exceeds."""

    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Default: the smaller of (all training records)^-1.1 and 1e-5."""

    accountant: Literal["best", "rdp", "pld"] = "best"
    """Accountant of the stated epsilon: the smallest upper bound, Renyi DP, or privacy loss distributions."""

    @model_validator(mode="after")
    def _require_integer_noise_for_steps(self) -> Self:
        if self.steps is not None and self.noise == "gaussian":
            raise ValueError("local.record.steps: requires local.record.noise='discrete-gaussian'. Remove it")
        return self


def _rate_texts(given: object, path: str = "") -> object:
    """Return a table of factors by pattern as a list of texts PATTERN=FACTOR; any other value unchanged."""
    if not isinstance(given, Mapping):
        return given
    texts: list[object] = []
    for key, value in given.items():
        name = f"{path}{key}"
        inner = _rate_texts(value, f"{name}.")
        texts += inner if isinstance(inner, list) else [f"{name}={value!r}"]
    return texts


_Rates = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[^=]+=[0-9.eE+-]+$", max_length=500)], ...],
    Field(strict=False, min_length=1, max_length=limits.MOST_FACTORS),
    BeforeValidator(_rate_texts),
]


_Patterns = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=500)], ...],
    Field(strict=False, min_length=1, max_length=limits.MOST_FACTORS),
]


class _CommonLocal(limits.Table):
    """Local training of a client; give exactly one of epochs and steps."""

    learning_rate: limits.Positive
    """Learning rate of the client's optimizer, in round 0."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of SGD."""

    loss: str | None = None
    """Loss of the training: cross-entropy for labels; mse, l1, huber or binary-cross-entropy for numeric targets,
    averaged over the numbers of a target; or a registered loss of your code (`dpfed.clients.losses.register`). Default:
    cross-entropy for labels, mse for numeric targets. "own" stands for a loss that was passed in Python."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimizer of a client's steps; its state begins anew in every round."""

    weight_decay: Annotated[float, Field(ge=0, le=limits.LARGEST_FLOAT)] = 0.0
    """Weight decay: an L2 term of the gradient (sgd, adam), or decoupled from the gradient (adamw)."""

    proximal: Annotated[float, Field(ge=0, le=limits.LARGEST_FLOAT)] = 0.0
    """Weight mu of FedProx's proximal term: half of mu times the squared distance from the broadcast weights is
    added to a client's loss."""

    rates: _Rates | None = None
    """Factors of the learning rate by layer, each PATTERN=FACTOR, as in ["head.*=10", "*.bias=0.1"]: the first pattern
    that matches a parameter's name counts, and other parameters have the factor 1. Factor 0 leaves a layer as
    broadcast; it is sent and noised like the others."""

    personal: _Patterns | None = None
    """Patterns of parameter names, as in ["head.*"], of layers that stay with each client, which continues from its own
    in its next round. They are never sent; the saved and evaluated model has those of the start
    (`Finished.personal_model`: those of a client). With [privacy]: as method.error_feedback."""

    epochs: limits.Steps | None = None
    """Number of passes over a client's samples in a round."""

    steps: limits.Steps | None = None
    """Number of batches of a client in a round, instead of epochs."""

    batch_size: limits.Samples
    """Number of samples of a batch; under [local.record] the expected number."""

    strategy: _Strategy = "auto"
    """Execution of local training. loop: one client after another; vmap: several clients in one vectorised pass; auto:
    the strategy that is expected to be faster, or a loop for the training that docs/limitations.md lists with its
    reasons. No method and no compressor requires a loop.

    Results agree up to rounding. The value "graphs" of earlier versions is read as "vmap".
    """

    chunk: limits.Clients | None = None
    """Number of clients that train in one vectorised pass; default: the number that fits into local.memory."""

    memory: limits.Count | None = None
    """Megabytes of memory for clients that train in one vectorised pass; default: a quarter of main memory, or of a
    GPU's memory."""

    precision: Literal["float32", "bf16", "tf32"] = "float32"
    """Precision in which gradients are computed; weights and sums are float32. bf16 and tf32 (CUDA only) are faster and
    less precise."""

    record: RecordTable | None = None
    """Table [local.record], for record-level privacy."""


class ConstantLocal(_CommonLocal):
    """A learning rate that is constant, or multiplied by a factor after every round."""

    schedule: Literal["constant"] = "constant"
    """Learning rate over rounds: multiplied by learning_rate_decay after every round."""

    learning_rate_decay: limits.Positive = 1.0
    """Factor by which the learning rate is multiplied after every round, or with schedule = "step" after every
    schedule_rounds rounds."""


class StepLocal(_CommonLocal):
    """A learning rate that falls in steps."""

    schedule: Literal["step"]
    """step: the learning rate is multiplied by learning_rate_decay every schedule_rounds rounds."""

    learning_rate_decay: limits.Positive = 1.0
    """Factor by which the learning rate is multiplied after every round, or with schedule = "step" after every
    schedule_rounds rounds."""

    schedule_rounds: limits.Rounds
    """Number of rounds between two changes of the learning rate with schedule = "step"."""


class ScheduledLocal(_CommonLocal):
    """A learning rate given for every round."""

    schedule: Literal["cosine", "linear"] | _Factors
    """Factor of the learning rate over rounds. cosine, linear: it falls to 0 at round federation.rounds. A list gives
    the factor of each round; its last factor applies to all later rounds.
    """


def _kind_of_schedule(table: object) -> str:
    """Return the kind of table that local.schedule selects; `LIST` for a list of factors."""
    schedule = limits.value_of_key(table, "schedule")
    return LIST if isinstance(schedule, list | tuple) else str(schedule or "constant")


Local = Annotated[
    Annotated[ConstantLocal, Tag("constant")]
    | Annotated[StepLocal, Tag("step")]
    | Annotated[ScheduledLocal, Tag("cosine")]
    | Annotated[ScheduledLocal, Tag("linear")]
    | Annotated[ScheduledLocal, Tag("[...]")],
    Discriminator(_kind_of_schedule),
]
"""Table [local]; local.schedule selects the kind of table."""


class MethodTable(limits.Table):
    """Method of a run; sparse methods require the fraction `keep` or the number `k` of coordinates that are sent."""

    name: str
    """Name of a method that `dpfed methods` lists."""

    keep: float | None = None
    """Fraction of coordinates that are sent, in (0, 1]."""

    k: int | None = None
    """Number of coordinates that are sent, instead of method.keep."""

    shared: bool = False
    """True: all clients of a round use the same random noise (FedMRN) or the same directions (FedScalar)."""

    stays: bool = False
    """True: the random coordinates (fed-smp-randk) or shared directions (fedscalar) of the first round are used in all
    rounds. Noise that is correlated over rounds requires this. For fedscalar, set method.shared, too.
    """

    noiseless: bool = False
    """True: Fed-SMP without noise and without a guarantee, for comparisons. Clients share the coordinates and have
    equal weights. Rows are clipped only if aggregation.clip_norm is set; under Poisson sampling sums are divided by the
    number of uploads. Not allowed with [privacy].
    """

    error_feedback: bool = False
    """True: the part of a client's update that compression removed is added to the client's next update.

    With [privacy]: for uploads that a trusted server decodes, under 'poisson', 'all' and schedules, with adjacency
    add-remove or zero-out.
    """

    public_epochs: limits.Steps | Literal["clients", "client-steps"] = 1
    """Number of passes over the public samples by which the server chooses the top coordinates of a round. "clients":
    local.epochs passes (local.steps batches), the local update period of clients, as in the Fed-SMP paper.
    "client-steps": the number of steps of one client, as up to version 0.2. Tune this key on public samples, never on
    clients' samples: the coordinates would reveal the choice.
    """

    progressive: bool = True
    """True: FedMRN's progressive masking; false: the ablation without it."""

    stochastic: bool = True
    """True: FedMRN's stochastic masking; false: the ablation without it."""

    train_masked: bool = True
    """True: FedMRN trains under the mask; false: the mask is drawn after training."""

    purge: Literal["server", "clients"] | None = None
    """Party that sets the smallest weights to zero in FedSparsify; default: server."""

    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Options of the compressor (`dpfed.compress`)."""


class MaskTable(limits.Table):
    """FedPM and FedMask: clients train the probabilities of a mask over frozen random weights."""

    edge: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """c: probabilities are clipped to [c, 1 - c]. A run of fedmask with Adam warns before round 1 if a client's steps
    cannot carry a score from such an end past 0, or no score past 0."""

    bound: limits.Positive | None = None
    """Under [privacy], clients send a stochastic sign of this size for the move of each probability, not a sample of
    the probability. The sign is 1 with probability 1/2 + move / (2 bound), clipped to [privacy.edge, 1 - privacy.edge].
    """

    spread: Annotated[float, Field(ge=0, le=limits.LARGEST_FLOAT)] = 1.0
    """Standard deviation of the initial scores of the mask, which are normal with mean 0."""

    constant: Literal["kaiming", "published", "even"] = "kaiming"
    """Size s of the frozen weights, which are +s or -s. kaiming: sqrt(2 / fan_in); published: e sqrt(1 / fan_in), as in
    the published code; even: one size for all layers, the geometric mean of sqrt(2 / fan_in)."""

    scale: limits.Positive = 1.0
    """Factor of the frozen weights."""

    biases: Literal["masked", "absent"] = "masked"
    """Treatment of biases. masked: frozen and masked like weights; absent: the network has no biases."""

    gradient: Literal["straight-through", "published"] = "straight-through"
    """Estimator of the gradient through a sampled mask: straight-through, or that of the published code."""

    forward: Literal["coins", "mean"] = "coins"
    """Mask during local training: drawn anew for every batch (`coins`), or the mean of all masks (`mean`)."""

    readout: Literal["sample", "threshold", "mean"] = "sample"
    """Mask of the network that is evaluated: a sampled mask, the threshold of probabilities at 1/2, or the mean of all
    masks."""
