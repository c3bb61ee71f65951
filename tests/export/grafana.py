"""A stand-in for Grafana's HTTP API, as far as annotations go: it keeps what it is sent and can misbehave."""

from __future__ import annotations

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "glsa_not-a-real-token"


class FakeGrafana:
    """Listens on a free loopback port.

    trouble: statuses to give first, each with a proxy's page or, if negative, with Grafana's own JSON; None
    for no answer at all.
    """

    def __init__(self, prefix: str = "") -> None:
        self.annotations: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.trouble: deque[int | None] = deque()
        self.dashboards: dict[str, int] = {"soak-overview": 17}
        self.arrived = threading.Semaphore(0)
        self._prefix = prefix
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.answer(self, None)

            def do_POST(self) -> None:
                fake.answer(self, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{self._prefix}"

    def close(self) -> None:
        """Gone: connections are refused from now on."""
        self._server.shutdown()
        self._server.server_close()

    def wait(self, count: int = 1) -> None:
        """Until so many more requests were answered."""
        for _ in range(count):
            assert self.arrived.acquire(timeout=10), f"only {self.asked}"

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any] | None) -> None:
        """What Grafana would say, unless there is trouble."""
        self.asked.append(f"{handler.command} {handler.path}")
        status, said = self._said(handler, body)
        if status is None:
            handler.close_connection = True
            self.arrived.release()
            return
        text = said if isinstance(said, str) else json.dumps(said)
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text.encode())
        self.arrived.release()

    def _said(self, handler: BaseHTTPRequestHandler, body: dict[str, Any] | None) -> tuple[int | None, Any]:
        if self.trouble:
            status = self.trouble.popleft()
            if status is not None and status < 0:
                return -status, {"message": "no"}
            return status, "<html>a message from the proxy</html>"
        if handler.headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, {"message": "Invalid API key"}
        path = handler.path.removeprefix(self._prefix)
        if body is None and path.startswith("/api/dashboards/uid/"):
            number = self.dashboards.get(path.rsplit("/", 1)[1])
            if number is None:
                return 404, {"message": "Dashboard not found"}
            return 200, {"dashboard": {"id": number}, "meta": {}}
        if body is not None and path == "/api/annotations":
            self.annotations.append(body)
            return 200, {"id": len(self.annotations), "message": "Annotation added"}
        return 404, {"message": "Not found"}
