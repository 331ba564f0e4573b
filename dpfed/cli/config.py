"""`dpfed config`: every key of a configuration, in words; a file to begin with; a schema for editors."""

from __future__ import annotations

import json as json_text
from typing import TYPE_CHECKING, Any

from rich.table import Table

from dpfed.cli.output import Flag, console, print_json
from dpfed.errors import ConfigError

if TYPE_CHECKING:  # other commands do without the tables
    from dpfed.methods.key_reference import KeyFacts

SCHEMA = "dpfed.schema.json"


def config(
    name: str | None = None,
    *,
    new: str | None = None,
    schema: Flag = False,
    markdown: Flag = False,
    json: Flag = False,
) -> None:
    """The keys of a configuration: type, default, meaning, which methods take them.

    Example: dpfed config privacy.epsilon

    Parameters
    ----------
    name
        A key (privacy.epsilon) or a table (privacy); without one, all of them.
    new
        A preset: its configuration as a TOML file on standard output, to be changed.
    schema
        The JSON schema on standard output, for editors that check TOML files.
    markdown
        The page docs/configuration.md on standard output.
    json
        The keys as one JSON list on standard output.
    """
    if sum([new is not None, schema, markdown, json]) > 1 or (name is not None and (new or schema or markdown)):
        raise ConfigError("dpfed config: give one of KEY, --new, --schema, --markdown, --json (KEY with --json works).")
    if new is not None:
        print(beginning(new), end="")
    elif schema:
        from dpfed.methods.key_reference import schema_of

        print(json_text.dumps(schema_of(), indent=1))
    elif markdown:
        print(page(), end="")
    elif json:
        print_json([one.to_dict() for one in _asked(name)])
    else:
        _show(name)


def _asked(name: str | None) -> list[KeyFacts]:
    from dpfed.methods.key_reference import every_table, key, keys_of

    tables = every_table()
    if name is None:
        return [one for table in tables for one in keys_of(table)]
    return keys_of(name) if name in tables else [key(name)]


def _show(name: str | None) -> None:
    from dpfed.methods.key_reference import by_kind, every_table, key

    out = console()
    if name is not None and name not in every_table():
        for line in _lines(key(name)):
            out.print(line, highlight=False, markup=False)
        return
    for table in every_table() if name is None else [name]:
        out.print(f"[{table}] {every_table()[table]}", highlight=False, markup=False)
        for kind in by_kind(table):
            if kind.choice:
                out.print(f"with {kind.choice}: {kind.meaning}", highlight=False, markup=False)
            rows = Table()
            for heading in ("key", "type", "default", "meaning"):
                rows.add_column(heading, overflow="fold")
            for one in kind.keys:
                rows.add_row(one.name.rpartition(".")[2], one.type, one.default, one.meaning)
            if kind.keys:
                out.print(rows, markup=False)


def _lines(one: KeyFacts) -> list[str]:
    """One key, whole."""
    lines = [one.name, f"  {one.meaning}", f"  type     {one.type}", f"  default  {one.default}"]
    if one.methods is not None:
        lines.append(f"  methods  {', '.join(one.methods)}")
    if one.needs is not None:
        lines.append(f"  only with {one.needs}")
    if one.excludes:
        lines.append(f"  not with {', '.join(one.excludes)}")
    return lines


def beginning(preset: str) -> str:
    """A preset's configuration as a file to be changed, with the meaning of every key that it sets."""
    from dpfed.methods import presets
    from dpfed.methods.key_reference import key

    lines = [
        f"#:schema ./{SCHEMA}",
        f"# The preset {preset}. `dpfed config KEY` explains a key;",
        f"# `dpfed config --schema > {SCHEMA}` writes the schema that editors check this file by.",
        "",
    ]
    for table, keys in _flat(presets.tables(preset)):
        lines.append(f"[{table}]")
        lines += [f"{_toml(name, value)}  # {_first(key(f'{table}.{name}').meaning)}" for name, value in keys.items()]
        lines.append("")
    return "\n".join(lines)


def _flat(tables: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Tables by dotted name with their own keys; options and dropouts are values, not tables."""
    from dpfed.methods.key_reference import every_table

    known, found = every_table(), []
    for name, value in tables.items():
        dotted = f"{path}{name}"
        if dotted in known:
            found.append((dotted, {k: v for k, v in value.items() if f"{dotted}.{k}" not in known}))
            found += _flat({k: v for k, v in value.items() if f"{dotted}.{k}" in known}, f"{dotted}.")
    return found


def _toml(name: str, value: object) -> str:
    import tomli_w

    if isinstance(value, dict):
        inner = ", ".join(tomli_w.dumps({k: v}).strip() for k, v in value.items())
        return f"{name} = {{ {inner} }}"
    return tomli_w.dumps({name: value}).strip().replace("\n    ", " ").replace("\n", "").replace(",]", " ]")


def _first(meaning: str) -> str:
    """The first sentence, without its full stop."""
    return meaning.split(". ")[0].rstrip(".")


def page() -> str:
    """docs/configuration.md."""
    from dpfed.methods.key_reference import by_kind, every_table

    lines = [
        "# Configuration",
        "",
        "Generated by `dpfed config --markdown`. `dpfed config privacy.epsilon` says the same of one key. A file to",
        "begin with, and the schema that editors check it by:",
        "",
        "```",
        "dpfed config --new fed-smp-randk-digits > my.toml",
        f"dpfed config --schema > {SCHEMA}",
        "```",
        "",
        "A setting on the command line is `--set table.key=value`; `--set table.key=` removes the key.",
    ]
    for table, about in every_table().items():
        lines += ["", f"## [{table}]", "", about]
        for kind in by_kind(table):
            lines += ["", f"### {kind.choice}", "", kind.meaning] if kind.choice else []
            lines += ["", "| key | type | default | meaning |", "|---|---|---|---|"] if kind.keys else []
            lines += [_row(one) for one in kind.keys]
    return "\n".join(lines) + "\n"


def _row(one: KeyFacts) -> str:
    words = [one.meaning]
    if one.methods is not None:
        words.append(f"Methods: {', '.join(one.methods)}.")
    if one.needs is not None:
        words.append(f"Only with {one.needs}.")
    if one.excludes:
        words.append(f"Not with {', '.join(one.excludes)}.")
    cells = [f"`{one.name.rpartition('.')[2]}`", one.type, f"`{one.default}`", " ".join(words)]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
