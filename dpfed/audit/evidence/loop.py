"""Files of a `dpfed.ClientLevel` training loop, which are not trusted, and the checks that apply only to loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from accounting import require
from accounting.errors import AccountingError, InvalidParameter
from accounting.ledger import Aborted, Ledger, backups
from accounting.mechanisms import NoisyIntegers, noise_of, unsampled
from accounting.rounding import downwards, upwards
from dpfed.audit.evidence.conformance import earlier_calibration_text, first_difference, plan_problem
from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.verdict import Finding, rounds_text
from dpfed.errors import ConfigError
from dpfed.records.reading import Unavailable, read_lines
from dpfed.records.round import RoundRecord
from dpfed.runs.client_level.book import client_ids_file, diagnostics_file
from dpfed.runs.client_level.plan import config_of

_SAME = 1e-9
_MOST_RANKED, _PERMUTATIONS = 60, 100_000


class LoopFiles(RunFiles):
    """Files of a loop, with the attributes of `RunFiles` that checks of runs and loops share.

    The configuration of a loop is the plan in the ledger's header. A loop has no metrics, summary or model. Errors:
    ConfigError if the ledger has no plan.
    """

    def __init__(self, ledger: Path) -> None:
        self.path, self.ledger_name = ledger.parent, ledger.name
        self.diagnostics_name, self.client_ids_name = diagnostics_file(ledger).name, client_ids_file(ledger).name
        about = _header_with_plan(ledger)
        self.tables: dict[str, object] = about["plan"]
        self.config = config_of(self.tables, source=f"{ledger}, plan")
        self.own_stages = about.get("stages") == "own"

    @property
    def delta(self) -> float:
        """Delta of the ledger's header."""
        try:
            return require.open_probability(delta=self.trusted_ledger.header.about.get("delta"))
        except InvalidParameter as error:
            raise Unavailable(f"{self.ledger_name}, header: {error}") from None

    @property
    def epsilon(self) -> float:
        """Epsilon recomputed from the ledger, since a loop states none."""
        return self.guarantee.epsilon

    @property
    def _stated_noise_and_clip(self) -> tuple[float | None, float | None]:
        """Noise multiplier of the first release, None if this version calibrates equal integer noise; no clip norm.

        The variance of integer noise is rounded up to a whole number, so that its multiplier is larger than the
        calibrated one.
        """
        privacy_target = self.promised_today.privacy_target  # of the length that the releases state, so there is one
        if privacy_target.schedule is not None:
            return None, None
        noise = unsampled(next(iter(self.releases.values())).mechanism)
        planned, rows = privacy_target.mechanism, privacy_target.integer_rows
        if rows is not None and isinstance(noise, NoisyIntegers):
            equal = noise.share_variance == getattr(unsampled(planned), "share_variance", None)
            return None if equal else math.sqrt(noise.variance) / float(rows.scale), None
        drawn = noise_of(noise)
        return None if drawn is None else drawn.noise_multiplier, None

    def clip_norm_before(self, number: int) -> float:
        """Return the clip norm of this round: that of its release, or of the plan if it has none."""
        release = self.releases.get(number)
        return self.promise.privacy_target.clip_norm if release is None else release.clip_norm

    @cached_property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """Lines of the diagnostics, in rising order of rounds; rounds interrupted after their charge have no line."""
        rounds = tuple(read_lines(self.path / self.diagnostics_name, RoundRecord))
        for before, after in itertools.pairwise(rounds):
            if after.round <= before.round:
                raise Unavailable(
                    f"{self.diagnostics_name}: round {after.round} follows round {before.round}; lines were moved."
                )
        return rounds

    @property
    def opened_rounds(self) -> tuple[RoundRecord, ...]:
        """Rounds that the loop did not skip."""
        skipped = set(self.skipped)
        return tuple(one for one in self.rounds if one.round not in skipped)

    @property
    def unrecorded_cohorts(self) -> int:
        """Number of skipped rounds without a line in the diagnostics; under a schedule, whose cohorts follow from the
        numbers of their rounds, of interrupted rounds, too.
        """
        due = self.entries if self.sampler.law.is_schedule else self.skipped
        return len(set(due) - {one.round for one in self.rounds})

    @property
    def skipped(self) -> list[int]:
        """Numbers of the rounds that the loop skipped without a release."""
        return [number for number, some in self.entries.items() if isinstance(some[0], Aborted)]


