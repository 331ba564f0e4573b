"""`dpfed ledger verify`, `sign` and `keygen`."""

import json
import subprocess
import sys

import pytest

from accounting import Gaussian, Header, Ledger, Release
from accounting.ledger.project import ProjectLedger
from dpfed.cli import status

from ..audit.run_folders import forge_ledger

ROUND = Gaussian(noise_multiplier=20.0, adjacency="add-remove")


def release(number):
    return Release(round=number, mechanism=ROUND, clip_norm=1.0, noise_std=20.0, noise_placement="server")


@pytest.fixture
def ledger(tmp_path):
    made = Ledger.create(tmp_path / "ledger.jsonl", Header(unit="client", clients=10, randomness="secure"))
    made.record_all(release(round) for round in range(3))
    return made


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "operator.pem"
    assert status(["ledger", "keygen", str(path)]) == 0
    assert path.stat().st_mode & 0o077 == 0
    return str(path), f"{path}.pub"


def verify(ledger, capsys, *options):
    capsys.readouterr()
    code = status(["ledger", "verify", str(ledger.path), "--json", *options])
    shown = capsys.readouterr()
    return code, json.loads(shown.out) if code == 0 else shown.err


def test_a_chain_and_a_head(ledger, capsys):
    early = Ledger.read(ledger.path).head
    ledger.record(release(3))
    code, shown = verify(ledger, capsys, "--head", early)
    assert (code, shown["entries"], shown["head"], shown["entries_after_head"]) == (0, 4, ledger.head, 1)
    assert (shown["kind"], shown["signature"]) == ("run", None)
    assert status(["ledger", "verify", str(ledger.path), "--head", early]) == 0
    assert "unbroken" in capsys.readouterr().out
    forge_ledger(ledger.path, lambda lines: lines.pop(2))
    assert verify(ledger, capsys)[0] == 0  # nothing but what was kept elsewhere knows
    code, words = verify(ledger, capsys, "--head", early)
    assert (code, "has no line of hash" in words) == (1, True)
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b"20.0", b"30.0"))
    code, words = verify(ledger, capsys)
    assert (code, "its hash does not match" in words) == (1, True)


def test_a_project_is_checked_against_its_head(tmp_path, capsys):
    project = ProjectLedger.create(tmp_path / "p.jsonl", clients=10, epsilon=3.0, delta=1e-5)
    project.charge(release(0), run="a")
    code, shown = verify(project.ledger, capsys)
    assert (code, shown["kind"], shown["entries"]) == (0, "project", 1)
    project.ledger.path.write_bytes(project.ledger.path.read_bytes().splitlines(keepends=True)[0])
    code, words = verify(project.ledger, capsys)
    assert (code, "which p.jsonl.head names" in words) == (1, True)


def test_a_signature_holds_while_the_ledger_grows(ledger, keys, capsys):
    private, public = keys
    assert status(["ledger", "sign", str(ledger.path), "--key", private]) == 0
    signed = ledger.head
    ledger.record(release(3))
    code, shown = verify(ledger, capsys, "--key", public)
    assert code == 0
    assert shown["signature"] == {"ledger": ledger.identity, "head": signed, "entries": 3, "entries_after": 1}
    assert status(["ledger", "verify", str(ledger.path), "--key", public]) == 0
    assert "after 3 entries; entries since: 1" in " ".join(capsys.readouterr().out.split())


def test_the_signature_is_ed25519_over_the_head(ledger, keys):
    """By the library's own call, on bytes put together here."""
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    assert status(["ledger", "sign", str(ledger.path), "--key", keys[0]]) == 0
    record = json.loads(ledger.path.with_name("ledger.jsonl.sig").read_text())
    message = f'dpfed-ledger-head-1\n{{"entries": 3, "head": "{ledger.head}", "ledger": "{ledger.identity}"}}'
    with open(keys[1], "rb") as file:
        load_pem_public_key(file.read()).verify(bytes.fromhex(record["signature"]), message.encode())


