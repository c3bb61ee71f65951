"""Marks in Grafana where something happened: alarms and what people said of them, over grafana-api.

grafana-api blocks, so it is called by a thread of its own, out of a bounded queue. Must never hold up a soak,
never end one and never say the token: a Grafana that is down costs nothing but the annotation.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

QUEUED = 100
"""Annotations that wait for a Grafana that is down. Further ones are dropped: the first say most."""

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0

SENT, DROPPED = "sent", "dropped"


@dataclass(frozen=True, slots=True)
class Annotation:
    """at_s: seconds since 1970. Dashboards find annotations by their tags."""

    at_s: float
    text: str
    tags: tuple[str, ...]


class GrafanaAnnotations:
    """Sends annotations to one Grafana, the oldest first.

    url: where Grafana is, a path in it being kept. dashboard: uid of the dashboard to mark, or None to mark
    all that ask for the tags. say: told in words of failures and recoveries, from another thread. count: told
    of every annotation that was sent or dropped, from another thread, too.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        dashboard: str | None = None,
        say: Callable[[str], None] = lambda _words: None,
        count: Callable[[str], None] = lambda _outcome: None,
        first_wait_s: float = FIRST_WAIT_S,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self._url, self._token, self._dashboard = url, token, dashboard
        self._say, self._count = say, count
        self._first_wait_s, self._longest_wait_s = first_wait_s, longest_wait_s
        self._waiting: queue.Queue[Annotation] = queue.Queue(QUEUED)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._dashboard_id: int | None = None
        self._failing = ""

    def put(self, annotation: Annotation) -> None:
        """Have an annotation sent. Returns at once, whatever Grafana does; never raises for it."""
        try:
            self._waiting.put_nowait(annotation)
        except queue.Full:
            self._count(DROPPED)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="soak-grafana", daemon=True)
            self._thread.start()

    def close(self, within_s: float = 2.0) -> int:
        """Send what can be sent in that time, blocking; returns how many annotations were given up."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(within_s)
        return self._waiting.qsize()

    def _work(self) -> None:
        import grafana_api.grafana_face as grafana  # half a second with requests, and only where it is used

        face = grafana.GrafanaFace(auth=self._token, **address(self._url))
        while True:
            try:
                annotation = self._waiting.get(timeout=0.2)
            except queue.Empty:
                if self._closing.is_set():
                    return
                continue
            wait_s = self._first_wait_s
            while not self._sent(face, annotation):
                if self._closing.wait(wait_s):
                    self._count(DROPPED)
                    return
                wait_s = min(2 * wait_s, self._longest_wait_s)

    def _sent(self, face: Any, annotation: Annotation) -> bool:
        """Whether there is nothing more to do for it: it is there, or Grafana will never take it."""
        from grafana_api.grafana_api import GrafanaClientError

        try:
            face.annotations.add_annotation(
                dashboard_id=self._place(face),
                time_from=int(annotation.at_s * 1000),
                tags=list(annotation.tags),
                text=annotation.text,
            )
        except GrafanaClientError as error:
            if error.status_code in (408, 429):
                self._failed(f"it answers {error.status_code}; trying again")
                return False
            self._failed(f"an annotation was refused with {error.status_code}: {error.message}")
            self._count(DROPPED)
            return True
        except Exception as error:
            # down, or a proxy's page (which is a TypeError in grafana-api): later, whatever it is
            self._failed(f"no usable answer, trying again: {type(error).__name__}")
            return False
        if self._failing:
            self._failing = ""
            self._tell("annotations arrive again")
        self._count(SENT)
        return True

    def _place(self, face: Any) -> int | None:
        """The dashboard's number, which the API wants; None for none, or for one that is not there."""
        from grafana_api.grafana_api import GrafanaClientError

        if self._dashboard is None or self._dashboard_id is not None:
            return self._dashboard_id
        try:
            self._dashboard_id = int(face.dashboard.get_dashboard(self._dashboard)["dashboard"]["id"])
        except GrafanaClientError as error:
            if error.status_code != 404:
                raise
            self._tell(f"no dashboard {self._dashboard}: annotations go to all dashboards instead")
            self._dashboard = None
        return self._dashboard_id

    def _failed(self, words: str) -> None:
        if words != self._failing:
            self._failing = words
            self._tell(words)

    def _tell(self, words: str) -> None:
        self._say(f"grafana.url: {self._url}: {words}")


def address(url: str) -> dict[str, Any]:
    """An address in the pieces that grafana-api puts together again."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    path = parts.path.strip("/")
    return {
        "protocol": parts.scheme,
        "host": f"[{host}]" if ":" in host else host,
        "port": parts.port,
        "url_path_prefix": f"{path}/" if path else "",
    }