def ledger_of_loop(path: Path) -> Path | None:
    """Return the ledger of a loop: the file `path`, or the ledger in the folder `path`; None for the
    folder of a run.
    """
    if path.is_file():
        return None if path.name == RunFiles.ledger_name and (path.parent / "config.toml").exists() else path
    if not path.is_dir() or (path / "config.toml").exists():
        return None
    found = [one for one in sorted(path.glob("*.jsonl")) if backups.head_path(one).exists()]
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:5])
        raise ConfigError(f"{path}: has several ledgers ({names}). Give the path of one of them.")
    return found[0] if found else None


def _header_with_plan(ledger: Path) -> Mapping[str, Any]:
    """Return `about` of the ledger's header; the checks find errors in later lines."""
    try:
        about = Ledger.header_of(ledger).about
    except AccountingError as error:
        raise ConfigError(f"{ledger}: cannot be read as a ledger ({error}).") from None
    if not isinstance(about.get("plan"), Mapping):
        raise ConfigError(
            f"{ledger}: has no plan in its header, so it is not the ledger of a dpfed.ClientLevel. Give the folder of "
            "a run, or the ledger of a dpfed.ClientLevel."
        )
    return about


def epsilon_is_within_plan(files: LoopFiles) -> Finding:
    """Check that the epsilon of the releases, at the plan's delta, is at most the planned epsilon."""
    assert files.config.privacy is not None
    found, allowed = files.spent_guarantee, files.config.privacy.epsilon
    planned = float(files.config.privacy.delta or 0)
    if not math.isclose(found.delta, planned, rel_tol=_SAME):
        return False, f"the header states delta {upwards(found.delta)}, the plan's is {upwards(planned)}."
    words = f"the ledger gives {upwards(found.epsilon, digits=6)} at delta {upwards(found.delta)}"
    if allowed is None:
        return True, f"{words}; the plan sets no limit."
    return found.epsilon <= allowed * (1 + _SAME), f"{words}; the plan allows {downwards(allowed)}."


def rounds_are_charged_once(files: LoopFiles) -> Finding:
    """Check that every round is in the ledger once, and that every round of the diagnostics was charged."""
    entries, planned, table = files.entries, files.config.federation.rounds, files.config.privacy
    prolonged = table is not None and table.epsilon is not None and table.noise_multiplier is not None
    problems = {
        "is in the ledger more than once": [number for number, some in entries.items() if len(some) > 1],
        "is not in the ledger, although later rounds are": [
            number - 1 for number in entries if number > 1 and number - 1 not in entries
        ],
        "is beyond the rounds that were planned": [number for number in entries if number > planned and not prolonged],
    }
    skipped = files.skipped
    known: set[int] = set()
    if (files.path / files.diagnostics_name).exists():
        known = {one.round for one in files.results}
        problems["was released without a charge"] = sorted(known - entries.keys())
        problems["was released, although the ledger says that it was skipped"] = sorted(known & set(skipped))
    found = [f"{rounds_text(rounds)} {problem}" for problem, rounds in problems.items() if rounds]
    if found:
        return False, "; ".join(found) + "."
    lost = len(entries) - len(skipped) - len(known) if known else 0
    words = f"{len(entries)} rounds, each with one line; {len(skipped)} of them were skipped and released nothing"
    return True, words + (f"; {lost} charged rounds have no diagnostics: they were interrupted." if lost else ".")


