"""[data], [model] and [federation]: samples, network, and clients that take part."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dpfed.config.limits import MOST_LAYERS, MOST_SAMPLES, Clients, Count, Positive, Rounds, Samples, Units
from dpfed.config.table import Table


class _Data(Table):
    """Samples, and their partition into clients."""

    name: str
    """A data set that `dpfed.data` knows.

    For your data: a file .safetensors or .npz, or a folder of Parquet files or of a Hugging Face datasets directory,
    whose name ends in a slash (docs/data.md).
    """

    root: str | None = None
    """The folder that holds it; default: $DPFED_DATA_DIR, for your files the current folder."""

    inputs: tuple[str, ...] | None = Field(default=None, strict=False, min_length=1)
    """Columns of a CSV file or a folder of tables that are a sample's input: numbers, lists of numbers, or one column
    of images."""

    label: str | None = None
    """The column with a sample's class, or with a number to predict."""

    client: str | None = None
    """The column that names a sample's client, for data.partition = "natural"."""

    classes: Count | Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """Number of labels of a custom file, unless its metadata gives it, or the labels' names if a column of labels
    holds text: public. A file with train_targets in place of train_labels predicts numbers and has no classes.
    """

    features: Literal["scattering"] | None = None
    """scattering: images are replaced by their wavelet scattering, fixed features on which a small model learns with
    little noise (a linear one is model.name = "mlp" with model.hidden = []). The model's input is
    `dpfed.data.scattering` of an image.
    """

    orientations: Annotated[int, Field(ge=2, le=16)] = 8
    """Orientations of scattering: L, which makes (1 + L)^2 numbers of 4 x 4 pixels."""

    train_samples: Count | None = None
    """Most training samples, drawn by data.partition_seed if there are more."""

    test_samples: Count | None = None
    """Most test samples, drawn by data.partition_seed if there are more."""

    validation: Count | None = None
    """Number of training samples that are set aside for validation_accuracy; no client has them."""

    public: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    """Number of samples that serve as public data (fed-smp-topk): from data.public_from, or out of the training
    half; then the summary states that they are not protected.
    """

    public_from: str | None = None
    """The data set of public samples, if it is another than data.name."""

    partition_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the division of samples among clients, independent of run.seed: runs that differ in run.seed have the
    same clients.
    """


class PlainData(_Data):
    """Samples divided evenly, by the data set's clients, or by nodes."""

    partition: Literal["iid", "natural", "nodes"] = "iid"
    """Division of samples among clients. iid: evenly at random; natural: by the data set's clients (roles, the
    column train_clients); nodes: every node of a deployment has local samples, and only the test half and public
    samples of data.name are used.
    """


class DirichletData(_Data):
    """Samples of each label divided by shares from Dirichlet(alpha)."""

    partition: Literal["dirichlet"]
    """Samples of each label are divided by shares from Dirichlet(alpha)."""

    alpha: Positive
    """Parameter of partition 'dirichlet': the smaller, the fewer labels a client has."""


class LabelsData(_Data):
    """Clients with a fixed or largest number of labels."""

    partition: Literal["labels", "fedpm"]
    """labels: every client has exactly `labels` labels; fedpm: at most `labels`, and sizes of 10 to 100 parts."""

    labels: Count
    """Number of labels of a client, for partition 'labels' and 'fedpm'."""


class ResampledData(_Data):
    """Clients that draw samples from all of them."""

    partition: Literal["resampled"]
    """Every client has `samples` samples, drawn from all with replacement; there may be millions of clients."""

    samples: Samples
    """Number of samples of a client, for partition 'resampled'."""


Data = Annotated[PlainData | DirichletData | LabelsData | ResampledData, Field(discriminator="partition")]
"""[data], by partition."""


class Model(Table):
    """Network of a run."""

    name: str
    """A network that `dpfed.models` knows, or one that your code registers."""

    hidden: tuple[Units, ...] | None = Field(default=None, strict=False, max_length=MOST_LAYERS)
    """Widths of the hidden layers (mlp, char-lstm)."""


class _Federation(Table):
    """Clients, and the sampling of those that take part in a round."""

    clients: Clients
    """n, the number of all clients."""

    cohort: Clients
    """Clients a round: expected under 'poisson', exact under 'fixed', ignored under 'all', where it is n."""

    rounds: Rounds
    """T, the most rounds: a budget can end a run sooner."""


class PlainFederation(_Federation):
    """Cohorts drawn in each round, or by a schedule of many rounds."""

    sampling: Literal["poisson", "fixed", "all", "allocation", "cyclic"] = "poisson"
    """Sampling of a round's cohort. poisson: every client independently with probability cohort / clients; fixed:
    exactly `cohort` without replacement; all: every client. Schedules over many rounds: allocation (secret rounds, a
    fixed number of all) and cyclic (a public order). docs/participation.md compares them.
    """

    cohort_cap: Clients | None = None
    """poisson: the most clients of a round.

    If more are drawn, a secret, uniformly random part of that size takes part. With shares of noise from clients,
    secure sums of private runs, Bernoulli samples and dp-dithered every sum has exactly this number of uploads, with a
    default that is seldom reached. privacy.slots is its old name.
    """


class BinsFederation(_Federation):
    """Clients that take part in one secret round of every epoch of clients / cohort rounds."""

    sampling: Literal["balls-and-bins"]
    """balls-and-bins: one secret round of every clients / cohort rounds for each client."""

    cohort_cap: ClassVar[None] = None

    lanes: Annotated[int, Field(ge=1)] | Literal["search"] | None = None
    """balls-and-bins with noise in bands: public lanes (client id modulo lanes) that take turns, a divisor of an
    epoch's rounds. Default: the fewest that privacy.bands needs; search: the number of least error at
    privacy.epsilon."""

    lane_secrecy: Literal["public", "secret"] = "public"
    """secret: a client's lane is drawn once for the run, instead of following from its id.

    The epsilon of the run is that of public lanes; `dpfed budget --certificate sampled` and privacy.certificate state a
    smaller one.
    """


class SeparatedFederation(_Federation):
    """Clients that take part by independent draws, with a rest after every participation."""

    sampling: Literal["min-separation"]
    """min-separation: by an independent draw of each client, with a rest after every participation."""

    cohort_cap: ClassVar[None] = None

    separation: Annotated[int, Field(ge=1)]
    """min-separation: a client that took part stays away from the next separation - 1 rounds."""


Federation = Annotated[PlainFederation | BinsFederation | SeparatedFederation, Field(discriminator="sampling")]
"""[federation], by sampling."""
