"""Record-level releases of each client, and the client with the largest epsilon.

If clients train with record-level privacy, a record affects only the releases of its client. The epsilon of a record is
that of its client's composition, and the epsilon of the run is the largest over clients.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from accounting import require
from accounting.compose import accountant as accountants
from accounting.compose.accountant import Accountant
from accounting.errors import InvalidParameter
from accounting.mechanisms import Composed, SingleRelease


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Steps of local training: each client in `clients` ran `mechanism` `count` times, on only its own records.

    Errors: InvalidParameter for a count below 1, or clients that are not distinct integers of at least 0.

    >>> from accounting import Gaussian, Steps
    >>> noise = Gaussian(noise_multiplier=1.0, adjacency="add-remove")
    >>> Steps(mechanism=noise, count=5, clients=(0, 2)).clients
    (0, 2)
    """

    mechanism: SingleRelease
    count: int
    clients: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", require.count(count=self.count))
        whole = all(map(require.is_whole, self.clients))
        if not whole or min(self.clients, default=0) < 0 or len(set(self.clients)) < len(self.clients):
            raise InvalidParameter("clients: must be distinct integers of at least 0.")


class Histories:
    """Releases of every client, added round by round.

    Claim: a record's epsilon is at most that of its client's composition, and `epsilon` is the largest of them.
    Direction of error: upper bound.

    >>> from accounting import Gaussian, Histories, Steps
    >>> noise, histories = Gaussian(noise_multiplier=10.0, adjacency="add-remove"), Histories()
    >>> histories.add([Steps(mechanism=noise, count=5, clients=(0, 2))])
    >>> round(histories.epsilon(delta=1e-5), 4)
    0.8197
    """

    def __init__(self) -> None:
        self._counts: dict[int, Counter[SingleRelease]] = {}

    def add(self, steps: Iterable[Steps]) -> None:
        """Add the steps of one round."""
        for part in steps:
            for client in part.clients:
                self._counts.setdefault(client, Counter())[part.mechanism] += part.count

    def distinct(self) -> list[Composed]:
        """Return the distinct compositions of clients, without those that a longer composition of the same release
        covers.
        """
        longest: Counter[SingleRelease] = Counter()
        mixed: dict[frozenset[tuple[SingleRelease, int]], None] = {}
        for history in self._counts.values():
            if len(history) == 1:
                longest |= history  # the larger count of each release
            else:
                mixed[frozenset(history.items())] = None
        alone = [Composed(parts=(part,)) for part in longest.items()]
        return alone + [Composed(parts=tuple(one), order=None) for one in mixed]

    def epsilon(self, *, delta: float, accountant: Accountant = "best") -> float:
        """Return the largest epsilon over clients, an upper bound for every record of every client."""
        return largest_epsilon(self.distinct(), delta=delta, accountant=accountant)


def worst_composition(
    histories: Iterable[Composed], *, delta: float, accountant: Accountant = "best"
) -> Composed | None:
    """Return the composition with the largest epsilon at `delta`; None for an empty iterable."""
    return max(histories, key=lambda one: _epsilon(one, delta, accountant), default=None)


def largest_epsilon(histories: Iterable[Composed], *, delta: float, accountant: Accountant = "best") -> float:
    """Return the largest epsilon of the compositions; 0 for an empty iterable."""
    return max((_epsilon(one, delta, accountant) for one in histories), default=0.0)


@lru_cache(maxsize=10_000)
def _epsilon(mechanism: Composed, delta: float, accountant: Accountant) -> float:
    return accountants.epsilon(mechanism, delta=delta, accountant=accountant)
