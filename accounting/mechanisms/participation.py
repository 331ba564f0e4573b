"""Base class of samplings: what accounts read of who takes part in a round."""

from dataclasses import asdict
from typing import Any, ClassVar, Protocol

from accounting.mechanisms.adjacency import Adjacency


class _HasProbability(Protocol):
    @property
    def probability(self) -> float: ...


class Participation:
    """Base class of samplings: answers that accounts read, by default those of rounds that are drawn independently.

    A class with a `name` is registered under it in `kinds`, and is read from ledger lines of this name.
    """

    kinds: ClassVar[dict[str, Any]] = {}
    name: ClassVar[str] = ""
    displaces: ClassVar[bool] = False
    """True if another client may take the place of the differing one, so that the sum moves by 2 clips."""
    independent: ClassVar[bool] = False
    """True if each client is drawn independently of other clients and rounds, so that cohort sizes vary."""
    fixed_size: ClassVar[bool] = False
    """True if each cohort is a uniform subset of a fixed size, drawn without replacement."""
    takes_all: ClassVar[bool] = False
    """True if every client takes part in every round."""
    is_schedule: ClassVar[bool] = False
    """True if participation depends on earlier rounds, so that all rounds have one account."""
    public_order: ClassVar[bool] = False
    """True if clients take part in turn, in an order that is public."""
    attack_is_weaker: ClassVar[bool] = False
    """True if no attack is known that reaches the account, which assumes a public order."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            Participation.kinds[cls.name] = cls

    def base_adjacency(self, adjacency: Adjacency) -> Adjacency:
        """Return the adjacency of the release that this sampling amplifies: replace-one under fixed size, which covers
        zero-out, else the given one.
        """
        return Adjacency.REPLACE_ONE if self.fixed_size else adjacency

    @property
    def turns_follow_ids(self) -> bool:
        """True if ids of clients determine a public order, so that an added client must not change ids of others."""
        return False

    @property
    def secret_in_lane(self) -> bool:
        """True if a client's round is secret from an attacker who knows its lane, which deterministic accounts
        assume.
        """
        return True

    @property
    def epoch(self) -> int | None:
        """Rounds after which participation is drawn anew; None: never."""
        return None

    def norm(self, count: int) -> float:
        """Return the shift by one participation relative to the fresh noise of `count` rounds, in clip norms."""
        return 1.0

    def participation_probability(self: _HasProbability, adjacency: Adjacency) -> float:
        """Return the probability that one client takes part in a round."""
        return self.probability

    def binds(self, adjacency: Adjacency) -> bool:
        """Return True if a cap can be exceeded in one of the neighbours; False without a cap."""
        return False

    def full_rounds(self, adjacency: Adjacency) -> tuple[tuple[float, float], ...]:
        """Return (zeta, p) of rounds that are full under a cap (`CappedPoissonSampling`); none without a cap."""
        return ()

    @property
    def first_round_probability(self) -> float | None:
        """Probability that a client takes part in the first round, secretly; None if it is public, or if other
        clients depend on it. Public lanes: that of a client of the first lane.
        """
        return None

    def sets_of_first_rounds(self, count: int) -> tuple[float, ...] | None:
        """Return, for j = 0 to `count`, the probability that a client takes part, secretly, in exactly j given ones of
        the first `count` rounds; None if it is not known or differs between sets of j rounds.
        """
        return None

    def hypotheses(self, adjacency: Adjacency) -> tuple[str, ...]:
        """Return notes on the conditions under which the account holds."""
        return ()

    def to_dict(self) -> dict[str, object]:
        """Return the JSON object of a ledger line."""
        return {"name": self.name, **asdict(self)}  # type: ignore[call-overload]
