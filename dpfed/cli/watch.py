"""`dpfed watch`: the page of a run that is under way, on this machine only."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from dpfed.cli.output import console
from dpfed.errors import RunError
from dpfed.report.loopback import LoopbackHandler, LoopbackServer, address_of


def watch(folder: Path, *, port: int = 0) -> None:
    """Serve the page of a run that is under way, anew while it goes on; Ctrl-C ends it, not the run.

    It listens on 127.0.0.1 alone, and answers only to an address with a secret in it, which is printed.

    Example: dpfed watch runs/fed-smp-randk-digits

    Parameters
    ----------
    folder
        The folder of a run that is under way, interrupted or finished.
    port
        Where to listen; 0: any port that is free.
    """
    server = server_of(folder, port=port)
    out = console()
    out.print(f"{address_of(server)}   (Ctrl-C ends it)")
    try:
        server.serve_forever()
    finally:
        server.server_close()


class PageServer(LoopbackServer):
    """The page of one folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        super().__init__(port, Handler)


def server_of(folder: Path, *, port: int) -> PageServer:
    """A server that listens already. RunError where there is no run in the folder; ConfigError for a port that is
    taken."""
    from dpfed.report.live import live_page

    live_page(folder)
    return PageServer(folder, port)


class Handler(LoopbackHandler):
    """Answers GET of the secret path, under the name of this machine, and nothing else."""

    server: PageServer

    def do_GET(self) -> None:
        if not self.is_for(""):
            self.answer(HTTPStatus.NOT_FOUND, "There is nothing here.")
            return
        from dpfed.report.live import live_page

        try:
            self.answer(HTTPStatus.OK, live_page(self.server.folder), "text/html")
        except RunError as error:
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
