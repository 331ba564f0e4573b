"""A page for this machine only: at 127.0.0.1, under an address with a secret in it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dpfed.errors import ConfigError, RunError

_HOST = "127.0.0.1"


class LoopbackServer(ThreadingHTTPServer):
    """Server of one page, listening from the start. ConfigError if the port is taken."""

    daemon_threads = True

    def __init__(self, port: int, page: Callable[[], str], handler: type[LoopbackHandler] | None = None) -> None:
        self.secret, self.page = secrets.token_urlsafe(16), page
        try:
            super().__init__((_HOST, port), handler or LoopbackHandler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--port {port}: cannot be listened on ({error}). Use 0 for any port that is free."
            ) from None

    @property
    def names(self) -> tuple[str, str]:
        """Host and port, under both names of this machine."""
        port = self.server_address[1]
        return f"{_HOST}:{port}", f"localhost:{port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: the client has closed its connection."""


def address_of(server: LoopbackServer) -> str:
    """Return the address of the page."""
    return f"http://{server.names[0]}/{server.secret}/"


class LoopbackHandler(BaseHTTPRequestHandler):
    """Handler of GET at the secret path, under the name of this machine."""

    server: LoopbackServer
    timeout = 30
    server_version, sys_version = "dpfed", ""

    def do_GET(self) -> None:
        """Answer with the page at the secret path, and with an error elsewhere."""
        if not self.is_for(""):
            self.answer(HTTPStatus.NOT_FOUND, "There is nothing here.")
            return
        try:
            self.answer(HTTPStatus.OK, self.server.page(), "text/html")
        except RunError as error:
            self.answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def is_for(self, path: str) -> bool:
        """Return True if the request is for the secret path followed by `path`."""
        expected = f"/{self.server.secret}/{path}".encode()
        return self.headers.get("Host") in self.server.names and secrets.compare_digest(self.path.encode(), expected)

    def answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        """Send the whole answer, which no browser may keep or frame."""
        body = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing: the address holds the secret."""
