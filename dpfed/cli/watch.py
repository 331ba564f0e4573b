"""`dpfed watch`: serve a live page of a run, on this machine only."""

from __future__ import annotations

from pathlib import Path

from dpfed.cli.output import console
from dpfed.planner.whole_numbers import WholeNumber
from dpfed.report.loopback import LoopbackServer, page_address


def watch(folder: Path, *, port: WholeNumber = 0) -> None:
    """Serve a live page of a run in progress; Ctrl-C stops the page, not the run.

    The page is served on 127.0.0.1 only; the printed address contains a secret.

    Example: dpfed watch runs/fed-smp-randk-digits

    Parameters
    ----------
    folder
        A run folder; the run may be in progress, interrupted or finished.
    port
        Port to listen on; 0: any free port.
    """
    with watch_server(folder, port=port) as server:
        console().print(f"{page_address(server)}   (Ctrl-C ends it)")
        server.serve_forever()


def watch_server(folder: Path, *, port: int) -> LoopbackServer:
    """Return a listening server of the run's page. RunError for a folder without run, ConfigError for a used port."""
    from dpfed.report.run import live_page

    live_page(folder)
    return LoopbackServer(port, lambda: live_page(folder))
