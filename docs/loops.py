"""Table of docs/limitations.md with the training that runs in a loop, from the reasons of the training code.

python docs/loops.py            print it
python docs/loops.py --write    put it into the page
"""

import sys
from pathlib import Path

from dpfed.clients.plan import LOOPS

PAGE = Path(__file__).with_name("limitations.md")
BEGIN, END = "<!-- loops: begin -->\n", "<!-- loops: end -->\n"


def table() -> str:
    """Return the section with the table."""
    rows = [f"| {one.training} | {one.why} |" for one in LOOPS.values()]
    text = (
        "## Training in a loop\n\n"
        'With `local.strategy = "auto"` this training runs one client after another, not several in one vectorised '
        "pass. No method and no compressor requires that. Other training takes what is expected to be faster."
    )
    return "\n".join([text, "", "| training | why in a loop |", "|---|---|", *rows]) + "\n"


def page_with(section: str) -> str:
    """Return the page with this section between its marks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}{section}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page_with(table()))
    else:
        print(table(), end="")
