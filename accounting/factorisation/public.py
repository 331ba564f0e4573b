"""Schedules whose order is public: all rounds are one Gaussian mechanism, of the client that shows most."""

from accounting.errors import UnsupportedMechanism
from accounting.factorisation.toeplitz import column, sensitivity
from accounting.mechanisms.correlated import CorrelatedRounds
from accounting.mechanisms.schedules import Cyclic, Schedule


def squares(schedule: Schedule, count: int) -> float:
    """Squared sensitivity of the first `count` rounds in clip norms, for updates whose sensitivity is one clip norm.

    Of independent noise: the most participations. Of correlated noise: sens(C)^2 (`factorisation.sensitivity`), in
    units of the fresh noise. Direction of error: exact to rounding. UnsupportedMechanism for a secret schedule.
    """
    if isinstance(schedule, CorrelatedRounds):
        c = column(schedule, count)
        most = schedule.participations
        return sensitivity(c, rounds=count, separation=schedule.separation, participations=most) ** 2
    if isinstance(schedule, Cyclic):
        return float(schedule.most_participations(count))
    raise UnsupportedMechanism(f"sampling={schedule.name!r}: participation is secret, so that rounds are no Gaussian.")
