"""HTTP server of a run's metrics for Prometheus, and of its health; by default on the loopback interface.

It serves numbers of metrics.jsonl and of the configuration, such as the expected cohort. It never serves the realised
cohort, which Poisson sampling keeps secret. The seconds of a round depend on it, so the endpoint is for the operator
only.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from dpfed.config.tables import private_table
from dpfed.errors import ConfigError

ADDRESS = "DPFED_METRICS_ADDRESS"
_DEFAULT = "127.0.0.1:9464"


class MetricsEndpoint:
    """Tracker (`dpfed.api.track`) that serves /metrics for Prometheus and /health as JSON until it is closed.

    The address is HOST:PORT of $DPFED_METRICS_ADDRESS, by default 127.0.0.1:9464; port 0 selects a free port.

    config: tables of the run's configuration

    Raises ConfigError if prometheus-client is not installed, or if the address is in use.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        try:
            from prometheus_client import CollectorRegistry, Gauge
        except ImportError as error:
            raise ConfigError(f"--track prometheus: {error}: pip install 'dpfed[prometheus]'.") from None
        self._registry, self._gauge = CollectorRegistry(), Gauge
        self._gauges: dict[str, Any] = {}
        self._begun = self._last = time.time()
        self._budget = private_table(config).get("epsilon")
        federation = config["federation"]
        self._set_gauge("rounds_planned", federation["rounds"], "rounds of the configuration")
        self._set_gauge(
            "cohort_expected", federation.get("cohort") or federation["clients"], "expected clients a round"
        )
        self._set_gauge("begun_timestamp_seconds", self._begun, "when this process began")
        self._server = _start_server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, name="dpfed-metrics", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """URL of the server, http://HOST:PORT."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def line(self, record: Mapping[str, Any]) -> None:
        """Update the served numbers from a line of metrics.jsonl."""
        now = time.time()
        self._set_gauge("round", record["round"], "last round that has ended")
        self._set_gauge("round_seconds", now - self._last, "seconds of the last round")
        self._set_gauge("last_round_timestamp_seconds", now, "when the last round ended")
        self._last = now
        if (epsilon := record["epsilon"]) is not None:
            self._set_gauge("epsilon_spent", epsilon, "epsilon so far, an upper bound")
            if self._budget is not None:
                self._set_gauge("epsilon_left", max(self._budget - epsilon, 0.0), "epsilon of the plan left")
        for key in ("uplink_megabytes", "test_accuracy", "test_loss"):
            if record.get(key) is not None:
                self._set_gauge(key, record[key], f"{key} of metrics.jsonl")
        if record.get("aborted"):
            self._set_gauge("aborted_round", record["round"], "last round that ended without a result")

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def metrics(self) -> bytes:
        """Return the content of /metrics."""
        from prometheus_client import generate_latest

        return bytes(generate_latest(self._registry))

    def health(self) -> dict[str, float]:
        """Return the content of /health: seconds since this process began, and since the last round ended."""
        now = time.time()
        return {"seconds": round(now - self._begun, 1), "seconds_since_round": round(now - self._last, 1)}

    def _set_gauge(self, name: str, value: Any, words: str) -> None:
        if name not in self._gauges:
            self._gauges[name] = self._gauge(f"dpfed_{name}", words, registry=self._registry)
        self._gauges[name].set(float(value))


def _start_server(endpoint: MetricsEndpoint) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path:
                case "/metrics":
                    self._send_answer(endpoint.metrics(), "text/plain; version=0.0.4; charset=utf-8")
                case "/health":
                    self._send_answer(json.dumps(endpoint.health()).encode(), "application/json")
                case _:
                    self.send_error(404)

        def _send_answer(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Do nothing, so that requests are not logged."""

    given = os.environ.get(ADDRESS, _DEFAULT)
    host, _, port = given.rpartition(":")
    try:
        return ThreadingHTTPServer((host, int(port)), Handler)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"{ADDRESS}={given}: the server cannot start there ({error}). Give HOST:PORT, as in {_DEFAULT}."
        ) from None


class JsonLines(logging.Formatter):
    """Log formatter that writes one JSON object per line: time, level, message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON line of a log record."""
        return json.dumps({"time": record.created, "level": record.levelname, "message": record.getMessage()})


def configure_log() -> None:
    """Write the log "dpfed" to standard error as JSON lines if $DPFED_LOG is "json"."""
    logger = logging.getLogger("dpfed")
    if os.environ.get("DPFED_LOG") != "json" or any(isinstance(one.formatter, JsonLines) for one in logger.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
