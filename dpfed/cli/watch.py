"""`dpfed watch`: the page of a run that is under way, on this machine only."""

from __future__ import annotations

from pathlib import Path

from dpfed.cli.output import console
from dpfed.planner.whole import Whole
from dpfed.report.loopback import LoopbackServer, address_of


def watch(folder: Path, *, port: Whole = 0) -> None:
    """Serve the page of a run that is under way, kept up to date; Ctrl-C ends the page, not the run.

    It listens on 127.0.0.1 alone, and answers only to an address with a secret in it, which is printed.

    Example: dpfed watch runs/fed-smp-randk-digits

    Parameters
    ----------
    folder
        The folder of a run that is under way, interrupted or finished.
    port
        Where to listen; 0: any port that is free.
    """
    with server_of(folder, port=port) as server:
        console().print(f"{address_of(server)}   (Ctrl-C ends it)")
        server.serve_forever()


def server_of(folder: Path, *, port: int) -> LoopbackServer:
    """Return a server that listens already. RunError if the folder holds no run; ConfigError for a port that is
    taken."""
    from dpfed.report.live import live_page

    live_page(folder)
    return LoopbackServer(port, lambda: live_page(folder))
