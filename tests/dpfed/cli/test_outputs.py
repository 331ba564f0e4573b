"""Every option that names an output, by kind of target: replaced properly, or refused with one error and unchanged."""

import importlib
import inspect
import os
import socket
import stat
import typing
from pathlib import Path

import pytest
from reference.bounded import bounded

from accounting.ledger.project import ProjectLedger
from dpfed.cli import COMMANDS, status
from dpfed.cli import ledger as ledger_commands

from ..audit.run_folders import copied, run

PLAN = ["--clients", "100", "--cohort", "10", "--delta", "1e-5", "--sampling", "all"]
BUDGET = ["budget", *PLAN[:2], *PLAN[4:], "--noise-multiplier", "4"]
OVER = ["--over", "noise-multiplier=.8:3", "--over", "rounds=5:7", "--accountant", "rdp"]
SWEEP = """title = "One row"
profiles = { full = {} }
base.data.name = "digits"
base.model = { name = "mlp", hidden = [4] }
base.federation = { clients = 6, cohort = 3, rounds = 1 }
base.local = { learning_rate = 0.3, epochs = 1, batch_size = 10 }
base.method.name = "fedavg"
row = [{ name = "FedAvg" }]
"""

FILES = {
    "budget.plot": [*BUDGET, "--rounds", "5", "--plot", "OUT"],
    "budget.plot, --over": ["budget", *PLAN[:2], *PLAN[4:], *OVER, "--plot", "OUT"],
    "budget.plot, --ledger": ["budget", "--sampling", "all", "--noise-multiplier", "90", "--rounds", "5",
                              "--ledger", "PROJECT", "--plot", "OUT"],
    "plan.static": ["plan", *PLAN[:2], *PLAN[4:], "--rounds", "2", "--noise-multiplier", "4", "--static", "OUT"],
    "report.card": ["report", "RUN", "--card", "OUT"],
    "report.registry": ["report", "RUN", "--registry", "OUT"],
    "ledger sign": ["ledger", "sign", "PROJECT", "--key", "KEY"],
    "ledger restore.path": ["ledger", "restore", "COPY", "OUT", "--nothing-since"],
    "ledger create.path": ["ledger", "create", "OUT", "--clients", "9", "--epsilon", "1"],
    "ledger keygen.path": ["ledger", "keygen", "OUT"],
}  # fmt: skip
"""Commands that write a file; OUT names it, but for `sign`, which writes PROJECT.sig."""
REFUSED = {"ledger restore.path": ("link to a folder", "link to a device")}
"""Links that an option refuses, because it reads the target first."""
NEW_ONLY = {"ledger create.path", "ledger keygen.path"}
"""Outputs that must not exist: a ledger and a private key are never replaced."""

FOLDERS = {
    "run.out": ["run", "fedavg-digits", "--set", "federation.rounds=1", "--out", "OUT"],
    "report.out": ["report", "RUN", "--out", "OUT"],
    "report.pack": ["report", "RUN", "--pack", "OUT"],
    "audit.out": ["audit", "RUN", "--effort", "quick", "--out", "OUT"],
    "deploy.out": ["deploy", "dp-fedavg-digits", "--out", "OUT"],
    "sweep.out": ["sweep", "SWEEP", "--jobs", "1", "--out", "OUT"],
    "ledger backup.to": ["ledger", "backup", "PROJECT", "OUT"],
}
"""Commands that write a folder."""

INPUTS = {
    *(
        "audit.project",
        "budget.ledger",
        "cite.folder",
        "diagnose.folder",
        "ledger create.population",
        "ledger show.path",
    ),
    *("ledger verify.path", "ledger verify.key", "ledger backup.path", "ledger restore.copy", "ledger sign.path"),
    *("ledger sign.key", "report.folders", "report.about", "run.ledger", "sweep.experiment", "watch.folder"),
    *("verify.bundle", "verify.key"),
}
"""Options with a path that is read. Ledgers are charged, too: tests/accounting/ledger/test_one_path.py."""


def test_every_option_with_a_path_is_an_input_or_in_these_tables() -> None:
    commands = {name: getattr(importlib.import_module(f"dpfed.cli.{name}"), name) for name in COMMANDS}
    plain = {name: one for name, one in commands.items() if inspect.isfunction(one)}
    plain["audit"] = importlib.import_module("dpfed.cli.audit").audit_anything
    names = ("create", "show", "verify", "backup", "restore", "sign", "keygen")
    plain |= {f"ledger {name}": getattr(ledger_commands, name) for name in names}
    found = {
        f"{command}.{option}"
        for command, function in plain.items()
        for option, kind in typing.get_type_hints(function).items()
        if Path in (kind, *typing.get_args(kind))
    }
    tested = {name.partition(",")[0] for name in (*FILES, *FOLDERS)} - {"ledger sign"}
    assert found == INPUTS | tested


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("outputs") / "run", "federation.rounds=2")


