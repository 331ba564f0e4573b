"""One round, for tests: the state after it, and what the operator keeps."""

from dpfed.round import Trained, run_round


class _Facts:
    def __init__(self, done):
        self._done, self.release = done, done.release

    def __getattr__(self, name):
        return getattr(self._done.record, name)


def watched_round(state, method, *, seeds, ledger, cohort=None, observer=None):
    done = run_round(state, method, Trained(seeds=seeds), seeds=seeds, ledger=ledger, cohort=cohort, observer=observer)
    return done.state, _Facts(done)


def only_state(state, method, *, seeds, ledger, **more):
    return watched_round(state, method, seeds=seeds, ledger=ledger, **more)[0]
