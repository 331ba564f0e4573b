"""Files of a finished run, read without trusting them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from accounting import require
from accounting.compose.accountant import Accountant, Guarantee
from accounting.compose.second_opinion import SecondOpinion, second_opinion
from accounting.errors import AccountingError, EditedLedger, InvalidParameter, LedgerError
from accounting.ledger import Aborted, Entry, Ledger, Purchase, Release
from accounting.ledger.regular_file import LARGEST_CONFIGURATION, LARGEST_LINES, read_text
from accounting.mechanisms import unsampled
from dpfed.audit.evidence.promise import Promise, promise_of, with_more_noise
from dpfed.audit.evidence.saved import Saved, saved_in
from dpfed.config.own_code import UserCodeFile
from dpfed.config.privacy_tables import Privacy
from dpfed.config.tables import Config, override, parse_written_config
from dpfed.config.training_tables import RecordTable
from dpfed.data.client_ids import ClientIds
from dpfed.errors import ConfigError, DpfedError, RunError
from dpfed.participation.lanes import ids_of_turns
from dpfed.participation.sampling import Sampler, sampler_of
from dpfed.records.metrics import MetricsLine
from dpfed.records.reading import LARGEST, RoundLineKind, Unavailable, read_lines
from dpfed.records.round import CanaryLine, RoundRecord
from dpfed.records.summary import Summary
from dpfed.runs.experiment import Experiment, build
from dpfed.runs.folder import CLIENT_IDS
from dpfed.runs.resuming import read_own_code

_LONGEST = 1 << 40


class RunFiles:
    """Folder of a run. Every file is read when it is requested; a fault in it raises `Unavailable`.

    Errors: ConfigError without any run: without its configuration nothing can be checked.
    """

    ledger_name = "ledger.jsonl"
    client_ids_name = CLIENT_IDS

    def __init__(self, path: Path) -> None:
        self.path = path
        self.compared: set[str] = set()  # keys of summary.json that a check has compared with something else
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
        """Run built again from its configuration, on the CPU. Errors: Unavailable without its data or code."""
        try:
            return build(
                parse_written_config(override(self.tables, ["run.device=cpu"]), source=str(self.path / "config.toml"))
            )
        except (DpfedError, AccountingError) as error:
            raise Unavailable(f"the run cannot be built again here ({error}).") from None

    @cached_property
    def client_ids(self) -> ClientIds | None:
        """Ids from which lanes or turns follow, from client_ids.json; None if they follow from numbers."""
        if not (self.path / self.client_ids_name).exists():
            return None
        try:
            ids = ClientIds.from_json(read_text(self.path / self.client_ids_name, at_most=LARGEST_LINES))
        except (OSError, ValueError, DpfedError) as error:
            raise Unavailable(f"{self.client_ids_name}: cannot be read ({error}).") from None
        if len(ids) != self.config.federation.clients:
            raise Unavailable(f"{self.client_ids_name}: has {len(ids)} ids, not one of each client.")
        return ids

    @cached_property
    def sampler(self) -> Sampler:
        """Sampler of the cohorts. Unavailable if lanes or turns follow from ids that are not known."""
        try:
            return sampler_of(self.config, ids_of_turns(self.config, self.client_ids))
        except ConfigError:
            raise Unavailable(f"{self.client_ids_name}: is missing, and with it the order of turns.") from None

    @cached_property
    def summary(self) -> Summary:
        """Content of summary.json."""
        return Summary.of_folder(self.path)

    @property
    def epsilon(self) -> float:
        """Epsilon that is stated. Unavailable if none is."""
        return _required_value(self.summary.epsilon, "epsilon")

    @property
    def delta(self) -> float:
        """Delta that epsilon is stated at. Unavailable if there is none."""
        return _required_value(self.summary.delta, "delta")

    @cached_property
    def checkpoint(self) -> Saved:
        """State after the last round, from checkpoint.safetensors."""
        return saved_in(self.path / "checkpoint.safetensors")

    @cached_property
    def ledger(self) -> Ledger:
        """Ledger of ledger.jsonl, with an intact chain and valid values. Errors: EditedLedger."""
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
        """Ledger for checks of other evidence. Unavailable if the check of the ledger fails."""
        try:
            return self.ledger
        except LedgerError:
            raise Unavailable(
                f"{self.ledger_name}: missing or not to be trusted, see the check of the ledger."
            ) from None

    @cached_property
    def entries(self) -> Mapping[int, tuple[Entry, ...]]:
        """Lines of the ledger by round, counted from 1, without charges that were taken back."""
        found: dict[int, tuple[Entry, ...]] = {}
        for entry in self.trusted_ledger.standing:
            found[entry.round + 1] = (*found.get(entry.round + 1, ()), entry)
        return found

    @cached_property
    def released(self) -> Mapping[int, Release]:
        """Releases about all clients: the last ledger line of each round."""
        last = {number: entries[-1] for number, entries in self.entries.items()}
        return {number: entry for number, entry in last.items() if isinstance(entry, Release)}

    @cached_property
    def guarantee(self) -> Guarantee:
        """Guarantee that follows from the ledger alone, at the delta that the summary states, by the configured
        accountant: of a run that ended early, the epsilon of its plan or budget."""
        return self._of_ledger(Ledger.guarantee)

    @cached_property
    def spent(self) -> Guarantee:
        """Guarantee of the ledger's releases, as if they had been fixed in advance."""
        return self._of_ledger(Ledger.if_fixed_in_advance)

    def _of_ledger(self, account: Callable[..., Guarantee]) -> Guarantee:
        ledger, delta = self.trusted_ledger, self.delta
        try:
            return account(ledger, delta, accountant=self.accountant, with_lower_bound=False)
        except AccountingError as error:
            raise Unavailable(f"ledger.jsonl: no epsilon follows from it ({error}).") from None

    @cached_property
    def second_opinion(self) -> SecondOpinion | None:
        """Epsilon of dp-accounting for the ledger's releases, at the same delta; None if nothing was released."""
        mechanism = self.trusted_ledger.charged(self.delta, accountant=self.accountant)
        return None if mechanism is None else second_opinion(mechanism, delta=self.delta)

    @cached_property
    def promised_today(self) -> Promise:
        """Promise of a client-level configuration, for the ledger's length of uploads, calibrated by today's
        account.
        """
        lengths = {str(release.detail.get("dimension")) for release in self.released.values()}
        length = lengths.pop() if len(lengths) == 1 else ""
        if not length.isdecimal() or not 0 < int(length[:20]) <= _LONGEST:
            raise Unavailable("ledger.jsonl: its lines name no length of uploads, or several.")
        return promise_of(self.config, int(length))

    @cached_property
    def promise(self) -> Promise:
        """Promise of the configuration, with the noise that the run states if that is more."""
        today, (noise, clip) = self.promised_today, self._calibrated
        more = with_more_noise(self.config, today.privacy_target, noise=noise, clip=clip)
        try:
            promise = today if more is None else promise_of(more, today.sent)
        except (DpfedError, AccountingError):  # no run has had so much
            promise = today
        earlier = any(unsampled(release.mechanism).overflow for release in self.released.values())
        return replace(promise, charges_overflow=earlier)

    @property
    def _calibrated(self) -> tuple[float | None, float | None]:
        """Noise multiplier and clip norm that are stated; None if there are none to be read."""
        with suppress(Unavailable):
            return self.summary.noise_multiplier, self.summary.clip_norm
        return None, None

    @cached_property
    def published(self) -> tuple[MetricsLine, ...]:
        """Lines of metrics.jsonl: rounds 1, 2, ..., each once."""
        return _numbered(self.path / "metrics.jsonl", MetricsLine)

    @cached_property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """Lines of diagnostics.jsonl: the rounds of metrics.jsonl."""
        rounds = _numbered(self.path / "diagnostics.jsonl", RoundRecord)
        if len(rounds) != len(self.published):
            raise Unavailable(
                f"diagnostics.jsonl: has {len(rounds)} rounds, metrics.jsonl {len(self.published)}. Lines were lost."
            )
        return rounds

    @cached_property
    def results(self) -> tuple[RoundRecord, ...]:
        """Rounds that ended with a result."""
        return tuple(one for one in self.rounds if one.has_result)

    @property
    def has_canaries(self) -> bool:
        """True if the run was to have canaries, or has their file."""
        return bool(self.config.audit.canaries) or (self.path / "canaries.jsonl").exists()

    @cached_property
    def canaries(self) -> tuple[CanaryLine, ...]:
        """Lines of canaries.jsonl; none if the run was to have none."""
        if not self.has_canaries:
            return ()
        return tuple(read_lines(self.path / "canaries.jsonl", CanaryLine))


