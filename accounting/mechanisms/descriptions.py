"""Frozen descriptions of releases and their compositions, without numerics.

A description holds everything that a stated epsilon depends on: the noise relative to the clip norm, the adjacency,
from which the sensitivity follows, and the sampler that ran. `compose.rdp` and `compose.pld` bound the epsilon of a
description.
"""

import reprlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol, cast

from accounting import require
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.mechanisms.adjacency import Adjacency, Unsampled
from accounting.mechanisms.gaussian import Gaussian
from accounting.mechanisms.samplings.independent import FullParticipation, PoissonSampling
from accounting.mechanisms.samplings.sampling import Sampling, Schedule, noise_matrix


class Mechanism(Protocol):
    """Release or composition with a known account, under one adjacency."""

    @property
    def adjacency(self) -> Adjacency: ...

    def to_dict(self) -> dict[str, object]: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class Subsampled:
    """Release `mechanism` of a secret random cohort, or of a cohort in a public order (Cyclic).

    A sum of Bernoulli uploads has a fixed number K of uploads. Under Poisson sampling K is the cap, and the server pads
    with samples of the public probabilities (zero-out); under fixed-size sampling K is the cohort. A sum with integer
    noise in shares also has K uploads: under Poisson sampling, clients that were not drawn send noise alone until there
    are K uploads. With a schedule (`mechanisms.samplings`) this is one round of the schedule: `count` equal releases in
    a composition are the first `count` rounds of the schedule.
    Errors: InvalidParameter for anything but a release and a sampling; UnsupportedMechanism for a combination without
    an account, such as fixed-size sampling under add-remove.

    >>> from accounting import Gaussian, PoissonSampling, Subsampled
    >>> noise = Gaussian(noise_multiplier=1.0, adjacency="add-remove")
    >>> Subsampled(mechanism=noise, sampling=PoissonSampling(probability=0.01)).to_dict()["sampling"]
    {'name': 'poisson', 'probability': 0.01}
    """

    mechanism: Unsampled
    sampling: Sampling

    def __post_init__(self) -> None:
        possible = _is_release(self.mechanism) and isinstance(self.sampling, Sampling)
        if not possible or not (self.mechanism.sums or self.sampling.public_order):
            raise InvalidParameter(
                f"mechanism={reprlib.repr(self.mechanism)}, sampling={reprlib.repr(self.sampling)}: must be a Gaussian "
                "or another sum over a cohort, and one of PoissonSampling, FixedSizeSampling, FullParticipation or a "
                "schedule (BallsAndBins, Allocation, MinSeparation, Cyclic). Individually visible uploads have a "
                "public order (Cyclic) or no sampling."
            )
        cohort = getattr(self.sampling, "cohort", self.sampling.cohort_cap)
        self.mechanism.check_sampling(self.sampling.name, cohort)
        if self.sampling.cohort_cap is not None and self.mechanism.overflow:
            raise UnsupportedMechanism(
                f"overflow={self.mechanism.overflow} with a cap: a capped cohort never overflows, and the account of "
                "the cap covers the clients left out. Use overflow=0."
            )
        if isinstance(self.sampling, Schedule):
            _check_schedule(self.mechanism, self.sampling)
        if self.sampling.fixed_size and self.adjacency is Adjacency.ADD_REMOVE:
            raise UnsupportedMechanism(
                "adjacency='add-remove' with fixed-size sampling: adding a client changes every client's sampling "
                "probability, and no bound is implemented. Use adjacency 'replace-one' (the default for fixed-size "
                "sampling) or 'zero-out', or Poisson sampling."
            )

    @property
    def adjacency(self) -> Adjacency:
        return self.mechanism.adjacency

    def to_dict(self) -> dict[str, object]:
        return {"kind": "subsampled", "mechanism": self.mechanism.to_dict(), "sampling": self.sampling.to_dict()}


MOST_RUNS = 10_000
"""Largest number of runs of equal releases for which a composition stores their order."""

