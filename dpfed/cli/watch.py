"""`dpfed watch`: the page of a running run, on this machine only."""

from __future__ import annotations

from pathlib import Path

from dpfed.cli.output import console
from dpfed.planner.whole import Whole
from dpfed.report.loopback import LoopbackServer, address_of


def watch(folder: Path, *, port: Whole = 0) -> None:
    """Serve the page of a running run, kept up to date; Ctrl-C ends the page, not the run.

    The page is served on 127.0.0.1 alone, under a printed address that has a secret in it.

    Example: dpfed watch runs/fed-smp-randk-digits

    Parameters
    ----------
    folder
        The folder of a run, running, interrupted or finished.
    port
        Port to listen on; 0: any free port.
    """
    with server_of(folder, port=port) as server:
        console().print(f"{address_of(server)}   (Ctrl-C ends it)")
        server.serve_forever()


def server_of(folder: Path, *, port: int) -> LoopbackServer:
    """Return a listening server. Raise RunError if the folder holds no run, ConfigError if the port is taken."""
    from dpfed.report.live import live_page

    live_page(folder)
    return LoopbackServer(port, lambda: live_page(folder))
