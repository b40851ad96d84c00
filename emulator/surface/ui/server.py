"""The web server of `switchml ui`: one page, and three URLs that respond to POST requests with JSON. All requests need
the token: it is passed once in the URL, and is a cookie from then on.
"""

import functools
import hmac
import json
import re
import threading
from collections.abc import Callable, Mapping
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from emulator.surface.ui import controls, handlers
from switchml import logs
from switchml.errors import SwitchMLError
from switchml.pages.page import as_data, render

log = logs.of("switchml.ui")

MAX_BYTES = 1 << 16
"""Maximum size of a request body."""
IDLE_S = 30.0
"""Idle time after which a connection is closed."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Server(ThreadingHTTPServer):
    """Serves the page at (host, port); port 0 selects a free one. `aggregator`: HOST:PORT of the aggregator whose state
    is shown."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host: str, port: int, token: str, aggregator: str) -> None:
        super().__init__((host, port), _Handler)
        self.token = token
        self.aggregator = aggregator
        self.cookie = f"switchml-{self.server_port}"  # Browsers share cookies between all ports of a host
        self.one_at_a_time = threading.Lock()
        self.page = page(aggregator)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: the client has disconnected, or a handler failed, which `_answer` has logged."""


def page(aggregator: str) -> str:
    """Render the page."""
    groups: dict[str, list[controls.Control]] = {}
    for control in controls.controls():
        groups.setdefault(control.group, []).append(control)
    numbers = [one for one in controls.controls() if not one.choices]
    names = [one for one in controls.controls() if one.choices]
    content = {"title": "switchml", "groups": groups, "numbers": numbers, "names": names, "aggregator": aggregator}
    return render("ui.html", (Path(__file__).parent,), content)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "switchml"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        given = parse_qs(parts.query).get("token", [""])[0]
        if parts.path == "/" and given and self._is_token(given):
            cookie = f"{self.server.cookie}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
            self._send(303, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie})
        elif not self._is_known():
            self._refuse()
        elif parts.path == "/":
            self._send(200, self.server.page.encode(), "text/html; charset=utf-8")
        else:
            self._json(404, {"error": "no such page"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        is_small = re.fullmatch(r"[0-9]{1,6}", length) is not None and int(length) <= MAX_BYTES
        self.close_connection |= not (is_small and self._is_known())  # The body is not read
        if not self._is_known():
            self._refuse()
        elif not is_small:
            self._json(413, {"error": f"a request has at most {MAX_BYTES:,} bytes"})
        else:
            self._calculate(self.rfile.read(int(length)))

    def _calculate(self, body: bytes) -> None:
        jobs: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "/emulate": handlers.emulate,
            "/sweep": handlers.sweep,
            "/status": functools.partial(handlers.status, self.server.aggregator),
        }
        if self.path not in jobs:
            self._json(404, {"error": "no such page"})
        elif self.headers.get_content_type() != "application/json":
            self._json(415, {"error": "expected application/json"})
        else:
            try:
                request = json.loads(body)
                if not isinstance(request, dict):
                    raise ValueError("expected an object")
            except (ValueError, RecursionError):
                self._json(400, {"error": "expected an object of JSON"})
                return
            work = functools.partial(jobs[self.path], request)
            if self.path == "/status":  # Cheap; does not wait for running calculations
                self._answer(work)
                return
            if not self.server.one_at_a_time.acquire(timeout=handlers.SECONDS):
                self._json(503, {"error": "another job is being calculated: try again"})
                return
            try:
                self._answer(work)
            finally:
                self.server.one_at_a_time.release()

    def _answer(self, work: Callable[[], Any]) -> None:
        try:
            found = work()
        except SwitchMLError as error:
            self._json(400, {"error": " ".join(str(error).split())})
        except Exception:
            log.exception("%s failed", self.path)
            self._json(500, {"error": "internal error: the server's log has more"})
        else:
            self._json(200, found)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _is_known(self) -> bool:
        try:
            morsel = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except Exception:  # Any parser error from an untrusted header
            return False
        return morsel is not None and self._is_token(morsel.value)

    def _refuse(self) -> None:
        self._json(403, {"error": "open the address with the token that switchml ui printed"})

    def _json(self, status: int, value: Any) -> None:
        self._send(status, str(as_data(value)).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the first URL contains the token."""
