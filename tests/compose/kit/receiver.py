"""Receives alerts in the compose network and prints each notification as a line of JSON. No packages."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Receiver(BaseHTTPRequestHandler):
    """POST prints, GET says it is there."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        print(json.dumps(json.loads(body)), flush=True)
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Only notifications are printed."""


ThreadingHTTPServer(("", 8080), Receiver).serve_forever()