def clip_norm_before(files: RunFiles, number: int) -> float:
    """Return the clip norm that was published before this round, with the model it starts from."""
    if number == 1:
        return files.promise.privacy_target.clip_norm
    norm = files.published[number - 2].clip_norm
    if norm is None:
        raise Unavailable(f"metrics.jsonl, line {number - 1}: has no clip norm.")
    return norm


def _numbered(file: Path, kind: type[RoundLineKind]) -> tuple[RoundLineKind, ...]:
    """Return the lines of a file, which must be rounds 1, 2, ..., each once."""
    lines = tuple(read_lines(file, kind))
    for expected, line in enumerate(lines, 1):
        if line.round != expected:
            raise Unavailable(f"{file.name}, line {expected}: is about round {line.round}; lines were lost or moved.")
    return lines


def _required_value(value: float | None, key: str) -> float:
    if value is None:
        raise Unavailable(f"summary.json: states no {key}.")
    return value


def _check_entry(entry: Entry) -> None:
    """Validate the values of a line that the ledger itself accepts unchecked."""
    require.count(at_least=0, round=entry.round)
    if isinstance(entry, Aborted | Purchase):
        return
    if not 0 < require.positive(clip_norm=entry.clip_norm) + require.nonnegative(noise_std=entry.noise_std) < LARGEST:
        raise InvalidParameter(f"clip_norm={entry.clip_norm}, noise_std={entry.noise_std}: no run has them.")
    if not isinstance(entry.detail, Mapping) or not all(isinstance(key, str) for key in entry.detail):
        raise InvalidParameter(f"detail={entry.detail!r}: must be an object.")
