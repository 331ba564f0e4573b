"""A page in Debian's chromium, at a width that is asked for, in light or dark: what overflows, fails or can be read."""

import base64
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass

from visits import chromium

_LOOK = """(() => {
  const root = document.documentElement, style = getComputedStyle(document.body);
  const notes = [...root.querySelectorAll("figure svg")].map((svg) => {
    const mark = [...svg.querySelectorAll(".mark")].at(-1);
    mark.scrollIntoView({ block: "center" });
    const { left, top, width, height } = mark.getBoundingClientRect();
    return document.elementFromPoint(left + width / 2, top + height / 2).textContent;
  });
  return {
    width: root.scrollWidth, notes, paper: style.backgroundColor, ink: style.color,
    small: [...root.querySelectorAll("figure svg text")].some((t) => t.getBoundingClientRect().height < 11),
  };
})()"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """width: how wide the page is; notes: the tooltip under a pointer at each figure's last mark; small: whether a
    word of a figure is less than 11 pixels high; console: what the browser complains of."""

    width: int
    notes: list[str]
    paper: str
    ink: str
    small: bool
    console: list[str]


def seen(page: str, folder, *, width: int, dark: bool) -> Seen:
    """Skips where there is no chromium."""
    file = folder / f"page-{width}-{dark}.html"
    file.write_text(page)
    with Browser(folder, width=width, dark=dark) as browser:
        browser.open(f"file://{file}")
        return Seen(**browser.run(_LOOK), console=browser.complaints)


class Browser:
    """Chromium, driven over its DevTools protocol through a pipe: `open`, `run`, `until`, `picture`.

    Skips where there is no chromium. `complaints` has what the console and the page's scripts complained of.
    """

    def __init__(self, folder, *, width: int, dark: bool, height: int = 900):
        to_child, self._writer = os.pipe()
        self._reader, from_child = os.pipe()
        command = [
            chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _AS_3_AND_4, str(to_child), str(from_child), *command],
            pass_fds=(to_child, from_child), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_child)
        os.close(from_child)
        self._last, self._buffer, self._session, self.complaints = 0, b"", None, []
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setScrollbarsHidden", hidden=True)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        with contextlib.suppress(OSError):
            self.call("Browser.close")
        self._process.kill()
        self._process.wait()
        os.close(self._writer)
        os.close(self._reader)

    def call(self, method: str, **parameters):
        """One command, and its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._last:
            self._note(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _message(self):
        while b"\0" not in self._buffer:
            assert select.select([self._reader], [], [], 60)[0], "chromium does not answer"
            part = os.read(self._reader, 1 << 20)
            if not part:
                raise OSError("chromium has ended")
            self._buffer += part
        one, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(one)

    def _note(self, event):
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(parameters["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(str([one.get("value") for one in parameters["args"]]))

    def open(self, address: str):
        """Go there, and wait until it is loaded."""
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def run(self, script: str):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, (script, found)
        return found["result"].get("value")

    def until(self, script: str, seconds: float = 60):
        """Wait until the expression is true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def picture(self, file):
        """The whole page, as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


_AS_3_AND_4 = """
import fcntl, os, sys
there, back = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3])
os.dup2(there, 3)
os.dup2(back, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
