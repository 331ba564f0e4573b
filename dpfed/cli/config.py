"""`dpfed config`: describe the keys of a configuration, print a starter file, or print a schema for editors."""

from __future__ import annotations

import json as json_text

from dpfed.cli.output import Flag, print_json
from dpfed.errors import ConfigError


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
    from dpfed.cli.config_pages import configuration_page, requested_keys, show_keys, starter_file
    from dpfed.methods.keys import schema_of

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
