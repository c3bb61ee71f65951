"""Alarms over HTTP, beside /metrics: list them, acknowledge them. Nobody gets in without the token.

It decides nothing: the desk does. The token is compared in constant time and never repeated in an answer.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from soak.run.alarm_desk import AlarmDesk
from soak.run.moment import moment_s
from soak.store.alarms import Ack, ack_of
from soak.store.database import StateUnusable, UnknownAlarm

_KEYS = ("known", "until", "by")
_LONGEST_BODY = 4096
_OFF = (
    "the alarms API is off: no token is configured. Set SOAK_TOKEN or metrics.token_file, or use "
    "`soak ack --state`"
)

Handler = Callable[[web.Request], Awaitable[web.Response]]


class AlarmsApi:
    """GET /alarms and POST /alarms/ID/ack with ``Authorization: Bearer TOKEN``; off without a token."""

    def __init__(self, desk: AlarmDesk, token: str | None, clock: Callable[[], float] = time.time) -> None:
        self._desk, self._token, self._clock = desk, token, clock

    def routes(self) -> list[web.RouteDef]:
        """For the server that has /metrics."""
        return [
            web.get("/alarms", self._guarded(self._list)),
            web.post("/alarms/{id}/ack", self._guarded(self._ack)),
        ]

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.Response:
            if self._token is None:
                return _error(403, _OFF)
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            same = hmac.compare_digest(
                given.strip().encode("utf-8", "surrogateescape"), self._token.encode("utf-8")
            )
            if scheme.lower() != "bearer" or not same:
                refused = _error(
                    401, "a token is wanted, and none or another one was given: Authorization: Bearer"
                )
                refused.headers["WWW-Authenticate"] = "Bearer"
                return refused
            try:
                return await handler(request)
            except StateUnusable as error:
                return _error(503, str(error))

        return guarded

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response({"alarms": self._desk.listing()})

    async def _ack(self, request: web.Request) -> web.Response:
        try:
            ack = self._said(await request.content.read(_LONGEST_BODY + 1))
        except ValueError as error:
            return _error(400, str(error))
        try:
            self._desk.acknowledge(request.match_info["id"], ack)
        except UnknownAlarm as error:
            return _error(404, str(error))
        (row,) = (row for row in self._desk.listing() if row["id"] == request.match_info["id"])
        return web.json_response(row)

    def _said(self, body: bytes) -> Ack:
        """The acknowledgement in a body; none at all is a plain one. Raises ValueError in words."""
        if len(body) > _LONGEST_BODY:
            raise ValueError(f"body: more than {_LONGEST_BODY} bytes")
        try:
            values: Any = json.loads(body) if body.strip() else {}
        except (ValueError, RecursionError):
            raise ValueError('body: JSON is wanted, such as {"until": "8h", "by": "ada"}') from None
        if not isinstance(values, dict) or any(not isinstance(v, str | None) for v in values.values()):
            raise ValueError("body: an object of texts is wanted")
        strange = sorted(values.keys() - set(_KEYS))
        if strange:
            raise ValueError(f"body: no such key {strange[0]!r}; allowed are {', '.join(_KEYS)}")
        now_s, until = self._clock(), values.get("until")
        return ack_of(
            now_s=now_s,
            known=values.get("known"),
            until_s=None if until is None else moment_s(until, now_s),
            by=values.get("by"),
        )


def _error(status: int, words: str) -> web.Response:
    return web.json_response({"error": words}, status=status)
