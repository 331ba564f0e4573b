"""Pages of audits, sweeps and folders on a telephone of 390 pixels: tables scroll in boxes, the page does not."""

import pytest
from browser import Browser
from run_folders import PRIVATE, run_folder

from dpfed.audit.round.method_setting import audit_upload
from dpfed.audit.run import audit_run
from dpfed.cli import status
from dpfed.report.audit import write_cards

pytestmark = pytest.mark.drawn

WIDTH = 390
LONG = "a-very-long-name-of-a-setting-that-does-not-break" * 2


def make_page(folder, page):
    """Make the page of a run, of its audit, of a method's audit, or of several folders with long names."""
    if page.startswith("upload"):
        write_cards([audit_upload("dp-fedavg", settings=[], draws=20_000)], folder / "upload")
    elif page.startswith("several"):
        for number in range(8):
            config = f'[data]\nname = "{LONG}"\nextra_{number} = {number}\n'
            run_folder(folder / f"{LONG}-{number}", seed=number, **PRIVATE, config=config)
        folders = sorted(str(one) for one in folder.glob(f"{LONG}*"))
        assert status(["report", *folders, "--out", str(folder / "several")]) == 0
    else:
        settings = [word for one in ("rounds=2", "clients=40", "cohort=10") for word in ("--set", f"federation.{one}")]
        assert status(["run", "dp-fedavg-digits", *settings, "--out", str(folder / "run")]) == 0
        if "audit" in page:
            write_cards([audit_run(folder / "run")], folder / "run")


@pytest.mark.slow_but_one_in(4)
@pytest.mark.parametrize(
    "page", ["run/report.html", "run/audit.html", "upload/audit.html", "several/report.html"]
)  # fmt: skip
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
