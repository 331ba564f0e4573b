"""`dpfed report`: write a page that compares runs."""

from __future__ import annotations

from pathlib import Path

from dpfed.cli.output import Flag, training_extra
from dpfed.errors import ConfigError


def report(
    *folders: Path,
    out: Path | None = None,
    card: Path | None = None,
    registry: Path | None = None,
    pack: Path | None = None,
    about: Path | None = None,
    latex: Flag = False,
    sentence: Flag = False,
    json: Flag = False,
) -> None:
    """Write an HTML page that compares runs with published numbers, figures as PNG and PDF, and CSV tables.

    Example: dpfed report runs/fed-smp-randk-digits --card model-card.md --registry entry.yaml

    Parameters
    ----------
    folders
        The folder of a sweep, or one or more run folders. Runs that differ only in their seed form one row.
    out
        Folder of report.html; default: the subfolder `report` of the first folder.
    card
        Write a model card (Hugging Face's format) of one run to this file, and no page.
    registry
        Write an entry of one run for OpenDP's registry of deployments to this file, and no page.
    pack
        Write the privacy officer's pack of one run to this folder, and no page: pack.html and pack.json answer NIST SP
        800-226, EDPB 28/2024, OWASP AISVS and OpenDP's registry, beside the published files (`dpfed verify FOLDER`).
    about
        A TOML file with information that a run folder lacks, such as the publisher and the purpose. On a terminal the
        command prompts for missing entries; entries without an answer are marked in the text.
    latex
        Print the table in LaTeX (booktabs) instead of text; the page is written all the same.
    sentence
        Print the privacy paragraph of all rows, with the conditions of each epsilon, instead of the table.
    json
        Print the table as one JSON document.
    """
    with training_extra("dpfed report"):
        from dpfed.cli.report_on_terminal import show_collection, write_statements
        from dpfed.report.collection import collect_runs
        from dpfed.report.experiment import write_experiment_report
        from dpfed.report.statistics import latex_table, privacy_paragraph
    if not folders:
        raise ConfigError("no folder given: name the folder of a sweep, or run folders.")
    if card is not None or registry is not None or pack is not None:
        write_statements(folders, card=card, registry=registry, pack=pack, about=about, json=json)
        return
    if about is not None:
        raise ConfigError(
            "--about without --card, --registry or --pack: only these use its answers. Remove it, or give one of them."
        )
    if latex + sentence + json > 1:
        raise ConfigError("--latex, --sentence, --json: each prints the result in its form. Give one of them.")
    found = collect_runs(folders)
    page = write_experiment_report(found, out or folders[0] / "report")
    if latex or sentence:
        print(latex_table(found) if latex else privacy_paragraph(found))
        return
    show_collection(found, page, json=json)
