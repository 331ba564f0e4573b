"""Reproducible property tests, and the one meaning of `slow`.

A slow test holds with more seeds, settings or trials what a quick test holds as well; `make test` leaves it out.
`@pytest.mark.slow` is for a test, `marks=pytest.mark.slow` for one of its settings, `@pytest.mark.slow_but_one_in(n)`
for all of its settings but every n-th; the nearest marker of a test, class or file counts.
"""

import gc
import os
from collections import Counter

import pytest
from hypothesis import settings

for _library in ("OMP", "OPENBLAS", "MKL"):  # every core has a worker: threads of theirs would only wait for each other
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")
os.environ["DPFED_CACHE_DIR"] = ""  # tests compute, and leave nothing behind
os.fsync = lambda descriptor: None  # no test loses its machine, and thousands of writes would wait for the disk
settings.register_profile("reproducible", derandomize=True, deadline=None, database=None, max_examples=25)
settings.load_profile("reproducible")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`@pytest.mark.slow_but_one_in(5)`: of the test's settings the 1st, 6th, 11th, ... are quick, the others slow."""
    seen: Counter[str] = Counter()
    for item in items:
        if marker := item.get_closest_marker("slow_but_one_in"):
            test = item.nodeid.partition("[")[0]
            if seen[test] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


def pytest_collection_finish() -> None:
    """Leave the modules and cases of all tests out of later garbage collections, forks and scans of objects."""
    gc.collect()
    gc.freeze()
