"""`dpfed watch`: the page of a run that is under way, on this machine only."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from dpfed.cli.output import console
from dpfed.errors import ConfigError, RunError

_HOST = "127.0.0.1"


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


class PageServer(ThreadingHTTPServer):
    """One page at one secret path."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.secret = folder, secrets.token_urlsafe(16)
        super().__init__((_HOST, port), Handler)


def server_of(folder: Path, *, port: int) -> PageServer:
    """A server that listens already. RunError where there is no run in the folder; ConfigError for a port that is
    taken."""
    from dpfed.report.live import live_page

    live_page(folder)
    try:
        return PageServer(folder, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--port {port}: cannot be listened on ({error}). Use 0 for any port that is free.") from None


def address_of(server: PageServer) -> str:
    """Where the page is."""
    return f"http://{_HOST}:{server.server_address[1]}/{server.secret}/"


class Handler(BaseHTTPRequestHandler):
    """Answers GET of the secret path, under the name of this machine, and nothing else."""

    server: PageServer

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        known = self.headers.get("Host") in (f"{_HOST}:{port}", f"localhost:{port}")
        if not known or not secrets.compare_digest(self.path.encode(), f"/{self.server.secret}/".encode()):
            self._answer(HTTPStatus.NOT_FOUND, "There is nothing here.")
            return
        from dpfed.report.live import live_page

        try:
            self._answer(HTTPStatus.OK, live_page(self.server.folder))
        except RunError as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        kind = "text/html" if status == HTTPStatus.OK else "text/plain"
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: the address holds the secret."""