SingleRelease = Unsampled | Subsampled
"""One release, sampled or unsampled: a part of a composition."""


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Adaptive composition of releases: `parts` are pairs (release, count).

    order: (index in `parts`, length) for each run of equal consecutive releases. () if the parts ran one after the
    other as listed; None if the order is unknown. All accounts except the adaptive one hold for every order.
    Errors: InvalidParameter for an empty or malformed list; UnsupportedMechanism for parts with different adjacencies,
    or two parts of one schedule.

    >>> from accounting import Composed, Gaussian
    >>> noise = Gaussian(noise_multiplier=1.4, adjacency="add-remove")
    >>> Composed.of([noise, noise]).parts[0][1]
    2
    """

    parts: tuple[tuple[SingleRelease, int], ...]
    order: tuple[tuple[int, int], ...] | None = ()

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple | list):
            raise InvalidParameter(f"parts={reprlib.repr(self.parts)}: must be a sequence of (mechanism, count).")
        object.__setattr__(self, "parts", tuple(_checked_part(part) for part in self.parts))
        if self.order is not None:
            object.__setattr__(self, "order", _checked_order(self.order, [count for _, count in self.parts]))
        if not self.parts:
            raise InvalidParameter("parts=(): a composition needs at least one mechanism.")
        adjacencies = {part.adjacency for part, _ in self.parts}
        if len(adjacencies) > 1:
            raise UnsupportedMechanism(
                f"adjacencies {', '.join(sorted(adjacencies))} in one composition: an epsilon holds for one adjacency. "
                "State all parts under the same one."
            )
        _check_streams(self.parts)

    @classmethod
    def of(cls, mechanisms: Iterable[SingleRelease]) -> "Composed":
        """Return the composition of a sequence of releases. Equal releases are counted together and the order is
        stored.
        """
        return cls.of_runs((mechanism, sum(1 for _ in alike)) for mechanism, alike in groupby(mechanisms))

    def then(self, release: SingleRelease, count: int) -> "Composed":
        """Return this composition followed by `count` releases on the same clients. Equal releases are counted
        together.
        """
        more = release, require.count(count=count)
        runs = in_order(self)
        if runs is not None:
            return Composed.of_runs((*runs, more))
        return replace(Composed.of_runs((*self.parts, more)), order=None)

    @classmethod
    def of_runs(cls, runs: Iterable[tuple[SingleRelease, int]]) -> "Composed":
        """Return the composition of runs of equal releases, in this order: pairs (release, length of the run)."""
        counts: Counter[SingleRelease] = Counter()
        places: dict[SingleRelease, int] = {}
        order: list[tuple[int, int]] = []
        for mechanism, count in runs:  # a run of a million equal releases is hashed once
            counts[mechanism] += count
            place = places.setdefault(mechanism, len(places))
            if order and order[-1][0] == place:
                order[-1] = place, order[-1][1] + count
            else:
                order.append((place, count))
        one_by_one = len(order) == len(places)
        known = len(order) <= MOST_RUNS
        return cls(parts=tuple(counts.items()), order=() if one_by_one else tuple(order) if known else None)

    @property
    def adjacency(self) -> Adjacency:
        return self.parts[0][0].adjacency

    def to_dict(self) -> dict[str, object]:
        record: dict[str, object] = {
            "kind": "composed",
            "parts": [[part.to_dict(), count] for part, count in self.parts],
        }
        if self.order != ():
            record["order"] = None if self.order is None else [list(run) for run in self.order]
        return record


def subsample(mechanism: Unsampled, sampling: Sampling) -> SingleRelease:
    """Return `mechanism` on a sampled cohort.

    Full participation returns `mechanism` itself, unless noise is correlated over rounds. A cap that no draw can exceed
    is dropped.
    Errors: those of `Subsampled`.

    >>> from accounting import FullParticipation, Gaussian, subsample
    >>> noise = Gaussian(noise_multiplier=1.0, adjacency="add-remove")
    >>> subsample(noise, FullParticipation()) is noise
    True
    """
    if sampling.cohort_cap is not None:
        sampled = Subsampled(mechanism=mechanism, sampling=sampling)
        if sampling.binds(mechanism.adjacency):
            return sampled
        sampling = PoissonSampling(probability=sampling.probability)
    if sampling.probability == 1.0 and sampling.name != "correlated":
        if sampling.fixed_size:
            Subsampled(mechanism=mechanism, sampling=sampling)  # raises an error for an invalid adjacency
        return mechanism
    return Subsampled(mechanism=mechanism, sampling=sampling)


def parts_of(mechanism: Mechanism) -> tuple[tuple[SingleRelease, int], ...]:
    """Return a mechanism as the parts of a composition.

    >>> from accounting.mechanisms import Composed, Gaussian
    >>> noise = Gaussian(noise_multiplier=1.0, adjacency="zero-out")
    >>> [count for part, count in parts_of(Composed(parts=((noise, 3),)))]
    [3]
    """
    if isinstance(mechanism, Composed):
        return mechanism.parts
    return ((cast(SingleRelease, mechanism), 1),)


def in_order(mechanism: Mechanism) -> tuple[tuple[SingleRelease, int], ...] | None:
    """Return the releases in the order in which they ran, as pairs (release, length of the run of equal releases); None
    if the order is unknown.

    >>> from accounting.mechanisms import Composed, Gaussian
    >>> one, two = (Gaussian(noise_multiplier=z, adjacency="zero-out") for z in (1.0, 2.0))
    >>> [(release.noise_multiplier, count) for release, count in in_order(Composed.of([one, two, two, one]))]
    [(1.0, 1), (2.0, 2), (1.0, 1)]
    """
    if not isinstance(mechanism, Composed) or mechanism.order == ():
        return parts_of(mechanism)
    if mechanism.order is None:
        return None
    return tuple((mechanism.parts[place][0], count) for place, count in mechanism.order)


def unsampled(release: SingleRelease) -> Unsampled:
    """Return a release without its sampling: the inner mechanism of a sampled release.

    >>> from accounting import FixedSizeSampling, Gaussian, subsample
    >>> noise = Gaussian(noise_multiplier=1.0, adjacency="zero-out")
    >>> unsampled(subsample(noise, FixedSizeSampling(cohort=10, clients=100))) is noise
    True
    """
    return release.mechanism if isinstance(release, Subsampled) else release


def sampling_of(release: SingleRelease) -> Sampling:
    """Return the sampling of a release: full participation if it has none.

    >>> from accounting import Gaussian
    >>> sampling_of(Gaussian(noise_multiplier=1.0, adjacency="zero-out"))
    FullParticipation()
    """
    return release.sampling if isinstance(release, Subsampled) else FullParticipation()


def schedule_of(release: SingleRelease) -> Schedule | None:
    """Return the schedule of a release; None if each round is drawn independently.

    >>> from accounting.mechanisms import Cyclic, Gaussian, subsample
    >>> schedule_of(subsample(Gaussian(noise_multiplier=1.0, adjacency="zero-out"), Cyclic(period=10))).period
    10
    """
    sampling = sampling_of(release)
    return sampling if isinstance(sampling, Schedule) else None


def gaussian_of(release: SingleRelease) -> Gaussian | None:
    """Return the Gaussian noise of a release, sampled or not; None if it has other noise, such as shares.

    >>> from accounting import Gaussian, PoissonSampling, subsample
    >>> noise = Gaussian(noise_multiplier=1.0, adjacency="zero-out")
    >>> gaussian_of(subsample(noise, PoissonSampling(probability=0.1))) == noise
    True
    """
    noise = unsampled(release)
    return noise if isinstance(noise, Gaussian) else None


def noise_of(release: SingleRelease) -> Gaussian | None:
    """Return the Gaussian noise of a release, whole or in shares; None if it has other noise.

    This is for inspecting noise. Accounts use `gaussian_of`, because a sum in shares may overflow.

    >>> from accounting import GaussianShares
    >>> noise_of(GaussianShares(noise_multiplier=1.0, adjacency="zero-out", shares=10)).noise_multiplier
    1.0
    """
    whole: Gaussian | None = getattr(unsampled(release), "gaussian", None)
    return whole


def with_whole_noise(mechanism: Mechanism) -> Mechanism:
    """Return the mechanism with the noise of each sum as one draw, without the overflow of `GaussianShares`.

    >>> from accounting import GaussianShares
    >>> shares = GaussianShares(noise_multiplier=1.0, adjacency="zero-out", shares=10)
    >>> with_whole_noise(shares).parts[0][0].kind
    'gaussian'
    """
    parts = parts_of(mechanism)
    replaced = tuple((_with_whole_noise(part), count) for part, count in parts)
    if all(new is old for (new, _), (old, _) in zip(replaced, parts, strict=True)):
        return mechanism
    return Composed(parts=replaced, order=mechanism.order if isinstance(mechanism, Composed) else ())


def _with_whole_noise(release: SingleRelease) -> SingleRelease:
    noise, whole = unsampled(release), noise_of(release)
    if whole is None or whole is noise:
        return release
    return whole if noise is release else subsample(whole, sampling_of(release))


def plain_gaussian(release: SingleRelease) -> Gaussian | None:
    """Return the release if it is Gaussian noise without sampling, else None.

    >>> from accounting import Gaussian, PoissonSampling, subsample
    >>> noise = Gaussian(noise_multiplier=1.0, adjacency="zero-out")
    >>> plain_gaussian(subsample(noise, PoissonSampling(probability=0.1))) is None
    True
    """
    return gaussian_of(release) if unsampled(release) is release else None


def repeated(release: SingleRelease, rounds: int, *, before: Composed | None = None) -> Composed:
    """Return `rounds` rounds of `release`, after the composition `before` on the same clients.

    Errors: InvalidParameter for a number of rounds below 1; those of `Composed`.

    >>> from accounting import Gaussian
    >>> repeated(Gaussian(noise_multiplier=1.4, adjacency="add-remove"), 180).parts[0][1]
    180
    """
    run = Composed(parts=((release, require.count(rounds=rounds)),))
    return run if before is None else before.then(release, rounds)


def _check_schedule(mechanism: Unsampled, schedule: Schedule) -> None:
    """Raise UnsupportedMechanism for combinations that the theorem of `accounting.participation` does not cover."""
    if schedule.secret and mechanism.adjacency is Adjacency.REPLACE_ONE:
        raise UnsupportedMechanism(
            f"adjacency='replace-one' with sampling={schedule.name!r}: no account of this combination is known. Use "
            "'add-remove' or 'zero-out', or a public order (cyclic)."
        )
    if schedule.name == "shuffled" and mechanism.adjacency is Adjacency.ADD_REMOVE:
        raise UnsupportedMechanism(
            "adjacency='add-remove' with sampling='shuffled': one client added moves other clients to other batches, "
            "which no account covers. Use 'zero-out' or 'replace-one'."
        )
    if mechanism.sums and mechanism.kind not in ("gaussian", "discrete-gaussian"):
        raise UnsupportedMechanism(
            f"mechanism={mechanism.kind!r} with sampling={schedule.name!r}: schedules are accounted with Gaussian and "
            "discrete Gaussian noise. For other noise use sampling 'poisson' or 'fixed'."
        )
    if noise_matrix(schedule) is not None and mechanism.kind != "gaussian":
        raise UnsupportedMechanism(
            f"mechanism={mechanism.kind!r} with correlated noise: the noise that is subtracted again is not an "
            "integer. Use Gaussian noise."
        )
    if mechanism.overflow or getattr(mechanism, "shares", 1) > 1:
        raise UnsupportedMechanism(
            f"mechanism={mechanism.kind!r} in shares or with overflow and sampling={schedule.name!r}: the number of "
            "uploads would depend on who takes part. Let the server add the noise to a plain sum."
        )


def _check_streams(parts: tuple[tuple[SingleRelease, int], ...]) -> None:
    """Raise UnsupportedMechanism if one schedule is split into two parts.

    Each part is accounted from its first round on and independently of the other parts. But participation and noise in
    two parts of one schedule depend on each other. This includes public orders: a part may consist of rounds 1 and 11,
    in both of which one client takes part.
    """
    known: set[str] = set()
    for part, _ in parts:
        schedule = schedule_of(part)
        if schedule is None:
            continue
        if schedule.stream in known:
            raise UnsupportedMechanism(
                f"stream={schedule.stream!r} with sampling={schedule.name!r} in two parts: all rounds of one schedule "
                "must have the same release, and independently drawn schedules must have different stream names. Use "
                "one release in all rounds, or give each schedule its own stream name."
            )
        known.add(schedule.stream)


def _checked_part(part: Any) -> tuple[SingleRelease, int]:
    match part:
        case (mechanism, count) if isinstance(mechanism, Subsampled) or _is_release(mechanism):
            return mechanism, _checked_count(mechanism, count)
    raise InvalidParameter(
        f"parts: {reprlib.repr(part)} must be (mechanism, count), the mechanism a Gaussian, Bernoulli "
        "uploads or integer noise, sampled or not."
    )


def _checked_count(mechanism: SingleRelease, count: int) -> int:
    checked_count, schedule = require.count(count=count), schedule_of(mechanism)
    last = None if schedule is None else schedule.ends_after
    if last is not None and checked_count > last:
        raise InvalidParameter(
            f"count={count} of an allocation of {last} rounds: the allocation ends after them. Plan more rounds, or "
            "give a further allocation its own stream name."
        )
    return checked_count


def _checked_order(order: Any, counts: list[int]) -> tuple[tuple[int, int], ...]:
    """Return the validated runs, whose counts add up to `counts`. Errors: InvalidParameter."""
    try:
        runs = tuple((require.count(place=place + 1) - 1, require.count(count=count)) for place, count in order)
        sums = [sum(count for place, count in runs if place == k) for k in range(len(counts))] if runs else counts
        valid = sums == counts and all(0 <= place < len(counts) for place, _ in runs)
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InvalidParameter(
            "order: must be pairs (place in parts, count) whose counts add up to those of the parts."
        )
    return runs


def _is_release(value: object) -> bool:
    """Return True if this object is an unsampled release."""
    return hasattr(value, "least_noise_std") and not isinstance(value, type)
