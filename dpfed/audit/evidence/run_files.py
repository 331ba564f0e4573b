"""Files, last checkpoint and model of a finished run, validated when they are read, since they are not trusted."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from accounting import require
from accounting.compose.accountant import Accountant, Guarantee
from accounting.compose.second_opinion import SecondOpinion, second_opinion
from accounting.errors import AccountingError, EditedLedger, InvalidParameter, LedgerError
from accounting.ledger import Aborted, Entry, Ledger, Purchase, Release
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, LARGEST_LINES, read_text
from accounting.mechanisms import unsampled
from accounting.mechanisms.samplings.planned import Sampler
from dpfed.audit.evidence.promise import Promise, config_with_stated_noise, promise_of
from dpfed.config.own_code import UserCodeFile
from dpfed.config.privacy_tables import Privacy
from dpfed.config.samples_tables import CustomFederation
from dpfed.config.tables import Config, override, parse_written_config
from dpfed.config.training_tables import RecordTable
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError, DpfedError, RunError
from dpfed.methods.privacy_target import has_enough_noise
from dpfed.methods.records import has_enough_record_noise
from dpfed.participation.sampling import ids_of_turns, sampler_of
from dpfed.records.reading import LARGEST, RoundLineKind, Unavailable, read_lines
from dpfed.records.round import CanaryLine, MetricsLine, RoundRecord
from dpfed.records.summary import Summary
from dpfed.runs.experiment import Experiment, build
from dpfed.runs.folder import CLIENT_IDS
from dpfed.runs.resuming import read_own_code

_MEMORY = "memory."


@dataclass(frozen=True, kw_only=True, eq=False)
class SavedState:
    """Content of checkpoint.safetensors.

    round: number of finished rounds. clip_norm, broadcast: clip norm and model at the start of the next round.
    header: header of the file. memory: memory of the server's rule.
    """

    round: int
    clip_norm: float
    broadcast: Tensor
    header: Mapping[str, str]
    memory: Mapping[str, Tensor] = field(default_factory=dict)


def read_checkpoint(path: Path) -> SavedState:
    """Return the content of a checkpoint file. Errors: Unavailable if it is missing, damaged, or lacks a value."""
    _require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            header, broadcast = file.metadata() or {}, file.get_tensor("broadcast")
            memory = {
                name.removeprefix(_MEMORY): file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118 (not a dict)
                if name.startswith(_MEMORY)
            }
        done, clip_norm = int(header["round"]), float(header["clip_norm"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
        raise Unavailable(f"{path.name}: cannot be read ({str(error)[:200]}).") from None
    alike = all(one.shape == broadcast.shape and one.dtype == broadcast.dtype for one in memory.values())
    if done < 0 or broadcast.dim() != 1 or not broadcast.is_floating_point() or not alike:
        raise Unavailable(f"{path.name}: is not a checkpoint of this package.")
    return SavedState(round=done, clip_norm=clip_norm, broadcast=broadcast, header=header, memory=memory)


def _require_file(path: Path) -> None:
    """Raise Unavailable unless the path is a regular file, since reading a pipe could wait forever."""
    if not path.is_file():
        raise Unavailable(f"{path.name}: is missing, or not a regular file.")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    _require_file(path)
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unavailable(f"{path.name}: cannot be read ({error.strerror}).") from None


def sorted_values_of(path: Path) -> NDArray[np.float32]:
    """Return all numbers of a safetensors file, sorted, without fixed tensors, which no round releases."""
    _require_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            fixed = json.loads((file.metadata() or {}).get("fixed", "[]"))
            names = [name for name in file.keys() if name not in fixed]  # noqa: SIM118 (not a dict)
            tensors = [file.get_tensor(name).float().reshape(-1).numpy() for name in names]
    except (OSError, SafetensorError, ValueError, TypeError, RecursionError) as error:
        raise Unavailable(f"{path.name}: cannot be read ({str(error)[:200]}).") from None
    return np.sort(np.concatenate(tensors)) if tensors else np.zeros(0, dtype=np.float32)


_LONGEST = 1 << 40

Value = TypeVar("Value")
Default = TypeVar("Default")


class RunFiles:
    """Folder of a run. Every file is read when it is requested; a faulty file raises `Unavailable`.

    Errors: ConfigError if config.toml cannot be read, since no check is possible without it.
    """

    ledger_name = "ledger.jsonl"
    client_ids_name = CLIENT_IDS

    def __init__(self, path: Path) -> None:
        self.path = path
        self.compared_keys: set[str] = set()  # keys of summary.json that a check has compared with other files
        try:
            text = read_text(path / "config.toml", at_most=LARGEST_CONFIGURATION)
            tables = self.tables = tomllib.loads(text)
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path / 'config.toml'}: cannot be read ({error}). Name the folder of a run, as `dpfed run --out` "
                "left it, or the ledger of a dpfed.ClientLevel."
            ) from None
        self.config: Config = parse_written_config(tables, source=str(path / "config.toml"))

    @property
    def private_table(self) -> Privacy | RecordTable | None:
        """Table that states the budget, [privacy] or [local.record]; None if nothing is private."""
        return self.config.privacy or self.config.local.record

    @property
    def accountant(self) -> Accountant:
        """Name of the configured accountant."""
        return "best" if self.private_table is None else self.private_table.accountant

    @cached_property
    def own_code(self) -> tuple[UserCodeFile, ...]:
        """Content of own_code.json; empty if it is missing or unreadable."""
        try:
            return read_own_code(self.path)
        except RunError:
            return ()

    @cached_property
    def experiment(self) -> Experiment:
        """Experiment rebuilt from the configuration on the CPU. Raises Unavailable without the run's data or code."""
        try:
            tables = override(self.tables, ["run.device=cpu"])
            config = parse_written_config(tables, source=str(self.path / "config.toml"))
            return build(config if self._solved is None else config.with_solved_noise(self._solved))
        except (DpfedError, AccountingError) as error:
            raise Unavailable(f"the run cannot be rebuilt here ({error}).") from None

    @property
    def can_be_built(self) -> bool:
        """True if the run's data and code are here, so that its experiment can be built again."""
        return value_or(False, lambda: self.experiment is not None)

    @cached_property
    def client_ids(self) -> ClientIds | None:
        """Client ids of client_ids.json, which determine lanes or turns; None if clients' numbers determine them."""
        if not (self.path / self.client_ids_name).exists():
            return None
        try:
            ids = ClientIds.from_json(read_text(self.path / self.client_ids_name, at_most=LARGEST_LINES))
        except (OSError, ValueError, DpfedError) as error:
            raise Unavailable(f"{self.client_ids_name}: cannot be read ({error}).") from None
        if len(ids) != self.config.federation.clients:
            raise Unavailable(f"{self.client_ids_name}: has {len(ids)} ids, must be one for each client.")
        return ids

    @cached_property
    def sampler(self) -> Sampler:
        """Sampler of the cohorts. Raises Unavailable if unknown client ids determine lanes or turns."""
        try:
            return sampler_of(self.config, ids_of_turns(self.config, self.client_ids))
        except ConfigError as error:
            if isinstance(self.config.federation, CustomFederation):
                raise Unavailable(f"the sampler of the user's own is not loaded: {error}") from None
            raise Unavailable(f"{self.client_ids_name}: is missing, so the order of turns is not known.") from None

    @property
    def all_take_part(self) -> bool:
        """True if every client takes part in every round."""
        law, clients = self.sampler.law, self.sampler.clients
        return law.probability >= 1 and (law.cohort_cap or clients) >= clients

    @cached_property
    def summary(self) -> Summary:
        """Content of summary.json."""
        return Summary.of_folder(self.path)

    @property
    def epsilon(self) -> float:
        """Epsilon that summary.json states. Raises Unavailable if it states none."""
        return _required_value(self.summary.epsilon, "epsilon")

    @property
    def delta(self) -> float:
        """Delta that summary.json states. Raises Unavailable if it states none."""
        return _required_value(self.summary.delta, "delta")

    @cached_property
    def checkpoint(self) -> SavedState:
        """State after the last round, from checkpoint.safetensors."""
        return read_checkpoint(self.path / "checkpoint.safetensors")

    @cached_property
    def ledger(self) -> Ledger:
        """Ledger of ledger.jsonl. Raises EditedLedger if its hash chain is broken or a value is not valid."""
        try:
            ledger = Ledger.read(self.path / self.ledger_name)
            require.count(clients=ledger.header.clients)
            if not isinstance(ledger.header.about, Mapping):
                raise InvalidParameter("about: must be an object.")
            for entry in ledger.entries:
                _check_entry(entry)
        except (InvalidParameter, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            raise EditedLedger(f"{self.ledger_name}: not a ledger that this package wrote ({error}).") from None
        return ledger

    @cached_property
    def trusted_ledger(self) -> Ledger:
        """Ledger for checks of other files. Raises Unavailable if the ledger is missing or edited."""
        try:
            return self.ledger
        except LedgerError:
            raise Unavailable(f"{self.ledger_name}: is missing or edited, see the check of the ledger.") from None

    @cached_property
    def entries(self) -> Mapping[int, tuple[Entry, ...]]:
        """Lines of the ledger by round, counted from 1, without withdrawn charges."""
        found: dict[int, tuple[Entry, ...]] = {}
        for entry in self.trusted_ledger.entries_in_force:
            found[entry.round + 1] = (*found.get(entry.round + 1, ()), entry)
        return found

    @cached_property
    def releases(self) -> Mapping[int, Release]:
        """Releases with client-level privacy by round: the last ledger line of each round, if it is a release."""
        last = {number: entries[-1] for number, entries in self.entries.items()}
        return {number: entry for number, entry in last.items() if isinstance(entry, Release)}

    @cached_property
    def guarantee(self) -> Guarantee:
        """Guarantee computed from the ledger only, by the configured accountant at the delta of the summary.

        For a run that ended early, its epsilon is that of the plan or the budget.
        """
        return self._guarantee_by(Ledger.guarantee)

    @cached_property
    def spent_guarantee(self) -> Guarantee:
        """Guarantee of the ledger's releases, accounted as if their number had been fixed in advance."""
        return self._guarantee_by(Ledger.if_fixed_in_advance)

    def _guarantee_by(self, account: Callable[..., Guarantee]) -> Guarantee:
        ledger, delta = self.trusted_ledger, self.delta
        try:
            return account(ledger, delta, accountant=self.accountant, with_lower_bound=False)
        except AccountingError as error:
            raise Unavailable(f"ledger.jsonl: its epsilon cannot be computed ({error}).") from None

    @cached_property
    def second_opinion(self) -> SecondOpinion | None:
        """Epsilon of dp-accounting for the ledger's releases at the run's delta; None if nothing was released."""
        mechanism = self.trusted_ledger.charged(self.delta, accountant=self.accountant)
        return None if mechanism is None else second_opinion(mechanism, delta=self.delta)

    @cached_property
    def promised_today(self) -> Promise:
        """Promise of a client-level configuration, calibrated by this version's accountant.

        The length of uploads is taken from the ledger.
        """
        lengths = {str(release.detail.get("dimension")) for release in self.releases.values()}
        length = lengths.pop() if len(lengths) == 1 else ""
        if not length.isdecimal() or not 0 < int(length[:20]) <= _LONGEST:
            raise Unavailable("ledger.jsonl: its lines state no length of uploads, or several lengths.")
        return promise_of(self.config, int(length))

    @cached_property
    def _solved(self) -> Mapping[str, object] | None:
        """Calibrated values of the ledger's header, which the run has read; None if they are less noise than needed."""
        with suppress(Unavailable):
            header, records = self.trusted_ledger.header, self.config.local.record is not None
            if header.plan is None or header.plan.rounds != self.config.federation.rounds or not header.solved:
                return None
            if records:
                enough = has_enough_record_noise(self.config, header.plan, self.delta)
            else:
                enough = has_enough_noise(header.solved, self.promised_today.privacy_target.solved)
            return header.solved if enough else None
        return None

    @cached_property
    def promise(self) -> Promise:
        """Promise of the configuration, with the run's own noise unless it is less than this version calibrates."""
        today, (noise, clip) = self.promised_today, self._stated_noise_and_clip
        more = (
            config_with_stated_noise(self.config, today.privacy_target, noise=noise, clip=clip)
            if self._solved is None
            else self.config.with_solved_noise(self._solved)
        )
        try:
            promise = today if more is None else promise_of(more, today.sent)
        except (DpfedError, AccountingError):  # no run can have had the stated values
            promise = today
        earlier = any(unsampled(release.mechanism).overflow for release in self.releases.values())
        return replace(promise, charges_overflow=earlier)

    @property
    def _stated_noise_and_clip(self) -> tuple[float | None, float | None]:
        """Noise multiplier and clip norm that summary.json states; None for values that it lacks."""
        with suppress(Unavailable):
            return self.summary.noise_multiplier, self.summary.clip_norm
        return None, None

    @cached_property
    def published_rounds(self) -> tuple[MetricsLine, ...]:
        """Lines of metrics.jsonl, one for each of the rounds 1, 2, ..."""
        return _lines_of_rounds(self.path / "metrics.jsonl", MetricsLine)

    def clip_norm_before(self, number: int) -> float:
        """Return the clip norm of this round, which was published with the result of the round before."""
        if number == 1:
            return self.promise.privacy_target.clip_norm
        norm = self.published_rounds[number - 2].clip_norm
        if not norm:
            raise Unavailable(f"metrics.jsonl, line {number - 1}: has no clip norm.")
        return norm

    @cached_property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """Lines of diagnostics.jsonl, one for each round of metrics.jsonl."""
        rounds = _lines_of_rounds(self.path / "diagnostics.jsonl", RoundRecord)
        if len(rounds) != len(self.published_rounds):
            raise Unavailable(
                f"diagnostics.jsonl: has {len(rounds)} rounds, metrics.jsonl has {len(self.published_rounds)}. Lines "
                "are missing."
            )
        return rounds

    @cached_property
    def results(self) -> tuple[RoundRecord, ...]:
        """Rounds that ended with a result."""
        return tuple(one for one in self.rounds if one.has_result)

    @property
    def opened_rounds(self) -> tuple[RoundRecord, ...]:
        """Rounds in which uploads were requested: all rounds of a run."""
        return self.rounds

    @property
    def unrecorded_cohorts(self) -> int:
        """Number of drawn cohorts of which diagnostics.jsonl has no line; a run records all of them."""
        return 0

    @property
    def has_canaries(self) -> bool:
        """True if config.toml requires canaries, or canaries.jsonl exists."""
        return bool(self.config.audit.canaries) or (self.path / "canaries.jsonl").exists()

    @cached_property
    def canaries(self) -> tuple[CanaryLine, ...]:
        """Lines of canaries.jsonl."""
        return tuple(read_lines(self.path / "canaries.jsonl", CanaryLine))


def value_or(default: Default, read: Callable[[], Value]) -> Value | Default:
    """Return the value that the function reads from a run's files; the default if the files do not give it."""
    try:
        return read()
    except (DpfedError, AccountingError):
        return default


def _lines_of_rounds(file: Path, kind: type[RoundLineKind]) -> tuple[RoundLineKind, ...]:
    """Return the lines of a file, which must be one for each of the rounds 1, 2, ..."""
    lines = tuple(read_lines(file, kind))
    for expected, line in enumerate(lines, 1):
        if line.round != expected:
            raise Unavailable(
                f"{file.name}, line {expected}: is about round {line.round}; lines are missing or were moved."
            )
    return lines


def _required_value(value: float | None, key: str) -> float:
    if value is None:
        raise Unavailable(f"summary.json: states no {key}.")
    return value


def _check_entry(entry: Entry) -> None:
    """Validate the values of a ledger line that `Ledger.read` does not validate."""
    require.count(at_least=0, round=entry.round)
    if isinstance(entry, Aborted | Purchase):
        return
    if not 0 < require.positive(clip_norm=entry.clip_norm) + require.nonnegative(noise_std=entry.noise_std) < LARGEST:
        raise InvalidParameter(
            f"clip_norm={entry.clip_norm}, noise_std={entry.noise_std}: are beyond the values of any run."
        )
    if not isinstance(entry.detail, Mapping) or not all(isinstance(key, str) for key in entry.detail):
        raise InvalidParameter(f"detail={entry.detail!r}: must be an object.")
