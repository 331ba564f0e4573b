"""Tables [data], [model] and [federation]: samples, network, and clients that take part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from accounting.mechanisms.samplings.planned import SAMPLING_CLASSES
from dpfed.config.limits import MOST_LAYERS, MOST_SAMPLES, Clients, Count, Positive, Rounds, Samples, Table, Units


class _CommonData(Table):
    """Samples, and their partition into clients."""

    name: str
    """Name of a built-in or registered data set (`dpfed.data`), or the path of your data.

    A path is a .safetensors, .npz or .csv file, or a folder of Parquet files or of a Hugging Face data set, whose name
    ends in a slash (docs/data.md).
    """

    root: str | None = None
    """Folder that contains the data set; default: $DPFED_DATA_DIR, or the current folder for your files."""

    inputs: tuple[str, ...] | None = Field(default=None, strict=False, min_length=1)
    """Columns that form a sample's input, in a CSV file or a folder of tables: numbers, lists of numbers, or one column
    of images."""

    label: str | None = None
    """Column with a sample's class, or with a number to predict."""

    client: str | None = None
    """Column that names a sample's client, for data.partition = "natural"."""

    vocabulary: dict[str, Annotated[tuple[str, ...], Field(strict=False, min_length=1)]] | None = None
    """Values of columns of text, by column: { sex = ["f", "m"] }. Each value becomes a column of 0 and 1; a gap or an
    undeclared value becomes zeros. Like fill and range, they are public and must not come from the samples."""

    fill: dict[str, Annotated[float, Field(strict=False)]] | None = None
    """Numbers that replace gaps, by column: { pressure = 120 }. A further column of 0 and 1 marks gaps."""

    range: dict[str, Annotated[tuple[float, float], Field(strict=False)]] | None = None
    """Intervals of columns of numbers: { age = [0, 100] }. Numbers are clipped to it and scaled to 0 to 1."""

    classes: Count | Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """Number of classes of your file, unless its metadata gives it, or the names of the classes if the column of labels
    contains text. Both are public. A file with train_targets instead of train_labels predicts numbers and has no
    classes.
    """

    ignored: int | None = None
    """Label of your file that neither loss nor accuracy counts, such as -100 for padding or 255 in images. It is
    public."""

    features: Literal["scattering"] | None = None
    """scattering: images are replaced by their wavelet scattering, fixed features on which a small model learns with
    little noise. A linear model is model.name = "mlp" with model.hidden = []. The model's input is
    `dpfed.data.scattering` of an image.
    """

    orientations: Annotated[int, Field(ge=2, le=16)] = 8
    """Number L of orientations of the scattering, which computes (1 + L)^2 features of every block of 4 x 4 pixels."""

    train_samples: Count | None = None
    """Largest number of training samples; if the data set has more, data.partition_seed draws them."""

    test_samples: Count | None = None
    """Largest number of test samples; if the data set has more, data.partition_seed draws them."""

    validation: Count | None = None
    """Number of training samples that are set aside for the metric validation_accuracy; no client has them."""

    public: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    """Number of samples that serve as public data (fed-smp-topk), taken from data.public_from, or else from the
    training half. In the latter case the summary states that they are not protected.
    """

    public_from: str | None = None
    """Data set of the public samples, if they are not taken from data.name."""

    partition_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the division of samples among clients, independent of run.seed: runs that differ in run.seed have the
    same clients.
    """


class PlainData(_CommonData):
    """Samples divided evenly at random, by the data set's clients, or by the nodes that store them."""

    partition: Literal["iid", "natural", "nodes"] = "iid"
    """Division of samples among clients. iid: evenly at random; natural: by the data set's clients (roles, the
    column train_clients); nodes: every node of a deployment has local samples, and only the test half and public
    samples of data.name are used.
    """


class DirichletData(_CommonData):
    """Samples of each label divided by shares from Dirichlet(alpha)."""

    partition: Literal["dirichlet"]
    """Samples of each label are divided by shares from Dirichlet(alpha)."""

    alpha: Positive
    """Concentration of the Dirichlet distribution: the smaller alpha is, the fewer labels a client has."""


class LabelsData(_CommonData):
    """Clients with a fixed number of labels, or at most that number."""

    partition: Literal["labels", "fedpm"]
    """labels: every client has exactly `labels` labels; fedpm: every client has at most `labels`
    labels, and a share of the samples that is proportional to a whole number from 10 to 100."""

    labels: Count
    """Number of labels of a client, for partition 'labels' and 'fedpm'."""


