"""HTTP server of one page for this machine only: at 127.0.0.1, under an address that contains a secret."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from dpfed.errors import ConfigError, RunError

_HOST = "127.0.0.1"


class LoopbackServer(ThreadingHTTPServer):
    """Server of one page that listens from its creation. ConfigError if the port is in use."""

    daemon_threads = True

    def __init__(self, port: int, page: Callable[[], str], handler: type[LoopbackHandler] | None = None) -> None:
        self.secret, self.page = secrets.token_urlsafe(16), page
        try:
            super().__init__((_HOST, port), handler or LoopbackHandler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--port {port}: is not available ({error}). Give 0 for any free port.") from None

    @property
    def host_names(self) -> tuple[str, str]:
        """Values of the header Host that name this server: 127.0.0.1 and localhost, each with the port."""
        port = self.server_address[1]
        return f"{_HOST}:{port}", f"localhost:{port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: the client has closed its connection."""


def page_address(server: LoopbackServer) -> str:
    """Return the address of the page."""
    return f"http://{server.host_names[0]}/{server.secret}/"


class LoopbackHandler(BaseHTTPRequestHandler):
    """Handler that answers GET at the secret path with the page, and refuses every other path and host name."""

    server: LoopbackServer
    timeout = 30
    server_version, sys_version = "dpfed", ""

    def do_GET(self) -> None:
        """Answer with the page at the secret path, and with an error elsewhere."""
        if not self.requests_path(""):
            self.send_answer(HTTPStatus.NOT_FOUND, "This address has no page.")
            return
        try:
            self.send_answer(HTTPStatus.OK, self.server.page(), "text/html")
        except RunError as error:
            self.send_answer(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def requests_path(self, path: str) -> bool:
        """Return True if the request is for the secret path followed by `path`."""
        expected = f"/{self.server.secret}/{path}".encode()
        return self.headers.get("Host") in self.server.host_names and secrets.compare_digest(
            self.path.encode(), expected
        )

    def send_answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        """Send status, headers and text; the headers forbid browsers to cache or frame the page."""
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
