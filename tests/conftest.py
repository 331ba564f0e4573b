"""Reproducible property tests, and the one meaning of `slow`.

A slow test holds with more seeds, settings or trials what a quick test holds as well; `make test` leaves it out.
`@pytest.mark.slow` is for a test, `marks=pytest.mark.slow` for one of its settings, `@pytest.mark.slow_but_one_in(n)`
for all of its settings but every n-th; the nearest marker of a test, class or file counts.

`--minutes 40 --order WORD` runs the files in an order that the word decides, and skips every test that would begin
after 40 minutes: a machine of any speed ends in time, and another word (a commit's name) runs others first.
"""

import gc
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import settings

for _library in ("OMP", "OPENBLAS", "MKL"):  # every core has a worker: threads of theirs would only wait for each other
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
os.environ["DPFED_CACHE_DIR"] = ""  # tests compute, and leave nothing behind
os.fsync = lambda descriptor: None  # no test loses its machine, and thousands of writes would wait for the disk
settings.register_profile("reproducible", derandomize=True, deadline=None, database=None, max_examples=25)
settings.load_profile("reproducible")
_END = pytest.StashKey[float]()


TIME_IS_UP = "the time given by --minutes is over"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, help="skip every test that would begin after so many minutes")
    parser.addoption("--order", default="", metavar="WORD", help="order of the files under --minutes")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`@pytest.mark.slow_but_one_in(5)`: of the test's settings the 1st, 6th, 11th, ... are quick, the others slow."""
    seen: Counter[str] = Counter()
    for item in items:
        if marker := item.get_closest_marker("slow_but_one_in"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1
    if config.getoption("minutes") is not None:
        items.sort(key=lambda item: hashlib.sha256(f"{config.getoption('order')} {item.path.name}".encode()).digest())
        config.stash[_END] = time.monotonic() + 60 * config.getoption("minutes")


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """No test leaves a variable to the next one: $DPFED_OWN_CODE names the files that each run loads."""
    with mock.patch.dict(os.environ):
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash.get(_END, float("inf")):
        pytest.skip(TIME_IS_UP)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests had no time."""
    skipped = [report for report in terminalreporter.getreports("skipped") if TIME_IS_UP in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests were not run: {TIME_IS_UP}")


def pytest_collection_finish() -> None:
    """Leave the modules and cases of all tests out of later garbage collections, forks and scans of objects."""
    gc.collect()
    gc.freeze()
