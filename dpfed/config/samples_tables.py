"""[data], [model] and [federation]: which samples, which network, who takes part."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dpfed.config.limits import MOST_LAYERS, MOST_SAMPLES, Clients, Count, Positive, Rounds, Samples, Units
from dpfed.config.table import Table


class _Data(Table):
    """Samples, and their division among clients."""

    name: str
    """A data set that `dpfed.data` knows; or of one's own a file .safetensors or .npz, or a folder of Parquet files or
    of a Hugging Face datasets directory, whose name ends in a slash (docs/data.md)."""

    root: str | None = None
    """The folder that holds it; default: $DPFED_DATA_DIR, for files of one's own the current folder."""

    inputs: tuple[str, ...] | None = Field(default=None, strict=False, min_length=1)
    """Columns of a CSV file or a folder of tables that are a sample's input: numbers, lists of numbers, or one column
    of images."""

    label: str | None = None
    """The column with its class, or with a number to predict."""

    client: str | None = None
    """The column that says whose sample it is, for data.partition = "natural"."""

    classes: Count | Annotated[tuple[str, ...], Field(strict=False, min_length=1)] | None = None
    """Number of labels that a custom file can have, unless its metadata say so, or their names where a column of labels
    holds text: public. A file that has
    train_targets in place of train_labels predicts numbers and has no classes."""

    features: Literal["scattering"] | None = None
    """scattering: of images their wavelet scattering, fixed features, on which a small model learns with little noise
    (a linear one is model.name = "mlp" with model.hidden = []). The model takes `dpfed.data.scattering` of an image."""

    orientations: Annotated[int, Field(ge=2, le=16)] = 8
    """Orientations of scattering: L, which makes (1 + L)^2 numbers of 4 x 4 pixels."""

    train_samples: Count | None = None
    """At most so many training samples, drawn by data.partition_seed."""

    test_samples: Count | None = None
    """At most so many test samples, drawn by data.partition_seed."""

    validation: Count | None = None
    """Number of training samples that are set aside: no client has them, and their score is validation_accuracy."""

    public: Annotated[int, Field(ge=0, le=MOST_SAMPLES)] = 0
    """Number of samples that serve as public data (fed-smp-topk): taken out of the training half, and then the summary
    says that they are not protected, or from data.public_from."""

    public_from: str | None = None
    """The data set that public samples come from, if it is another."""

    partition_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the division of samples among clients. run.seed has no part in it:
    runs that differ in run.seed are on the same clients."""


class PlainData(_Data):
    """Samples dealt evenly, as the data set says, or on nodes."""

    partition: Literal["iid", "natural", "nodes"] = "iid"
    """Division of samples among clients. iid; natural: as the data set says (roles, the column train_clients);
    nodes: every node of a deployment has samples of its own, and of data.name only the test half and public samples
    are used."""


class DirichletData(_Data):
    """Each label by shares ~ Dirichlet(alpha)."""

    partition: Literal["dirichlet"]
    """Each label by shares ~ Dirichlet(alpha)."""

    alpha: Positive
    """The parameter of partition 'dirichlet': the smaller, the fewer labels a client has."""


class LabelsData(_Data):
    """Clients with a number of labels."""

    partition: Literal["labels", "fedpm"]
    """labels: every client has so many `labels`; fedpm: sizes of 10 to 100 parts and at most so many `labels`."""

    labels: Count
    """Labels of a client, for partition 'labels' and 'fedpm'."""


class ResampledData(_Data):
    """Clients that draw samples from all of them."""

    partition: Literal["resampled"]
    """Every client has so many `samples`, drawn from all with replacement, and there may be millions of clients."""

    samples: Samples
    """Samples of a client, for partition 'resampled'."""


Data = Annotated[PlainData | DirichletData | LabelsData | ResampledData, Field(discriminator="partition")]
"""[data], by partition."""


class Model(Table):
    """Network."""

    name: str
    """A network that `dpfed.models` knows, or one that one's own file registers."""

    hidden: tuple[Units, ...] | None = Field(default=None, strict=False, max_length=MOST_LAYERS)
    """Widths of the hidden layers (mlp, char-lstm)."""


class _Federation(Table):
    """Clients, and the sampling of those that take part in a round."""

    clients: Clients
    """n, all clients there are."""

    cohort: Clients
    """Clients a round: expected under 'poisson', exact under 'fixed'; under 'all' it is n, whatever it says."""

    rounds: Rounds
    """T, at most: a budget can end a run sooner."""


class PlainFederation(_Federation):
    """Cohorts drawn in each round, or by a schedule of many rounds."""

    sampling: Literal["poisson", "fixed", "all", "allocation", "cyclic"] = "poisson"
    """Sampling of a round's cohort: every client by itself with probability cohort / clients; exactly `cohort`
    without replacement; or all clients. Or over many rounds: so many secret rounds of all (allocation); in a public
    order (cyclic). docs/participation.md says which is for whom."""

    cohort_cap: Clients | None = None
    """poisson: the most clients of a round. If more are drawn, a secret, uniformly random part of that size takes part.
    With shares of noise from clients, secure sums of private runs, coins and dp-dithered it is the number of uploads of
    every sum, and has a default that is seldom reached. privacy.slots is its old name."""


class BinsFederation(_Federation):
    """Clients that take part in one secret round of every epoch of clients / cohort rounds."""

    sampling: Literal["balls-and-bins"]
    """balls-and-bins: one secret round of every clients / cohort rounds for each client."""

    cohort_cap: ClassVar[None] = None

    lanes: Annotated[int, Field(ge=1)] | Literal["search"] | None = None
    """balls-and-bins with noise in bands: public lanes (client id modulo lanes) that take turns, a divisor of an
    epoch's rounds. Default: the fewest that privacy.bands needs; search: those of least error at privacy.epsilon."""

    lane_secrecy: Literal["public", "secret"] = "public"
    """secret: a client's lane is drawn for the run, and kept, instead of following from its id. The epsilon of the run
    is that of public lanes; `dpfed budget --certificate sampled` and privacy.certificate have a smaller one."""


class SeparatedFederation(_Federation):
    """Clients that take part by their own coins, with a rest after every participation."""

    sampling: Literal["min-separation"]
    """min-separation: by the client's own coin with a rest after every participation."""

    cohort_cap: ClassVar[None] = None

    separation: Annotated[int, Field(ge=1)]
    """min-separation: a client that took part stays away from the next separation - 1 rounds."""


Federation = Annotated[PlainFederation | BinsFederation | SeparatedFederation, Field(discriminator="sampling")]
"""[federation], by sampling."""
