"""[local], [local.record], [method] and [mask]: training of a client, and its upload."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dpfed.config.limits import LARGEST_FLOAT, MOST_FACTORS, Clients, ClipNorm, Count, Positive, Rounds, Samples, Steps
from dpfed.config.table import Table, chosen

LIST = "[...]"
"""Name in messages for the kind local.schedule = [...]."""

_Strategy = Annotated[
    Literal["auto", "loop", "vmap"], BeforeValidator(lambda given: "vmap" if given == "graphs" else given)
]
_Factors = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1, max_length=MOST_FACTORS)]


class Record(Table):
    """DP-SGD inside every client; the unit is a record.

    Give a noise multiplier, or an epsilon to calibrate one, or both. Calibration is for clients of the worst size and
    their number of rounds: all with federation.sampling = "all", else a number that with probability 99% no client
    exceeds. In every case the run stops before the round in which a client would exceed epsilon. Sizes of clients and
    their participation count as public.
    """

    clip_norm: ClipNorm
    """L2 clip norm of one record's gradient."""

    noise_multiplier: Positive | None = None
    """Noise on each batch's sum has standard deviation noise_multiplier times clip_norm."""

    noise: Literal["gaussian", "discrete-gaussian"] = "gaussian"
    """discrete-gaussian: clipped gradients are rounded to whole numbers, and integer noise is added to their sum, drawn
    exactly; the default with run.release = true."""

    steps: Positive | None = None
    """discrete-gaussian: integer steps per clip_norm; default: the least number with which rounding lengthens a clipped
    gradient's bound by at most 1%."""

    epsilon: Positive | None = None
    """The budget of every client's records."""

    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Default: the smaller of (all training records)^-1.1 and 1e-5."""

    accountant: Literal["best", "rdp", "pld"] = "best"
    """Accountant of the stated epsilon: the smallest upper bound, Renyi DP, or privacy loss distributions."""

    @model_validator(mode="after")
    def _steps_of_integers(self) -> Self:
        if self.steps is not None and self.noise == "gaussian":
            raise ValueError("local.record.steps: is for local.record.noise='discrete-gaussian'. Remove it")
        return self


class _Local(Table):
    """Local training of a client; exactly one of epochs and steps."""

    learning_rate: Positive
    """Learning rate of the client's optimizer, in round 0."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Momentum of SGD."""

    loss: str | None = None
    """cross-entropy (of labels), mse, l1, huber or binary-cross-entropy (of numbers, the mean over those of a target),
    or one of your own (`dpfed.clients.losses.register`); default: cross-entropy for labels, mse for numeric targets.
    "own" is a loss that was given in Python."""

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    """Optimizer of a client's steps; its state begins anew in every round."""

    weight_decay: Annotated[float, Field(ge=0, le=LARGEST_FLOAT)] = 0.0
    """L2 in the gradient (sgd, adam), or decoupled from it (adamw)."""

    epochs: Steps | None = None
    """Passes over a client's samples in a round."""

    steps: Steps | None = None
    """Batches of a client in a round, instead of epochs."""

    batch_size: Samples
    """Samples of a step; under [local.record] the expected number."""

    strategy: _Strategy = "auto"
    """One client after the other (loop), side by side in one pass (vmap), or the one that should be faster (auto).

    Results agree up to rounding. "graphs" of earlier versions is read as "vmap".
    """

    chunk: Clients | None = None
    """Number of clients that train side by side; default: as local.memory allows."""

    memory: Count | None = None
    """Megabytes for clients side by side; default: a quarter of main memory, or half of the free memory of a GPU."""

    precision: Literal["float32", "bf16", "tf32"] = "float32"
    """Precision of gradients; weights and sums are float32. bf16 and tf32 (CUDA only) are faster and less precise."""

    record: Record | None = None
    """Table [local.record]."""


class ConstantLocal(_Local):
    """A learning rate that falls by one factor after every round, or is constant."""

    schedule: Literal["constant"] = "constant"
    """Learning rate over rounds: multiplied by learning_rate_decay after every round."""

    learning_rate_decay: Positive = 1.0
    """Factor of the learning rate after every round, or under schedule = "step" every schedule_rounds."""


class StepLocal(_Local):
    """A learning rate that falls in steps."""

    schedule: Literal["step"]
    """step: the learning rate is multiplied by learning_rate_decay every schedule_rounds rounds."""

    learning_rate_decay: Positive = 1.0
    """Factor of the learning rate after every round, or under schedule = "step" every schedule_rounds."""

    schedule_rounds: Rounds
    """Rounds between two steps of schedule = "step"."""


