"""The planner's server and the tables of a static page."""

import json
import re
import threading

import pytest

from dpfed.planner.question import question_of
from dpfed.planner.server import PlannerServer


@pytest.fixture(scope="module")
def server(request):
    """Serve the plan START of the module."""
    server = PlannerServer(question_of(request.module.START), port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    with server.answer_process:
        thread.start()
        yield server
        server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture
def tables():
    """`tables(page)`: the tables of a static page."""
    found = r'<script type="application/json" id="planner">(.*?)</script>'
    return lambda page: json.loads(re.search(found, page, re.DOTALL)[1])["grid"]["tables"]