class ResampledData(_CommonData):
    """Clients whose samples are drawn with replacement from all samples."""

    partition: Literal["resampled"]
    """Every client has `samples` samples, drawn from all samples with replacement; there may be millions of clients."""

    samples: Samples
    """Number of samples of a client, for partition 'resampled'."""


DataTable = Annotated[PlainData | DirichletData | LabelsData | ResampledData, Field(discriminator="partition")]
"""Table [data]; data.partition selects the kind of table."""


class ModelTable(Table):
    """Network of a run."""

    name: str
    """Name of a built-in network (`dpfed.models`), or of a network that your code registers."""

    hidden: tuple[Units, ...] | None = Field(default=None, strict=False, max_length=MOST_LAYERS)
    """Widths of the hidden layers (mlp, char-lstm)."""


class _CommonFederation(Table):
    """Clients, and the sampling of those that take part in a round."""

    clients: Clients
    """n, the number of all clients."""

    cohort: Clients
    """Number of clients of a round: the expected number under 'poisson', the exact number under 'fixed'. Under 'all' it
    is ignored, because all n clients take part."""

    rounds: Rounds
    """T, the largest number of rounds; a privacy budget can end the run earlier."""


class _WithoutLanes(_CommonFederation):
    """Clients that take part without lanes."""

    lanes: ClassVar[None] = None
    lane_secrecy: ClassVar[str] = "public"


if TYPE_CHECKING:
    _PlainSampling = str
else:  # names of the samplers without keys of their own
    _PlainSampling = Literal[
        tuple(name for name, one in SAMPLING_CLASSES.items() if not one.table_keys and one.run_instead is None)
    ]


class PlainFederation(_WithoutLanes):
    """Cohorts that are drawn anew in each round, or by a schedule of many rounds."""

    sampling: _PlainSampling = "poisson"
    """Sampling of a round's cohort. poisson: every client independently with probability cohort / clients; fixed:
    exactly `cohort` clients without replacement; all: every client. Schedules over many rounds: allocation (a client
    takes part in a fixed number of secret rounds of the run) and cyclic (clients take part in a public order).
    docs/participation.md compares them.
    """

    cohort_cap: Clients | None = None
    """Largest number of clients of a round, under 'poisson'.

    If more clients are drawn, a secret, uniformly random subset of this size takes part. With noise shares of clients,
    secure sums of private runs, Bernoulli samples and dp-dithered, every sum has exactly this number of uploads. Its
    default there is seldom reached. privacy.slots is its old name.
    """


class BinsFederation(_CommonFederation):
    """Clients that take part in one secret round of every epoch of clients / cohort rounds."""

    sampling: Literal["balls-and-bins"]
    """balls-and-bins: each client takes part in one secret round of every epoch of clients / cohort rounds."""

    cohort_cap: ClassVar[None] = None

    lanes: Annotated[int, Field(ge=1)] | Literal["search"] | None = None
    """Number of lanes that take turns, for balls-and-bins with banded noise; a client's lane is its id modulo this
    number, which divides the rounds of an epoch. Default: the fewest that privacy.bands needs; search: the number of
    least error at privacy.epsilon."""

    lane_secrecy: Literal["public", "secret"] = "public"
    """secret: a client's lane is drawn at random once for the run; public: it is the client's id modulo lanes.

    In both cases the run states the epsilon of public lanes. For secret lanes, `dpfed budget --certificate sampled` and
    privacy.certificate state a smaller epsilon.
    """


class SeparatedFederation(_WithoutLanes):
    """Clients that take part by independent draws, and pause after every participation."""

    sampling: Literal["min-separation"]
    """min-separation: each client takes part by an independent draw, and pauses after every participation."""

    cohort_cap: ClassVar[None] = None

    separation: Annotated[int, Field(ge=1)]
    """Under min-separation, a client that took part does not take part in the next separation - 1 rounds."""


class CustomFederation(_WithoutLanes):
    """Clients that take part as a function of yours draws them."""

    sampling: Literal["custom"]
    """custom: the function named by federation.sampler draws each cohort (docs/own-methods.md)."""

    cohort_cap: ClassVar[None] = None

    sampler: str
    """Name of the function that draws cohorts, registered in a file that --load names. With [privacy] its draws are
    compared with the distribution that it states before round 1, in 10,000 rounds."""


FederationTable = Annotated[
    PlainFederation | BinsFederation | SeparatedFederation | CustomFederation, Field(discriminator="sampling")
]
"""Table [federation]; federation.sampling selects the kind of table."""
