"""What a server says of itself, by GET alone: nothing is sent to the model, and nothing changes there.

Keeps /server_info for as long as the report is made, since flags are read from all of it; it holds keys in
clear text and must never be printed or written as a whole.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from soak.sglang.client import SGLangClient
from soak.sglang.server_metrics import LOADS, ServerMetrics, parse_loads, parse_metrics

Words = Mapping[str, object]

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")
_TWINS = 2  # further looks at /server_info: several servers behind one address take turns
_OF_ONE_PROCESS = ("startup_time", "host", "port", "random_seed", "version", "model_path")


class NotSoakable(Exception):
    """Nothing more can be looked at. name: of the line; words: what is so; step: what to do."""

    def __init__(self, name: str, words: str, step: str) -> None:
        super().__init__(words)
        self.name, self.words, self.step = name, words, step


@dataclass(frozen=True, slots=True)
class Reads:
    """Bodies of what answered, empty where nothing did.

    took_s: of the first answer; key_needed: None if not told; workers: addresses that a router names, None if
    this is none; faces: how many different servers answered at this address; metrics: the page, if any.
    """

    info: Words = field(repr=False)
    model: Words
    models: Words
    took_s: float
    key_needed: bool | None
    workers: tuple[str, ...] | None
    faces: int
    loads: ServerMetrics | None
    metrics: ServerMetrics | None

    @property
    def said(self) -> dict[str, object]:
        """/model_info and /server_info as one."""
        return {**self.model, **self.info}


async def read_all(client: SGLangClient, anonymous: SGLangClient) -> Reads:
    """Everything, one GET after the other. ``anonymous`` has no key. Raises NotSoakable."""
    began = time.monotonic()
    path, info = await _server_info(client)
    took = time.monotonic() - began
    needed: bool | None = False
    if client.has_key:
        status, _, _ = await anonymous.get_json(path)
        needed = None if status is None else status in (401, 403)
    faces = {_face(info)}
    for _ in range(_TWINS):
        status, again, _ = await client.get_json(path)
        if status == 200 and isinstance(again, dict):
            faces.add(_face(again))
    _, loads, _ = await client.get_json(LOADS)
    page = await client.metrics_text()
    return Reads(
        info=info,
        model=await _first(client, "/model_info", "/get_model_info"),
        models=await _first(client, "/v1/models"),
        took_s=took,
        key_needed=needed,
        workers=await _workers(client),
        faces=len(faces),
        loads=parse_loads(loads),
        metrics=None if page is None or "sglang" not in page else parse_metrics(page),
    )


def _face(info: Words) -> str:
    return repr([info.get(name) for name in _OF_ONE_PROCESS])


async def _first(client: SGLangClient, *paths: str) -> Words:
    for path in paths:
        status, value, _ = await client.get_json(path)
        if status == 200 and isinstance(value, dict):
            return value
    return {}


async def _workers(client: SGLangClient) -> tuple[str, ...] | None:
    """The workers that a router in front names, without their credentials; None if this is no router."""
    for path, name in (("/workers", "workers"), ("/list_workers", "urls")):
        status, value, _ = await client.get_json(path)
        listed = value.get(name) if status == 200 and isinstance(value, dict) else None
        if isinstance(listed, list):
            urls = [one.get("url") if isinstance(one, dict) else one for one in listed]
            return tuple(_CREDENTIALS.sub("", url) for url in urls if isinstance(url, str))
    return None


async def _server_info(client: SGLangClient) -> tuple[str, Words]:
    """The path that answered, and its body. Raises NotSoakable if this is not SGLang, or not open to us."""
    url, detail = client.base_url, ""
    for path in ("/server_info", "/get_server_info"):
        status, value, detail = await client.get_json(path)
        if status is None:
            raise NotSoakable("reach", f"cannot be reached: {detail}", _how_to_reach(url, detail))
        if status in (401, 403):
            raise _no_entry(client, detail)
        if 300 <= status < 400:
            raise NotSoakable(
                "reach",
                f"answers with a redirect (HTTP {status}), which is not followed: the key goes nowhere else",
                f"name the address that `curl -sI {url}{path}` shows",
            )
        if status == 200 and isinstance(value, dict) and "model_path" in value:
            return path, value
        if status >= 500:
            raise NotSoakable(
                "reach",
                f"is not ready, or not well: {detail} (GET {path})",
                "wait until it serves requests; if it does not, look at its log",
            )
    raise await _something_else(client, detail)


def _how_to_reach(url: str, detail: str) -> str:
    if "TLS" in detail or "certificate" in detail:
        return (
            "name the host that the certificate is for, or make its authority known to this machine "
            "(SSL_CERT_FILE); http:// where the server speaks no TLS"
        )
    if "not HTTP" in detail and url.startswith("http://"):
        return "another service listens there, or it wants https://; SGLang's default port is 30000"
    return "check host and port, and that the server runs; SGLang's default port is 30000"


def _no_entry(client: SGLangClient, detail: str) -> NotSoakable:
    if client.has_key:
        return NotSoakable(
            "key",
            f"the API key is refused ({detail})",
            "put the server's --api-key into SGLANG_API_KEY (or the variable or file the config names)",
        )
    return NotSoakable(
        "key",
        f"an API key is wanted and none was given ({detail})",
        "put it into SGLANG_API_KEY, or name a variable or a file: --api-key-env, --api-key-file",
    )


async def _something_else(client: SGLangClient, detail: str) -> NotSoakable:
    """What answers there instead, as far as it shows."""
    workers = await _workers(client)
    if workers is not None:
        return NotSoakable(
            "software",
            "a router that says nothing of its servers"
            + (f"; it names {len(workers)} workers" if workers else " and names no worker"),
            f"name a worker instead: {workers[0]}" if workers else "name a server behind it instead",
        )
    models = await _first(client, "/v1/models")
    data = models.get("data")
    if isinstance(data, list):
        owner = data[0].get("owned_by") if data and isinstance(data[0], dict) else None
        by = f" (owned_by {str(owner)[:40]!r})" if owner else ""
        return NotSoakable(
            "software",
            f"speaks the OpenAI API only{by}: a gateway, or another engine; there is no /server_info",
            "name the SGLang server behind it: soak needs its own /generate",
        )
    return NotSoakable(
        "software",
        f"answers, but not like SGLang ({detail or 'GET /server_info is other JSON'})",
        "name the address at which sglang.launch_server listens; its default port is 30000",
    )
