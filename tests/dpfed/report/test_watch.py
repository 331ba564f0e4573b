"""The live page: on this machine, under its secret path and name only, with what is public; the report at the end."""

import http.client
import json
import shutil
import threading

import pytest
from run_folders import PRIVATE, run_folder

from dpfed.cli import status
from dpfed.cli.watch import watch_server
from dpfed.report.loopback import page_address
from dpfed.report.run import live_page


@pytest.fixture
def folder(tmp_path):
    """A run with two rounds done, and what only its operator may see."""
    config = (
        '[method]\nname = "dp-fedavg"\n[data]\nname = "digits"\n[federation]\nrounds = 9\n'
        "[privacy]\nepsilon = 3.0\ndelta = 1e-5\n"
    )
    (tmp_path / "config.toml").write_text(config)
    lines = [
        {"round": r, "test_accuracy": 0.1 * r, "test_loss": 2.0, "epsilon": 0.50001 * r, "uplink_megabytes": 0.1 * r}
        for r in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"round": 3')
    (tmp_path / "diagnostics.jsonl").write_text('{"round": 1, "cohort": 987654, "participants": 3}\n')
    return tmp_path


@pytest.fixture
def server(folder):
    server = watch_server(folder, port=0)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(5)


def answer(server, path, method="GET", host=None):
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    response = connection.getresponse()
    return response.status, response.read().decode()


def test_the_page_says_how_far_it_is_and_nothing_private(server):
    code, page = answer(server, f"/{server.secret}/")
    assert code == 200
    for words in (
        "dp-fedavg on digits",
        "in progress",
        "of 9",
        "1.0001",
        "of 3, at delta 1e-05, for one client<",
        "20.00%",
        "200 kB",
        'data-state="round 2"',
    ):
        assert words in page, words
    assert "987654" not in page
    assert "connect-src &#39;self&#39;" in page


def test_the_budget_of_private_records_is_a_budget(folder, capsys):
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("[privacy]\nepsilon = 3.0", "[local.record]\nepsilon = 1.4"))
    assert "of 1.4, at delta 1e-05, for one record<" in live_page(folder)
    assert status(["diagnose", str(folder), "--json"]) == 0
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert (finding["cause"], finding["key"]) == ("budget spent", "local.record.noise_multiplier")


def test_nobody_else_is_answered(server):
    assert server.server_address[0] == "127.0.0.1"
    assert page_address(server).endswith(f"/{server.secret}/")
    for path in ("/", "/x/", f"/{server.secret}", f"/{server.secret}/../config.toml"):
        assert answer(server, path)[0] == 404
    assert answer(server, f"/{server.secret}/", host="evil.example")[0] == 404
    assert answer(server, f"/{server.secret}/", method="POST")[0] == 501


def test_a_finished_run_is_its_report_and_a_broken_one_a_word(folder, server, tmp_path):
    done = run_folder(tmp_path / "done", **PRIVATE)
    shutil.copy(done / "summary.json", folder)
    shutil.copy(done / "metrics.jsonl", folder)
    assert "Against whom" in answer(server, f"/{server.secret}/")[1]
    (folder / "summary.json").write_text("{}")
    code, words = answer(server, f"/{server.secret}/")
    assert code == 503
    assert "no folder of a finished run" in words


@pytest.mark.parametrize(("arguments", "code"), [(["{here}/none"], 1), (["{here}", "--port", "99999"], 2)])
def test_what_cannot_be_watched(folder, capsys, arguments, code):
    assert status(["watch", *(one.format(here=folder) for one in arguments)]) == code
    assert capsys.readouterr().err.startswith("dpfed: ")


def test_before_the_first_round_there_is_a_page(folder):
    (folder / "metrics.jsonl").unlink()
    assert "No round is finished yet" in live_page(folder)
