"""`dpfed cite`: the BibTeX of the method, account and data that a run used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path

from dpfed.cli.output import Flag, print_json, training_extra
from dpfed.version import __version__

_ENTRY = re.compile(r"^(@\w+\{\w+), keywords = \{([^}]*)\},\n((?:  .*\n)+)", re.MULTILINE)
_OFF = (None, False, 0, "none")


def cite(folder: Path, *, json: Flag = False) -> None:
    """Print the BibTeX of dpfed and of the method, account and data that a run used.

    A user-defined method, sampler or data set has no entry: a comment names it, so that you add its source.

    Example: dpfed cite runs/fed-smp-randk-digits

    Parameters
    ----------
    folder
        The folder of a finished run.
    json
        One JSON document: the entries by their key, and what has no entry.
    """
    with training_extra("dpfed cite"):
        from dpfed.records.summary import read_finished
    found = read_finished(folder)
    settings = dict(_flat_settings(found.config)) | found.summary.to_dict() | {"package": found.package}
    entries, without = cited_entries(settings)
    if json:
        print_json({"folder": str(folder), "entries": entries, "without_entry": without})
        return
    print("\n".join([*entries.values(), *(f"% no entry for {one}: add its source" for one in without)]))


def cited_entries(settings: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """Return the entries of `dpfed/report/references.bib` for a run's settings by key, and methods, samplers and data
    sets without an entry. settings: values by the key of summary.json, or TABLE.KEY of config.toml.
    """
    version = str(settings.get("package", "")).removeprefix("dpfed").strip() or __version__
    software = (
        f"@software{{dpfed,\n  title = {{dpfed}}, author = {{The dpfed authors}}, version = {{{version}}}, "
        "license = {Apache-2.0}}\n"
    )
    entries, known = {"dpfed": software}, set()
    for head, keywords, body in _ENTRY.findall((files("dpfed.report") / "references.bib").read_text(encoding="utf-8")):
        known |= set(re.findall(r"[\w.]+=[\w-]+", keywords))
        if any(all(_holds(one, settings) for one in words.split(" & ")) for words in keywords.split("; ")):
            entries[head.partition("{")[2]] = f"{head},\n{body}"
    plain = {"sampling=poisson", "sampling=fixed", "sampling=all", "sampling=cyclic", "sampling=shuffled"}
    stated = [f"{key}={settings.get(key)}" for key in ("method", "dataset", "sampling")]
    return entries, [one for one in stated if one not in known | plain]


def _holds(keyword: str, settings: Mapping[str, object]) -> bool:
    """Return True if a run has this setting: KEY=VALUE, or KEY that is set to anything but false, 0 or "none"."""
    key, _, value = keyword.partition("=")
    return str(settings.get(key)) == value if value else settings.get(key) not in _OFF


def _flat_settings(tables: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tables.items():
        yield f"{above}{key}", value
        if isinstance(value, Mapping):
            yield from _flat_settings(value, f"{above}{key}.")
