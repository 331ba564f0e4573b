"""Do configuration, ledger, checkpoint and summary of a folder belong to one run, to its last line?"""

from __future__ import annotations

from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.evidence.run_lines import Unavailable
from dpfed.config.own_code import code_hash
from dpfed.run.binding import configuration_hash

Finding = tuple[bool | None, str]


def files_are_of_one_run(files: RunFiles) -> Finding:
    """Claim checked: the ledger's header and the checkpoint have the hash of config.toml as it stands, the same start
    and the same population as each other and the summary; and the ledger still holds the last line that checkpoint and
    summary saw. (The population's hash has a key that is not for others, the start a model: they are compared, not
    worked out.)"""
    header, ledger, facts = files.trusted_ledger.header, files.trusted_ledger, files.checkpoint.facts
    if header.binding is None or header.population is None or "ledger_head" not in facts:
        raise Unavailable("ledger.jsonl, checkpoint.safetensors: name no run. It was made by a version that did not.")
    configuration = configuration_hash(files.tables)
    pairs = {
        "config.toml is not the configuration in the ledger's header": (
            configuration,
            header.binding.get("configuration"),
        ),
        "config.toml is not the configuration of the checkpoint": (configuration, facts.get("run")),
        "ledger and checkpoint have another start": (header.binding.get("start"), facts.get("start")),
        "own_code.json is not the code in the ledger's header": (
            code_hash(files.own_code),
            header.binding.get("own_code", ""),
        ),
        "ledger and checkpoint have other clients": (header.population, facts.get("population")),
        "ledger and summary have other clients": (header.population, files.summary.get("population")),
        "summary.json saw another last line of the ledger": (ledger.head, files.summary.get("ledger_head")),
        "summary.json saw another number of lines": (len(ledger.entries), files.summary.get("ledger_entries")),
    }
    wrong = [words for words, (one, other) in pairs.items() if one != other]
    files.compared |= {"population", "ledger_head", "ledger_entries"}
    later = ledger.entries_after(facts["ledger_head"])
    if later is None:
        wrong.append("the last line of the ledger that the checkpoint saw is not there")
    elif any(entry.round < files.checkpoint.round for entry in ledger.entries[len(ledger.entries) - later :]):
        wrong.append("rounds of the checkpoint were charged after it was written")
    if wrong:
        return False, "; ".join(wrong) + "."
    return True, "configuration, ledger, checkpoint and summary name the same run, clients and last line of the ledger."
