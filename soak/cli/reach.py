"""Where the alarms are: in a state file, or at a soak that runs. Both speak in the same plain values."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from soak.config import read_token
from soak.run.moment import moment_s
from soak.store.alarms import ack_of, decisions
from soak.store.database import Store

DEFAULT_URL = "http://127.0.0.1:9464"
_PATIENCE_S = 15.0


class NotReached(Exception):
    """The alarms could not be read or acknowledged; the message says why and what to do."""


class Alarms(Protocol):
    """What can be done with alarms.

    Raises NotReached, ConfigError, StateUnusable, UnknownAlarm or ValueError, all of them in words.
    """

    def listing(self) -> list[dict[str, Any]]:
        """All alarms, oldest first."""

    def acknowledge(self, name: str, said: dict[str, str]) -> dict[str, Any]:
        """Acknowledge one; ``said`` has known, until and by, where given. The alarm as it is then."""


class InFile:
    """Alarms of a state file. A run that has the file open takes an acknowledgement up within seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def listing(self) -> list[dict[str, Any]]:
        """All alarms, oldest first."""
        store = Store(self._path, exclusive=False)
        try:
            every = store.alarms()
        finally:
            store.close()
        in_force = decisions(every, time.time())
        return [stored.as_dict(in_force[stored.id]) for stored in every]

    def acknowledge(self, name: str, said: dict[str, str]) -> dict[str, Any]:
        """Write an acknowledgement into the file."""
        now_s, until = time.time(), said.get("until")
        ack = ack_of(
            now_s=now_s,
            known=said.get("known"),
            until_s=None if until is None else moment_s(until, now_s),
            by=said.get("by"),
        )
        store = Store(self._path, exclusive=False)
        try:
            store.acknowledge(name, ack)
        finally:
            store.close()
        (row,) = (row for row in self.listing() if row["id"] == name)
        return row


class OverHttp:
    """Alarms of a running soak, at the address of its metrics."""

    def __init__(self, url: str, token_file: Path | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise NotReached(f"--url {url}: an address such as {DEFAULT_URL} is wanted")
        self._url = url.rstrip("/").removesuffix("/metrics")
        token = read_token(token_file, "--token-file")
        if token is None:
            raise NotReached(
                "no token: set SOAK_TOKEN, or give --token-file, as the running soak has it; "
                "on its machine `--state FILE` needs none"
            )
        self._token = token

    def listing(self) -> list[dict[str, Any]]:
        """All alarms, oldest first."""
        rows = self._ask("/alarms", None).get("alarms")
        if not isinstance(rows, list):
            raise NotReached(f"{self._url}: answers, but not like soak; name the address of its metrics")
        return rows

    def acknowledge(self, name: str, said: dict[str, str]) -> dict[str, Any]:
        """Have the running soak acknowledge one."""
        return self._ask(f"/alarms/{quote(name, safe='')}/ack", json.dumps(said).encode())

    def _ask(self, path: str, body: bytes | None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - http or https, checked above
            self._url + path, data=body, headers={"Authorization": f"Bearer {self._token}"}
        )
        opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_PATIENCE_S) as answer:
                return _object(answer.read(), self._url)
        except urllib.error.HTTPError as error:
            with error:
                told = _object(error.read(), self._url).get("error")
            raise NotReached(f"{self._url}: {error.code}: {told or error.reason}") from None
        except OSError as error:
            why = getattr(error, "reason", None) or error
            raise NotReached(
                f"{self._url} cannot be reached ({why}): does a soak run there? `--state FILE` needs none"
            ) from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token is for one address; it does not follow to another."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse."""


def _object(body: bytes, url: str) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise NotReached(f"{url}: answers, but not like soak; name the address of its metrics")
    return value


def alarms_at(state: Path | None, url: str | None, token_file: Path | None) -> Alarms:
    """The place that the options name; without any, a soak on this machine at the default port."""
    if state is None:
        return OverHttp(url or DEFAULT_URL, token_file)
    if url is not None or token_file is not None:
        raise NotReached("--state: a file needs neither --url nor --token-file; give one place")
    return InFile(state)
