"""`dpfed config`: describe the keys of a configuration, print a starter file, or print a schema for editors."""

from __future__ import annotations

import json as json_text
from typing import Any

import tomli_w

from dpfed.cli.output import Flag, console, print_json, table_of
from dpfed.errors import ConfigError
from dpfed.methods import catalogue
from dpfed.methods.keys import (
    STATED_DEFAULT,
    KeyRecord,
    key_named,
    keys_by_kind,
    keys_of_table,
    schema_of,
    table_descriptions,
)

SCHEMA = "dpfed.schema.json"


def config(
    name: str | None = None,
    *,
    new: str | None = None,
    schema: Flag = False,
    markdown: Flag = False,
    json: Flag = False,
) -> None:
    """Print the keys of a configuration: type, default, meaning, and the methods that take them.

    Example: dpfed config privacy.epsilon

    Parameters
    ----------
    name
        A key (privacy.epsilon) or a table (privacy); default: all keys.
    new
        Name of a preset; print its configuration as a TOML file to edit.
    schema
        Print the JSON schema, for editors that check TOML files.
    markdown
        Print the page docs/configuration.md.
    json
        Print the keys as one JSON list.
    """
    if sum([new is not None, schema, markdown, json]) > 1 or (name is not None and (new or schema or markdown)):
        raise ConfigError("dpfed config: give one of KEY, --new, --schema, --markdown, --json (KEY with --json works).")
    if new is not None:
        print(starter_file(new), end="")
    elif schema:
        print(json_text.dumps(schema_of(), indent=1))
    elif markdown:
        print(configuration_page(), end="")
    elif json:
        print_json([one.to_dict() for one in requested_keys(name)])
    else:
        show_keys(name)


def requested_keys(name: str | None) -> list[KeyRecord]:
    """Return the records of one key, of all keys of a table, or of all keys if `name` is None."""
    tables = table_descriptions()
    if name is None:
        return [one for table in tables for one in keys_of_table(table)]
    return keys_of_table(name) if name in tables else [key_named(name)]


def show_keys(name: str | None) -> None:
    """Print the description of one key, of the keys of a table, or of all tables if `name` is None."""
    out = console()
    if name is not None and name not in table_descriptions():
        for line in _key_lines(key_named(name)):
            out.print(line)
        return
    for table in table_descriptions() if name is None else [name]:
        out.print(f"[{table}] {table_descriptions()[table]}")
        for kind in keys_by_kind(table):
            if kind.choice:
                out.print(f"with {kind.choice}: {kind.meaning}")
            rows = table_of("key", "type", "default", "meaning")
            for one in kind.keys:
                rows.add_row(one.name.rpartition(".")[2], one.type, one.default, one.meaning)
            if kind.keys:
                out.print(rows)


def _key_lines(one: KeyRecord) -> list[str]:
    """Return the lines that describe one key in full."""
    lines = [one.name, f"  {one.meaning}", f"  type     {one.type}", f"  default  {one.default}"]
    if one.methods is not None:
        lines.append(f"  methods  {', '.join(one.methods)}")
    if one.needs is not None:
        lines.append(f"  only with {one.needs}")
    if one.excludes:
        lines.append(f"  not with {', '.join(one.excludes)}")
    return lines


def starter_file(preset: str) -> str:
    """Return a preset's configuration as a TOML file to edit, with the meaning of every key that it sets."""
    lines = [
        f"#:schema ./{SCHEMA}",
        f"# The preset {preset}. `dpfed config KEY` explains a key;",
        f"# `dpfed config --schema > {SCHEMA}` writes the schema that editors check this file by.",
        "",
    ]
    for table, keys in _flat_tables(catalogue.preset_tables(preset)):
        lines.append(f"[{table}]")
        lines += [
            f"{_toml_line(name, value)}  # {key_named(f'{table}.{name}').meaning.split('. ')[0].rstrip('.')}"
            for name, value in keys.items()
        ]
        lines.append("")
    return "\n".join(lines)


def _flat_tables(tables: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Return (dotted name, keys) of each table; nested `options` and `dropouts` are values, not tables."""
    known, found = table_descriptions(), []
    for name, value in tables.items():
        dotted = f"{path}{name}"
        if dotted in known:
            found.append((dotted, {k: v for k, v in value.items() if f"{dotted}.{k}" not in known}))
            found += _flat_tables({k: v for k, v in value.items() if f"{dotted}.{k}" in known}, f"{dotted}.")
    return found


def _toml_line(name: str, value: object) -> str:
    if isinstance(value, dict):
        inner = ", ".join(tomli_w.dumps({k: v}).strip() for k, v in value.items())
        return f"{name} = {{ {inner} }}"
    return tomli_w.dumps({name: value}).strip().replace("\n    ", " ").replace("\n", "").replace(",]", " ]")


def configuration_page() -> str:
    """Return the page docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Generated by `dpfed config --markdown`. `dpfed config privacy.epsilon` describes one key. A file to",
        "start from, and the schema with which editors check it:",
        "",
        "```",
        "dpfed config --new fed-smp-randk-digits > my.toml",
        f"dpfed config --schema > {SCHEMA}",
        "```",
        "",
        "A setting on the command line is `--set table.key=value`; `--set table.key=` removes the key.",
    ]
    for table, about in table_descriptions().items():
        lines += ["", f"## [{table}]", "", about]
        for kind in keys_by_kind(table):
            lines += ["", f"### {kind.choice}", "", kind.meaning] if kind.choice else []
            lines += ["", "| key | type | default | meaning |", "|---|---|---|---|"] if kind.keys else []
            lines += [_key_row(one) for one in kind.keys]
    return "\n".join(lines) + "\n"


def _key_row(one: KeyRecord) -> str:
    words = [one.meaning]
    if one.methods is not None:
        words.append(f"Methods: {', '.join(one.methods)}.")
    if one.needs is not None:
        words.append(f"Only with {one.needs}.")
    if one.excludes:
        words.append(f"Not with {', '.join(one.excludes)}.")
    default = one.default if one.default == STATED_DEFAULT else f"`{one.default}`"
    cells = [f"`{one.name.rpartition('.')[2]}`", one.type, default, " ".join(words)]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
