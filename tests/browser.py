"""A page in Debian's chromium, at a width that is asked for, in light or dark: what overflows, fails or can be read."""

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass

import pytest

_WRAPPER = """<!doctype html><body style="margin:0"><iframe id="f" style="border:0;width:{width}px;height:900px"
srcdoc="{page}"></iframe><pre id="found"></pre><script>
f.onload = () => {{
  const root = f.contentDocument.documentElement, win = f.contentWindow;
  const read = [...root.querySelectorAll("svg[data-marks]")].map((svg) => {{
    const box = svg.getBoundingClientRect(), [x, y] = JSON.parse(svg.dataset.marks).at(-1);
    const scale = box.width / svg.viewBox.baseVal.width;
    const at = {{ clientX: box.left + x * scale, clientY: box.top + y * scale }};
    svg.dispatchEvent(new win.PointerEvent("pointermove", at));
    return svg.parentNode.querySelector(".note").textContent;
  }});
  const style = win.getComputedStyle(f.contentDocument.body);
  found.textContent = JSON.stringify({{
    width: root.scrollWidth, notes: read, paper: style.backgroundColor, ink: style.color,
    small: [...root.querySelectorAll("svg[data-marks] text")].some((t) => t.getBoundingClientRect().height < 11),
  }});
}};
</script>"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """width: how wide the page is; notes: what each figure says of its last mark; small: whether a word of a figure
    is less than 11 pixels high; console: what the browser complains of."""

    width: int
    notes: list[str]
    paper: str
    ink: str
    small: bool
    console: list[str]


def seen(page: str, folder, *, width: int, dark: bool) -> Seen:
    """Skips where there is no chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    wrapper = folder / f"wrapper-{width}-{dark}.html"
    wrapper.write_text(_WRAPPER.format(width=width, page=html.escape(page)))
    done = subprocess.run(
        [
            chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={folder / 'chromium'}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom", f"file://{wrapper}",
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return Seen(console=console, **found)
