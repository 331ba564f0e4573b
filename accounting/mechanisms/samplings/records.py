"""Batches of one client's records, for record-level privacy. Their draws are those of local training."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from accounting.errors import InvalidParameter
from accounting.mechanisms.samplings.independent import PoissonSampling
from accounting.mechanisms.samplings.planned import PlannedSampling
from accounting.mechanisms.samplings.public_orders import ShuffledSchedule
from accounting.mechanisms.samplings.sampling import Sampling
from accounting.options import option


@dataclass(frozen=True, kw_only=True)
class RecordBatches(PlannedSampling):
    """Poisson-sampled batches of one client's records, for record-level privacy. In each of `local_steps` steps of a
    round every record is drawn independently with probability batch_size / records.

    The number of rounds counts only those in which the client takes part. Numbers of records are public; the sampling
    probability is largest for the client with the fewest records. local_steps defaults to one pass, records /
    batch_size, rounded up.
    Adjacency: add-remove of one record.
    Errors: InvalidParameter for numbers below 1.

    >>> from accounting import Plan
    >>> plan = Plan(clients=10, unit="record", records=143, batch_size=32)
    >>> plan.sampling.steps
    5
    """

    records: int = option(
        "record: number of records of a client; if they differ, plan for each (by local_steps: the least)."
    )
    batch_size: int = option("record: expected number of records in a batch.")
    local_steps: int | None = option("record: number of batches in a round. Default: one pass over the records.", None)
    name: ClassVar[str] = "poisson"
    words: ClassVar[str] = "Poisson: every record of a client with equal probability, independently"
    unit: ClassVar[Literal["client", "record"]] = "record"

    @property
    def steps(self) -> int:
        """Number of batches in a round."""
        return -(-self.records // min(self.batch_size, self.records)) if self.local_steps is None else self.local_steps

    def units(self, clients: int) -> int:
        return clients * self.records

    def details(self) -> dict[str, object]:
        return {"records": self.records, "batch_size": self.batch_size, "local_steps": self.steps}

    def description(self, clients: int) -> str:
        batch, of = min(self.batch_size, self.records), self.records
        return (
            f"Poisson batches, {batch} of a client's {of} records expected (q = {batch / of:.6g}), {self.steps} local "
            "steps in each of its rounds"
        )

    def law(self, clients: int, stream: str) -> Sampling:
        return PoissonSampling(probability=min(self.batch_size, self.records) / self.records)


@dataclass(frozen=True, kw_only=True)
class ShuffledRecords(RecordBatches):
    """Shuffled batches of records: a round is one pass over the records in a random order, in batches of exactly
    batch_size; the last, smaller batch is dropped.

    Adjacency: zero-out (the default) or replace-one of one record.
    Errors: InvalidParameter for numbers below 1, a batch larger than the records, or local_steps.

    >>> from accounting import Plan
    >>> Plan(clients=1, unit="record", records=60_000, batch_size=256, sampling="shuffled").sampling.steps
    234
    """

    name: ClassVar[str] = "shuffled"
    words: ClassVar[str] = "shuffled: every record once in a pass, in batches of exactly this size"
    has_turns: ClassVar[bool] = True
    run_instead: ClassVar[str | None] = "balls-and-bins"
    is_schedule: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_steps is not None:
            raise InvalidParameter(
                f"local_steps={self.local_steps} with shuffled batches: a round is one pass over the records. Remove "
                "local_steps."
            )

    @property
    def steps(self) -> int:
        """Number of batches in a round."""
        return self.records // self.batch_size

    def description(self, clients: int) -> str:
        batches = f"{self.steps} batches of exactly {self.batch_size}"
        return f"passes over {self.records} shuffled records, each in {batches}"

    def law(self, clients: int, stream: str) -> Sampling:
        return ShuffledSchedule(cohort=self.batch_size, clients=self.records, stream=stream)