@pytest.mark.parametrize(
    "attack", ["cut", "forged", "other ledger", "number", "head", "signature", "other key", "none", "not json", "list"]
)
def test_what_was_signed_cannot_be_changed(ledger, keys, tmp_path, capsys, attack):
    private, public = keys
    source = tmp_path / "ledger.jsonl.sig"
    assert status(["ledger", "sign", str(ledger.path), "--key", private]) == 0
    record = json.loads(source.read_text())
    if attack == "cut":
        ledger.path.write_bytes(b"".join(ledger.path.read_bytes().splitlines(keepends=True)[:-1]))
    elif attack == "forged":
        forge_ledger(ledger.path, lambda lines: lines[3].update(noise_std=40.0))
    elif attack == "other ledger":
        forge_ledger(ledger.path, lambda lines: lines[0].update(clients=11))
    elif attack == "other key":
        assert status(["ledger", "keygen", str(tmp_path / "b.pem")]) == 0
        public = str(tmp_path / "b.pem.pub")
    elif attack == "none":
        source.unlink()
    elif attack in ("not json", "list"):
        source.write_text("[" if attack == "not json" else "[]")
    else:
        other = {"number": ("entries", 2), "head": ("head", ledger.identity), "signature": ("signature", "00" * 64)}
        name, value = other[attack]
        source.write_text(json.dumps(record | {name: value}))
    code, words = verify(ledger, capsys, "--key", public)
    assert code == 1
    assert len(words.splitlines()) == 1


def test_wrong_input_is_one_error(ledger, keys, tmp_path, capsys):
    private, public = keys
    (tmp_path / "rubbish").write_bytes(b"\x00\xff" * 100)
    cases = [
        (["verify", str(ledger.path), "--head", "abc"], "must be 64 hexadecimal digits"),
        (["verify", str(ledger.path), "--key", private], "--key"),
        (["verify", str(ledger.path), "--key", str(tmp_path / "absent")], "cannot be read as a key"),
        (["sign", str(ledger.path), "--key", public], "cannot be read as a key"),
        (["sign", str(ledger.path), "--key", str(tmp_path / "rubbish")], "cannot be read as a key"),
        (["keygen", private], "exists already"),
        (["keygen", str(tmp_path / "no" / "folder")], "cannot be written"),
    ]
    for arguments, words in cases:
        capsys.readouterr()
        assert status(["ledger", *arguments]) == 2, arguments
        shown = capsys.readouterr().err
        assert words in shown
        assert len(shown.splitlines()) == 1
    assert status(["ledger", "verify", str(tmp_path / "absent")]) == 1


@pytest.mark.parametrize("command", [["show"], ["verify"], ["keygen"], ["sign", "--key", "."], ["backup", "copies"]])
def test_a_folder_without_a_name_is_no_ledger_and_no_key(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    assert status(["ledger", *command[:1], ".", *command[1:]]) in (1, 2)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_key_of_another_kind_is_refused(ledger, tmp_path, capsys):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pem, private = serialization.Encoding.PEM, ec.generate_private_key(ec.SECP256R1())
    bytes_ = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (tmp_path / "ec.pem").write_bytes(bytes_)
    assert status(["ledger", "sign", str(ledger.path), "--key", str(tmp_path / "ec.pem")]) == 2
    assert "Ed25519PrivateKey" in capsys.readouterr().err


def test_verify_loads_neither_torch_nor_the_library_of_signatures(ledger):
    code = (
        "import sys; from dpfed.cli import status; code = status(['ledger', 'verify', sys.argv[1]]); "
        "assert not {'torch', 'cryptography', 'pydantic'} & set(sys.modules); sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", code, str(ledger.path)], check=True, capture_output=True)


def test_without_the_library_the_extra_is_named(ledger, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    assert status(["ledger", "verify", str(ledger.path), "--key", "x.pub"]) == 2
    assert "dpfed[train]" in capsys.readouterr().err
