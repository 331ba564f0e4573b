"""`dpfed report`: one page over runs."""

from __future__ import annotations

from pathlib import Path

from dpfed.cli.output import Flag, training_extra
from dpfed.errors import ConfigError


def report(
    *folders: Path,
    out: Path | None = None,
    card: Path | None = None,
    registry: Path | None = None,
    about: Path | None = None,
    json: Flag = False,
) -> None:
    """Write one HTML page over runs, figures as PNG and PDF, and the numbers as CSV, beside those that a paper prints.

    Example: dpfed report runs/fed-smp-randk-digits --card model-card.md --registry entry.yaml

    Parameters
    ----------
    folders
        The folder of a sweep, or one or more run folders. Runs that differ in their seed alone are one row.
    out
        Folder of report.html; default: the folder report in the first run folder.
    card
        Write a model card (Hugging Face's format) of one run here, and no page.
    registry
        Write an entry for OpenDP's registry of deployments of one run here, and no page.
    about
        A TOML file with what a run does not contain: who publishes the model, and what for. On a terminal the command
        prompts for missing entries; entries without an answer are marked in the text.
    json
        Print the table as one JSON document.
    """
    with training_extra("dpfed report"):
        from dpfed.cli.report_on_terminal import show_collection, write_statements
        from dpfed.report.collection import collect
        from dpfed.report.experiment import write_experiment_report
    if not folders:
        raise ConfigError("no folder given: name the folder of a sweep, or run folders.")
    if card is not None or registry is not None:
        write_statements(folders, card=card, registry=registry, about=about, json=json)
        return
    if about is not None:
        raise ConfigError(
            "--about without --card or --registry: a page needs no answers. Leave it out, or name a file."
        )
    found = collect(folders)
    page = write_experiment_report(found, out or folders[0] / "report")
    show_collection(found, page, json=json)