class ScheduledLocal(_Local):
    """A learning rate given for every round."""

    schedule: Literal["cosine", "linear"] | _Factors
    """cosine and linear fall to 0 at federation.rounds; a list has a factor for each round, whose last one is kept
    for later rounds.
    """


def _schedule(table: object) -> str:
    """Return the kind of local.schedule; `LIST` for a list of factors."""
    schedule = chosen(table, "schedule")
    return LIST if isinstance(schedule, list | tuple) else str(schedule or "constant")


Local = Annotated[
    Annotated[ConstantLocal, Tag("constant")]
    | Annotated[StepLocal, Tag("step")]
    | Annotated[ScheduledLocal, Tag("cosine")]
    | Annotated[ScheduledLocal, Tag("linear")]
    | Annotated[ScheduledLocal, Tag("[...]")],
    Discriminator(_schedule),
]
"""[local], by schedule."""


class MethodTable(Table):
    """Method of a run; sparse methods need a fraction `keep` or a number `k` of coordinates."""

    name: str
    """A method that `dpfed methods` lists."""

    keep: float | None = None
    """The fraction of coordinates that is sent, in (0, 1]."""

    k: int | None = None
    """The number of coordinates that is sent, instead of method.keep."""

    shared: bool = False
    """True: all clients of a round have the same noise or direction (FedMRN, FedScalar)."""

    stays: bool = False
    """True: the random coordinates (fed-smp-randk) or shared directions (fedscalar) of the first round are kept for
    the run, which noise correlated over rounds requires. Directions must be shared (method.shared).
    """

    noiseless: bool = False
    """Fed-SMP without noise and without a guarantee, for comparisons: clients share the coordinates and have equal
    weights. Rows are clipped only if aggregation.clip_norm is set; under Poisson sampling sums are divided by the
    number of uploads. Not allowed with [privacy].
    """

    error_feedback: bool = False
    """True: the part of a client's update that compression removed is added to the client's next update.

    With [privacy]: for uploads that a trusted server decodes, under 'poisson', 'all' and schedules, with adjacency
    add-remove or zero-out.
    """

    public_epochs: Steps | Literal["clients", "client-steps"] = 1
    """Passes of the server over its public samples in a round, which choose the top coordinates. "clients": the
    clients' local update period, local.epochs passes (local.steps batches), as in the Fed-SMP paper; "client-steps":
    the number of steps of one client, as up to version 0.2. Tune it on public samples, never on clients' samples:
    the coordinates would reveal the choice.
    """

    progressive: bool = True
    """FedMRN's progressive masking; false: its ablation."""

    stochastic: bool = True
    """FedMRN's stochastic masking; false: its ablation."""

    train_masked: bool = True
    """FedMRN's training under the mask; false: the mask is drawn after training."""

    purge: Literal["server", "clients"] | None = None
    """The party that purges weights in FedSparsify; default: server."""

    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Options of the compressor (`dpfed.compress`)."""


class Mask(Table):
    """FedPM and FedMask: clients train the probabilities of a mask over frozen random weights."""

    edge: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """c: probabilities are kept in [c, 1 - c]."""

    bound: Positive | None = None
    """Under [privacy]: clients send a stochastic sign of this size for the move of each probability, not a sample of
    the probability. The sign is 1 with probability 1/2 + move / (2 bound), kept in [privacy.edge, 1 - privacy.edge].
    """

    spread: Annotated[float, Field(ge=0, le=LARGEST_FLOAT)] = 1.0
    """Initial scores are N(0, spread^2)."""

    constant: Literal["kaiming", "published", "even"] = "kaiming"
    """The size s of frozen weights +s and -s: sqrt(2 / fan_in), or e sqrt(1 / fan_in) as in the published code, or one
    size in all layers, the geometric mean of sqrt(2 / fan_in)."""

    scale: Positive = 1.0
    """Factor of the frozen weights."""

    biases: Literal["masked", "absent"] = "masked"
    """Treatment of biases: frozen and masked as weights are, or left out."""

    gradient: Literal["straight-through", "published"] = "straight-through"
    """The gradient through a sampled mask: straight through, or as in the published code."""

    forward: Literal["coins", "mean"] = "coins"
    """Clients train under a mask drawn anew for every batch, or under the mean of all masks."""

    readout: Literal["sample", "threshold", "mean"] = "sample"
    """The network that is evaluated: a sampled mask, the threshold at 1/2, or the mean of all masks."""
