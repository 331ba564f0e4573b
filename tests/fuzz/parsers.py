"""Every parser of bytes that others wrote: seeds of its format, and one call that accepts them or refuses them.

A `Parser`'s `parse` raises nothing but the documented families (`accounting.errors`, `dpfed.errors`). `sealed` puts
right what a forger would put right (checksums, chains, compression), so that mutations reach what lies behind.
"""

from fuzz import of_data_sets, of_folders, of_ledgers, of_runs, of_uploads, parser
from fuzz.parser import Parser

PARSERS: dict[str, Parser] = (
    of_uploads.PARSERS | of_ledgers.PARSERS | of_runs.PARSERS | of_data_sets.PARSERS | of_folders.PARSERS
)


def clean_up() -> None:
    """Remove what `parse` has written."""
    parser.clean_up()
    of_ledgers.signed.cache_clear()
