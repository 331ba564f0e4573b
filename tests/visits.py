"""Many pages of a folder in Debian's chromium, one after the other: what overflows, fails or is too faint to read."""

import contextlib
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

_VISIT = Path(__file__).with_suffix(".html")


@dataclass(frozen=True, kw_only=True)
class Visit:
    """wide: how wide the page is at a width; beyond: what is beyond it; faint: text below WCAG's AA contrast; results:
    how many a search has; paper: the page's colour."""

    page: str
    width: int
    wide: int = 0
    beyond: Sequence[str] = ()
    faint: Sequence[str] = ()
    results: int = 0
    paper: str = ""
    error: str = ""


def chromium() -> str:
    """Where it is. Skips where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    return found


class _Folder(http.server.SimpleHTTPRequestHandler):
    """The files of a folder, the page that visits them, and the place where it leaves what it found."""

    def __init__(self, *arguments, visit, found, **more):
        self.visit, self.found = visit, found
        super().__init__(*arguments, **more)

    def do_GET(self):
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
        elif self.path == "/visit":
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(self.visit.encode())
        else:
            super().do_GET()

    def do_POST(self):
        self.found.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.found_all.set()

    def send_error(self, code, *words):
        self.missing.append(f"{code} {self.path}")
        super().send_error(code, *words)

    def copyfile(self, source, outputfile):
        with contextlib.suppress(ConnectionError):  # the browser wants no more of it
            super().copyfile(source, outputfile)

    def log_message(self, *words):
        pass


def visited(
    root: Path, pages: Sequence[str], folder: Path, *, widths: Sequence[int], dark: bool, patience: float = 600
) -> tuple[list[Visit], list[str]]:
    """What was found on each page (a path below `root`) at each width; what the browser or its server complains of."""
    program = chromium()
    visit = (
        _VISIT.read_text()
        .replace("PAGES", json.dumps([f"/{page}" for page in pages]))
        .replace("WIDTHS", json.dumps(list(widths)))
    )
    found, missing, done = [], [], threading.Event()
    handler = type("Handler", (_Folder,), {"found_all": done, "missing": missing})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(handler, directory=str(root), visit=visit, found=found)
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with open(folder / f"console-{dark}", "w") as said:
            browser = subprocess.Popen(
                [
                    program, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                    "--hide-scrollbars",
                    f"--user-data-dir={folder / f'chromium-{dark}'}", "--window-size=1400,1000",
                    f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                    f"http://127.0.0.1:{server.server_port}/visit",
                ],
                stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
            try:
                assert done.wait(patience), f"the browser was not done after {patience} s"
            finally:
                browser.terminate()
                browser.wait()
                server.shutdown()
    lines = (folder / f"console-{dark}").read_text(errors="replace").splitlines()
    return [Visit(**one) for one in json.loads(found[0])], missing + [line for line in lines if ":CONSOLE" in line]
