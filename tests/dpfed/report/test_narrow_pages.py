"""Pages of methods' audits and of folders on a telephone of 390 pixels: tables scroll in boxes, the page does not.

Pages of a run and of its audit: test_pages.py."""

import pytest
from browser import Browser
from run_folders import PRIVATE, run_folder

from dpfed.audit.round.method_setting import audit_upload
from dpfed.cli import status
from dpfed.report.audit import write_cards

pytestmark = pytest.mark.drawn

WIDTH = 390
LONG = "a-very-long-name-of-a-setting-that-does-not-break" * 2


def make_page(folder, page):
    """Make the page of a method's audit, or of several folders with long names."""
    if page.startswith("upload"):
        write_cards([audit_upload("dp-fedavg", settings=[], draws=20_000)], folder / "upload")
    else:
        for number in range(8):
            config = f'[data]\nname = "{LONG}"\nextra_{number} = {number}\n'
            run_folder(folder / f"{LONG}-{number}", seed=number, **PRIVATE, config=config)
        folders = sorted(str(one) for one in folder.glob(f"{LONG}*"))
        assert status(["report", *folders, "--out", str(folder / "several")]) == 0


@pytest.mark.slow_but_one_in(2)
@pytest.mark.parametrize("page", ["several/report.html", "upload/audit.html"])
def test_a_page_does_not_scroll_sideways(tmp_path, page):
    folder = tmp_path / "pages"
    make_page(folder, page)
    with Browser(tmp_path, width=WIDTH, dark=False) as browser:
        browser.open(f"file://{folder / page}")
        assert browser.run("document.documentElement.scrollWidth") <= WIDTH
        hidden = "[...document.querySelectorAll('table')].filter((t) => t.scrollWidth > t.parentElement.clientWidth)"
        boxes = f"{hidden}.every((t) => getComputedStyle(t.parentElement).overflowX === 'auto')"
        assert browser.run(boxes)
        assert browser.complaints == []
        browser.picture(folder / f"{page.replace('/', '-')}.png")