def arguments(command: list[str], out: Path, at: Path, finished: Path) -> tuple[list[str], Path]:
    """Make what a command reads; return its arguments and the path that it writes."""
    at.mkdir()
    if "PROJECT" in command or "COPY" in command:
        ProjectLedger.create(at / "project.jsonl", clients=100, epsilon=1.0, delta=1e-5)
    if "KEY" in command:
        assert status(["ledger", "keygen", str(at / "key")]) == 0
        out.rename(at / "project.jsonl.sig") if os.path.lexists(out) else None
        out = at / "project.jsonl.sig"
    if "SWEEP" in command:
        (at / "sweep.toml").write_text(SWEEP)
    source = copied(finished, at / "run") if "RUN" in command else at / "run"
    names = {"OUT": out, "PROJECT": at / "project.jsonl", "COPY": at / "project.jsonl", "KEY": at / "key"}
    names |= {"RUN": source, "SWEEP": at / "sweep.toml"}
    return [str(names.get(word, word)) for word in command], out


def make(kind: str, out: Path) -> None:
    match kind:
        case "file":
            out.write_text("old")
        case "fifo":
            os.mkfifo(out)
        case "socket":
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(os.path.relpath(out))
        case "folder":
            out.mkdir()
        case "full folder":
            out.mkdir()
            (out / "mine").write_text("old")
        case "device":
            try:
                os.mknod(out, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except PermissionError:
                pytest.skip("making a device requires root")
        case "link to a file":
            (out.parent / "target").write_text("old")
            out.symlink_to("target")
        case "link to a folder":
            (out.parent / "target").mkdir()
            out.symlink_to("target")
        case "link to a device":
            out.symlink_to("/dev/null")
        case "link to nothing":
            out.symlink_to("target")


def one_error(capfd: pytest.CaptureFixture[str], out: Path) -> bool:
    """Return True if standard error has exactly one error, which names the path."""
    shown = capfd.readouterr().err
    errors = [line for line in shown.splitlines() if line.startswith(("dpfed: ", "No report was written: "))]
    named = any(str(one) in line for line in errors for one in (out, os.path.realpath(out)))
    return len(errors) == 1 and named and "Traceback" not in shown


def check_file(option: str, kind: str, at: Path, finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = at / "out.png"
    make(kind, out)
    command, out = arguments(FILES[option], out, at / "inputs", finished)
    before = os.stat(out, follow_symlinks=False) if kind != "nothing" else None
    capfd.readouterr()
    with bounded(megabytes=4000):
        code = status(command)
    replaceable = kind in ("nothing", "file") or (kind.startswith("link") and kind not in REFUSED.get(option, ()))
    if replaceable and (option not in NEW_ONLY or not os.path.exists(out) or code == 0):
        assert code == 0, capfd.readouterr().err
        assert stat.S_ISREG(os.stat(out).st_mode)
        assert out.stat().st_size > 3
    else:
        assert code in (1, 2)
        assert one_error(capfd, out)
        after = os.stat(out, follow_symlinks=False)
        assert (after.st_ino, after.st_mode, after.st_size) == (before.st_ino, before.st_mode, before.st_size)
    if kind == "link to a file":  # a ledger in the place of its link would be a second copy of one budget
        assert ((at / "target").read_text() == "old") is (option != "ledger restore.path")
    assert Path("/dev/null").is_char_device()
    assert not list(at.glob("*.part"))


KINDS = ("nothing", "file", "fifo", "socket", "folder", "device")
LINKS = ("link to a file", "link to a folder", "link to a device", "link to nothing")


def cases(options: dict[str, list[str]], kinds: tuple[str, ...], few: tuple[str, ...]) -> list[tuple[str, str]]:
    """All kinds for the first option; for the others those that a plain `open` would take."""
    first = next(iter(options))
    of_others = {option: (*few, *REFUSED.get(option, ())) for option in options}
    return [(option, kind) for option in options for kind in (kinds if option == first else of_others[option])]


FILE_CASES = cases(FILES, (*KINDS, *LINKS), ("nothing", "fifo", "folder", "link to a file"))
FOLDER_CASES = cases(FOLDERS, (*KINDS, *LINKS, "full folder"), ("nothing", "file", "fifo", "full folder"))


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_a_private_key_replaces_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str) -> None:
    check_file("ledger keygen.path", kind, tmp_path, tmp_path, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(("option", "kind"), FILE_CASES)
def test_a_file_is_replaced_or_refused(
    tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str], option: str, kind: str
) -> None:
    check_file(option, kind, tmp_path, finished, capfd)


@pytest.mark.slow
@pytest.mark.parametrize(("option", "kind"), FOLDER_CASES)
def test_a_folder_is_written_or_refused(
    tmp_path: Path, finished: Path, capfd: pytest.CaptureFixture[str], option: str, kind: str
) -> None:
    out = tmp_path / "out"
    make(kind, out)
    command, out = arguments(FOLDERS[option], out, tmp_path / "inputs", finished)
    before = os.stat(out, follow_symlinks=False) if kind != "nothing" else None
    capfd.readouterr()
    with bounded(megabytes=4000):
        code = status(command)
    if kind in ("nothing", "folder", "link to a folder") or (code == 0 and (out / "mine").exists()):
        assert code == 0, capfd.readouterr().err
        assert out.is_dir()
        assert any(out.iterdir())
    else:
        assert code in ((0, 1) if option == "audit.out" else (1, 2))  # an audit's outcome stands without its pages
        assert one_error(capfd, out)
        after = os.stat(out, follow_symlinks=False)
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    if kind == "link to a file":
        assert (tmp_path / "target").read_text() == "old"
    if kind == "full folder":
        assert (out / "mine").read_text() == "old"