def skipping_ignores_the_cohort(files: LoopFiles, *, alpha: float) -> Finding:
    """Test whether skipped rounds have larger or smaller cohorts than released ones, by the exact rank-sum test.

    If skipping does not depend on who was drawn, every choice of the skipped rounds is equally likely given the sizes;
    such a loop fails with probability at most alpha.
    """
    skipped = set(files.skipped)
    sizes = {one.round: one.cohort for one in files.rounds}
    if not skipped <= sizes.keys():
        return None, f"{len(skipped)} rounds were skipped, and the sizes of their cohorts are not recorded."
    left_out = [size for number, size in sizes.items() if number in skipped]
    released = [size for number, size in sizes.items() if number not in skipped]
    if not released:
        return None, f"all of {len(skipped)} rounds were skipped."
    p = min(1.0, rank_sum_p_value(left_out, released))
    words = (
        f"{len(left_out)} skipped rounds of {sum(left_out) / len(left_out):.1f} clients, {len(released)} released ones "
        f"of {sum(released) / len(released):.1f} (p = {p:.2g})"
    )
    if p < alpha:
        return False, f"{words}: the loop skips rounds by the size of their cohort, which no epsilon covers."
    if smallest_rank_sum_p_value(len(skipped), len(sizes)) >= alpha:
        return None, f"{words}; too few rounds to tell whether skipping depends on the cohort."
    return True, f"{words}, as if skipping did not depend on the cohort."


def smallest_rank_sum_p_value(count: int, values: int) -> float:
    """Return the smallest p-value that `rank_sum_p_value` can have for `count` among all `values`."""
    return 2 / min(math.comb(values, count), _PERMUTATIONS + 1 if values > _MOST_RANKED else math.inf)


def rank_sum_p_value(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the exact two-sided p-value of the rank sum of `one` among all values, by counting choices of ranks.

    Ties have their mean rank. With more than 60 values, 100,000 seeded choices are drawn in place of all.
    """
    values = np.concatenate([one, other])
    ranks = np.rint(2 * rankdata(values)).astype(int)  # twice the rank is whole
    observed, count = int(ranks[: len(one)].sum()), len(one)
    if len(values) > _MOST_RANKED:
        rng = np.random.default_rng(0)
        drawn = np.array([ranks[rng.permutation(len(ranks))[:count]].sum() for _ in range(_PERMUTATIONS)])
        tails = ((drawn <= observed).sum() + 1, (drawn >= observed).sum() + 1)
        return float(2 * min(tails) / (_PERMUTATIONS + 1))
    ways = np.zeros((count + 1, int(ranks.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, : ways.shape[1] - rank].copy()
    law = ways[count] / ways[count].sum()
    return float(2 * min(law[: observed + 1].sum(), law[observed:].sum()))


def ledger_follows_the_plan(files: LoopFiles) -> Finding:
    """Check that each line is the one that the plan gives.

    For a user-defined chain of stages, which the plan does not describe, differences are inconclusive (None).
    """
    header, config = files.trusted_ledger.header, files.config
    if (header.unit, header.clients, header.randomness) != ("client", config.federation.clients, config.run.randomness):
        return False, (
            f"the header states {header.clients} clients, unit {header.unit!r}, randomness {header.randomness!r}; its "
            f"plan states {config.federation.clients}, 'client', {config.run.randomness!r}."
        )
    if problem := plan_problem(files, "its plan", kinds=not files.own_stages):
        return False, problem
    wrong, norm = {}, files.promise.privacy_target.clip_norm
    for number, line in files.releases.items():
        expected = files.promise.release(clip_norm=norm, number=line.round, uploads=0).to_dict()
        if (words := first_difference(expected, line.to_dict(), "the plan")) is not None:
            wrong[number] = words
    if wrong and files.own_stages:
        return None, (
            f"the chain is user-defined: its lines differ from the plan ({wrong[min(wrong)]}); each counts as it is."
        )
    if wrong:
        return False, f"{rounds_text(sorted(wrong))}: {wrong[min(wrong)]}."
    return True, (
        "mechanism, sampler, adjacency, clip norm, noise and denominator of every line are those of the plan"
        f"{earlier_calibration_text(files)}."
    )
