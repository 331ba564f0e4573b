"""One round, for tests."""

from dpfed.round import Trained, run_round


def watched_round(state, method, *, seeds, ledger, cohort=None, observer=None):
    """Return the state after a round of simulated clients, and what the operator keeps of it."""
    done = run_round(state, method, Trained(seeds=seeds), seeds=seeds, ledger=ledger, cohort=cohort, observer=observer)
    return done.state, done.record


def only_state(state, method, **more):
    return watched_round(state, method, **more)[0]
