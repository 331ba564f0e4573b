"""[local], [local.record], [method] and [mask]: how a client trains, and what it sends."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from dpfed.config.limits import LARGEST_FLOAT, MOST_FACTORS, Clients, ClipNorm, Count, Positive, Rounds, Samples, Steps
from dpfed.config.table import Table, chosen

LIST = "[...]"
"""The kind of local.schedule = [...], in messages."""

_Strategy = Annotated[
    Literal["auto", "loop", "vmap"], BeforeValidator(lambda given: "vmap" if given == "graphs" else given)
]
_Factors = Annotated[tuple[Positive, ...], Field(strict=False, min_length=1, max_length=MOST_FACTORS)]


class Record(Table):
    """DP-SGD inside every client; the unit is a record.

    A noise multiplier, or an epsilon to calibrate one for, or both. Calibrated for clients of the worst size in the
    rounds that they take part in: all with federation.sampling = "all", else so many that with probability 99% no
    client is drawn more often. Whatever is drawn, the run stops before the round in which a client would exceed
    epsilon. Sizes of clients and who takes part count as public.
    """

    clip_norm: ClipNorm
    """L2 clip norm of one record's gradient."""

    noise_multiplier: Positive | None = None
    """Noise on each batch's sum has standard deviation noise_multiplier times clip_norm."""

    noise: Literal["gaussian", "discrete-gaussian"] = "gaussian"
    """discrete-gaussian: clipped gradients are rounded to whole numbers, and integer noise is added to their sum, drawn
    exactly; the default with run.release = true."""

    steps: Positive | None = None
    """discrete-gaussian: integer steps per clip_norm; default: the least with which rounding lengthens a clipped
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
    or one of your own (`dpfed.clients.losses.register`); default: cross-entropy for labels, mse for targets that are no
    classes. "own" stands for one that was given in Python."""

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
    """One client after the other (loop), side by side in one pass (vmap), or what should be faster. Changes nothing
    beyond rounding. "graphs" of earlier versions is read as "vmap"."""

    chunk: Clients | None = None
    """Number of clients that train side by side; default: as many as fit into local.memory."""

    memory: Count | None = None
    """Megabytes that clients side by side may take; default: a quarter of main memory, or half of what is
    free on a GPU."""

    precision: Literal["float32", "bf16", "tf32"] = "float32"
    """Precision of gradients; weights and sums are float32. bf16 and tf32 (CUDA only) are faster and less precise."""

    record: Record | None = None
    """[local.record]."""


class ConstantLocal(_Local):
    """A learning rate that falls by one factor after every round, or does not fall."""

    schedule: Literal["constant"] = "constant"
    """The learning rate over rounds: multiplied by learning_rate_decay after every round."""

    learning_rate_decay: Positive = 1.0
    """The learning rate is multiplied by it after every round, or under schedule = "step" every schedule_rounds."""


class StepLocal(_Local):
    """A learning rate that falls in steps."""

    schedule: Literal["step"]
    """step multiplies it by learning_rate_decay every schedule_rounds rounds."""

    learning_rate_decay: Positive = 1.0
    """The learning rate is multiplied by it after every round, or under schedule = "step" every schedule_rounds."""

    schedule_rounds: Rounds
    """Rounds between two steps of schedule = "step"."""


class ScheduledLocal(_Local):
    """A learning rate whose whole course the schedule says."""

    schedule: Literal["cosine", "linear"] | _Factors
    """cosine and linear fall to 0 at federation.rounds; a list has a factor for each round, the last one holds on."""


def _schedule(table: object) -> str:
    """Return the kind of local.schedule; `LIST` for factors."""
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
    """Method; sparse ones take a fraction `keep` or a number `k` of coordinates."""

    name: str
    """A method that `dpfed methods` lists."""

    keep: float | None = None
    """The fraction of coordinates that is sent, in (0, 1]."""

    k: int | None = None
    """The number of coordinates that is sent, instead of method.keep."""

    shared: bool = False
    """All clients of a round have the same noise or direction (FedMRN, FedScalar)."""

    stays: bool = False
    """The random coordinates (fed-smp-randk) or shared directions (fedscalar) of the first round stay for the run, as
    noise that is taken back over rounds needs them. Directions must be shared (method.shared)."""

    noiseless: bool = False
    """Fed-SMP without noise and without a guarantee, for comparisons: clients share the coordinates and count the same.
    Rows are clipped only if aggregation.clip_norm is set; under Poisson sampling sums are divided by the number of
    uploads. Not with privacy."""

    error_feedback: bool = False
    """The rest of a client's update that compression left out is added to its next one. With [privacy]: for uploads
    that a trusted server decodes, under 'poisson', 'all' and schedules, with adjacency add-remove or zero-out."""

    public_epochs: Steps | Literal["clients", "client-steps"] = 1
    """Passes of the server over its public samples in a round, from which the top coordinates follow. "clients": the
    clients' local update period, local.epochs passes (local.steps batches), as the Fed-SMP paper has it;
    "client-steps": the number of steps of one client, as up to version 0.2. Choose it on public samples, never on
    clients' samples: the coordinates would reveal the choice."""

    progressive: bool = True
    """FedMRN's progressive masking; false: its ablation."""

    stochastic: bool = True
    """FedMRN's stochastic masking; false: its ablation."""

    train_masked: bool = True
    """FedMRN's training under the mask; false: the mask is drawn after training."""

    purge: Literal["server", "clients"] | None = None
    """The party that purges weights in FedSparsify; default: server."""

    options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """The compressor's own options (`dpfed.compress`)."""


class Mask(Table):
    """FedPM and FedMask: clients train the probabilities of a mask over frozen random weights."""

    edge: Annotated[float, Field(gt=0, lt=0.5)] = 0.01
    """c: probabilities are kept in [c, 1 - c]."""

    bound: Positive | None = None
    """Under [privacy]: a coin says how far a client moves its probability, as a stochastic sign of this size does, and
    not the probability itself. Its own probability is 1/2 + move / (2 bound), in [privacy.edge, 1 - privacy.edge]."""

    spread: Annotated[float, Field(ge=0, le=LARGEST_FLOAT)] = 1.0
    """Initial scores are N(0, spread^2)."""

    constant: Literal["kaiming", "published", "even"] = "kaiming"
    """The size s of frozen weights +s and -s: sqrt(2 / fan_in), or e sqrt(1 / fan_in) as in the published code, or one
    size in all layers, the geometric mean of sqrt(2 / fan_in)."""

    scale: Positive = 1.0
    """Frozen weights are multiplied by it."""

    biases: Literal["masked", "absent"] = "masked"
    """Biases are frozen and masked as weights are, or left out."""

    gradient: Literal["straight-through", "published"] = "straight-through"
    """The gradient through a sampled mask: straight through, or as in the published code."""

    forward: Literal["coins", "mean"] = "coins"
    """Clients train under a mask drawn anew for every batch, or under the mean of all masks."""

    readout: Literal["sample", "threshold", "mean"] = "sample"
    """The network that is evaluated: a sampled mask, the threshold at 1/2, or the mean of all masks."""
