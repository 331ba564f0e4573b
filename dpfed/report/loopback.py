"""A page for this machine only: at 127.0.0.1, under an address with a secret in it."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dpfed.errors import ConfigError

_HOST = "127.0.0.1"


class LoopbackServer(ThreadingHTTPServer):
    """Listens at once. ConfigError for a port that is taken."""

    daemon_threads = True

    def __init__(self, port: int, handler: type[LoopbackHandler]) -> None:
        self.secret = secrets.token_urlsafe(16)
        try:
            super().__init__((_HOST, port), handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"--port {port}: cannot be listened on ({error}). Use 0 for any port that is free."
            ) from None

    @property
    def names(self) -> tuple[str, str]:
        """Under which it may be asked: host and port."""
        port = self.server_address[1]
        return f"{_HOST}:{port}", f"localhost:{port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: who asked has gone."""


def address_of(server: LoopbackServer) -> str:
    """Where the page is."""
    return f"http://{server.names[0]}/{server.secret}/"


class LoopbackHandler(BaseHTTPRequestHandler):
    """Knows whether it is asked under the name of this machine, at the secret path."""

    server: LoopbackServer
    timeout = 30
    server_version, sys_version = "dpfed", ""

    def is_for(self, path: str) -> bool:
        """Whether the request is for the secret path and `path` behind it."""
        expected = f"/{self.server.secret}/{path}".encode()
        return self.headers.get("Host") in self.server.names and secrets.compare_digest(self.path.encode(), expected)

    def answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        """The whole answer, which nobody keeps or frames."""
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
        """Nothing: the address holds the secret."""
