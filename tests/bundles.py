"""Bundles of published runs, made by hand for `dpfed verify`, and planted changes of them."""

import hashlib
import json

from run_folders import SUMMARY

from accounting import Header, Ledger, Release
from accounting.ledger import Planned
from accounting.ledger.hash_chain import chained_line
from accounting.mechanisms import noise_of, sampling_of
from dpfed.records.round import configuration_hash
from dpfed.records.summary import Summary
from dpfed.report.privacy_text import privacy_statement

CLIENTS, DELTA = 600, 1e-5


def written(folder, mechanism, rounds, *, delta=DELTA, clients=CLIENTS, **federation):
    """Write the bundle of a run whose planned rounds all released `mechanism`, and return its folder.

    federation: keys of the configuration other than those of the mechanism's sampling
    """
    folder.mkdir(parents=True)
    cohort, name = round(clients * sampling_of(mechanism).probability), sampling_of(mechanism).name
    tables = {
        "data": {"name": "digits"}, "method": {"name": "fedavg"}, "run": {"release": True},
        "federation": {"clients": clients, "cohort": cohort, "rounds": rounds, "sampling": name} | federation,
        "privacy": {"delta": delta},
    }  # fmt: skip
    lines = [
        f"[{table}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()) for table, keys in tables.items()
    ]
    (folder / "config.toml").write_text("".join(lines))
    header = Header(
        unit="client", clients=clients, randomness="secure", about={"delta": delta}, population="0" * 64,
        binding={"configuration": configuration_hash(tables)}, plan=Planned(rounds=rounds),
    )  # fmt: skip
    ledger, z = Ledger.create(folder / "ledger.jsonl", header), noise_of(mechanism).noise_multiplier
    release = {"mechanism": mechanism, "clip_norm": 0.5, "noise_std": 0.5 * z, "noise_placement": "server"}
    ledger.record_all([Release(round=number, **release) for number in range(rounds)])
    stated = ledger.guarantee(delta)
    summary = SUMMARY | {
        "clients": clients, "cohort": cohort, "sampling": tables["federation"]["sampling"],
        "rounds": rounds, "unit": "client", "delta": delta,
        "epsilon": stated.epsilon, "lower_bound": stated.lower_bound, "adjacency": stated.adjacency,
        "accountant": stated.method, "noise_multiplier": z, "clip_norm": 0.5, "noise_placement": "server",
        "noise": "gaussian", "randomness": "secure", "for_release": True, "population": "0" * 64, "no_statement": None,
        "delta_charged_for_failures": 0.0, "ledger_head": ledger.head, "ledger_entries": rounds,
        "notes": list(stated.notes), **stated.readings().to_dict(),
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))
    write_pack(folder)
    return folder


def write_pack(folder):
    """Write pack.json for the folder's present files, as a forger also can."""
    files = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in NAMES}
    sentence = privacy_statement(Summary.of_folder(folder))
    (folder / "pack.json").write_text(json.dumps({"statement": sentence, "files": files}))


NAMES = ("config.toml", "ledger.jsonl", "summary.json")


def change_json(name, *, unreadable=False, **values):
    """Return a change of some keys of a JSON file, with digests made again."""

    def change(folder):
        record = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(record | values))
        if name != "pack.json" and not unreadable:
            write_pack(folder)

    return change


def change_lines(edit, *, again=True, **values):
    """Return a change of the ledger's records by `edit`, re-chained, with head, number and digests made again."""

    def change(folder):
        path, previous, content = folder / "ledger.jsonl", "", []
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in edit(records) or records:
            record.pop("chain", None)
            line, previous = chained_line(record, previous)
            content.append(line)
        path.write_bytes(b"".join(content))
        if again:
            change_json("summary.json", ledger_head=previous, ledger_entries=len(content) - 1, **values)(folder)

    return change
