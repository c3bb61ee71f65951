"""Ask a server, real or simulated, and keep of its answer what must be the same on both.

Kept: statuses, content types, words of refusals, keys, types, and every number that the protocol decides
(cached and counted tokens, prompt ids in logprob lists, finish reasons). Masked by rule: what belongs to the
model (generated ids, logprobs), to the moment (times, rates) or to one machine (paths, names of models).
"""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from .probing import random_ids
from .recorder import Door, asking

Json = Any
Said = dict[str, Json]

ATTENTION, HYBRID = "llama", "hybrid"
"""Kinds of server, after the fixtures."""
FAR = 3000
"""Tokens nobody waits for: the request is stopped."""

TIMES = ("_ts", "_time", "_latency", "_throughput", "timestamp")
"""Endings of keys whose value is seconds or a rate."""
OF_THE_MACHINE = frozenset(
    {"architectures", "created", "load_format", "model_path", "model_type", "root", "served_model_name"}
    | {"tokenizer_path", "version"}
)
PATIENCE_S = 60.0


class Talk:
    """One server: where it is and its key. Every method returns what was said, masked."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url
        self.door = Door(url, key or "")

    def call(self, method: str, path: str, body: Json = None, **how: Any) -> Said:
        """Status, content type and body of one request."""
        sample = self.door.ask(method, path, body, **how)
        kind = sample["content_type"]
        said: Said = {"status": sample["status"], "type": kind, "body": sample["body"]}
        if sample["cut_short"]:
            said["cut_short"] = True
        if isinstance(said["body"], str) and (kind or "").startswith("text/event-stream"):
            said["body"] = events_said(events_of(said["body"]))
        else:
            said["body"] = mask(said["body"])
        return said

    def generate(self, ids: Json, tokens: int = 0, **fields: Json) -> Said:
        """A greedy /generate that runs to its length."""
        return self.call("POST", "/generate", asking(ids, tokens, **fields))

    def cached(self, ids: Json, tokens: int = 0, **fields: Json) -> Json:
        """cached_tokens and its details; of a batch, a list. A refusal as it is."""
        said = self.generate(ids, tokens, **fields)
        if said["status"] != 200:
            return said
        answers = said["body"] if isinstance(said["body"], list) else [said["body"]]
        found = [[a["meta_info"]["cached_tokens"], a["meta_info"]["cached_tokens_details"]] for a in answers]
        return found if isinstance(said["body"], list) else found[0]

    def output(self, ids: list[int], tokens: int, **fields: Json) -> list[int]:
        """The generated ids themselves."""
        answer = self.door.ask("POST", "/generate", asking(ids, tokens, **fields))
        return list(answer["body"]["output_ids"])

    def scored(self, ids: Json, start: int | None, tokens: int = 0, **fields: Json) -> Said:
        """A /generate that returns logprobs from ``start`` on; None leaves the start to the server."""
        begin = {} if start is None else {"logprob_start_len": start}
        return self.generate(ids, tokens, return_logprob=True, **begin, **fields)

    def flush(self) -> None:
        """An empty cache, and nothing running; AssertionError if the server does not become idle."""
        self.door.ask("POST", "/abort_request", {"rid": "", "abort_all": True})
        assert self.door.ask("POST", "/flush_cache?timeout=20")["status"] == 200

    def waiting(self) -> int:
        """How many requests are queued while others run, by the server's own word."""
        (load,) = self.door.ask("GET", "/v1/loads?include=core")["body"]["loads"]
        return int(load["num_waiting_reqs"]) if load["num_running_reqs"] else 0

    def abort(self, rid: str, **fields: Json) -> Said:
        """POST /abort_request."""
        return self.call("POST", "/abort_request", {"rid": rid, **fields})

    def later(self, ids: Json, tokens: int, **fields: Json) -> Later:
        """A request that goes on while others are asked."""
        return Later(self, asking(ids, tokens, **fields))


@dataclass(frozen=True, slots=True)
class Case:
    """``ask`` holds the conversation and returns what must be the same; ``kinds``: servers it is for."""

    ask: Callable[[Talk], Json]
    kinds: tuple[str, ...] = (ATTENTION, HYBRID)


class Later:
    """A /generate on a thread of its own. Streams are followed while they run."""

    def __init__(self, talk: Talk, body: Json) -> None:
        self._talk = talk
        self._body = body
        self._changed = threading.Condition()
        self._unread = ""
        self._events: list[Json] = []
        self._text = ""
        self._head: Said = {}
        self._ended = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        door = self._talk.door
        target = urllib.parse.urlsplit(door.url)
        connection = HTTPConnection(target.hostname or "", target.port, timeout=120)
        headers = {"Authorization": f"Bearer {door.key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", "/generate", json.dumps(self._body).encode(), headers)
            answer = connection.getresponse()
            self._head = {"status": answer.status, "type": answer.headers.get("content-type")}
            while part := answer.read1(65536):
                with self._changed:
                    self._take(part.decode())
                    self._changed.notify_all()
        finally:
            connection.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _take(self, text: str) -> None:
        self._text += text
        complete, end, self._unread = (self._unread + text).rpartition("\n\n")
        self._events.extend(events_of(complete + end))

    def until(self, enough: Callable[[list[Json]], bool]) -> None:
        """Wait until ``enough`` of the stream's events; AssertionError if it ends or PATIENCE_S pass."""
        with self._changed:
            found = self._changed.wait_for(lambda: self._ended or enough(self._events), PATIENCE_S)
            assert found, "the stream says nothing"
            assert enough(self._events), f"the stream ended too early: {self._text[-500:]}"

    def until_tokens(self, count: int) -> None:
        """Wait until every prompt of the stream has ``count`` tokens."""
        ids = self._body["input_ids"]
        prompts = len(ids) if isinstance(ids[0], list) else 1
        self.until(
            lambda events: (
                len({e.get("index") for e in events if isinstance(e, dict) and len(e["output_ids"]) >= count})
                == prompts
            )
        )

    @property
    def tokens(self) -> int:
        """Tokens the (unbatched) stream has brought so far."""
        with self._changed:
            return max((len(e["output_ids"]) for e in self._events if isinstance(e, dict)), default=0)

    @property
    def ended(self) -> bool:
        """Whether the answer is complete."""
        with self._changed:
            return self._ended

    def wait(self, seconds: float) -> bool:
        """Whether the answer is complete within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, seconds)

    def said(self) -> Said:
        """The whole answer, with the number of tokens it was stopped at masked."""
        assert self.wait(PATIENCE_S), "no answer"
        self._thread.join()
        streamed = (self._head["type"] or "").startswith("text/event-stream")
        body = events_said(self._events) if streamed else mask(json.loads(self._text))
        return {**self._head, "body": body}

    def cut_said(self) -> Said:
        """The same of a request that was stopped at a moment's notice: how far it came is masked."""
        said: Said = uncounted(self.said())
        return said


def events_of(text: str) -> list[Json]:
    """Complete events of a stream, decoded; [DONE] as the text."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n")[:-1] if line.startswith("data: ")]
    return ["[DONE]" if line == "[DONE]" else json.loads(line) for line in lines]


def events_said(events: list[Json]) -> Json:
    """Per prompt: the first event, what kinds of events follow, the last; then how the stream ends.

    How many events lie between depends on the pace, so only their kinds are kept.
    """
    chunks = [event for event in events if isinstance(event, dict)]
    said: dict[str, Json] = {"ends": events[-1:] if events and isinstance(events[-1], str) else []}
    for index in sorted({chunk.get("index", -1) for chunk in chunks}):
        own = [mask(chunk) for chunk in chunks if chunk.get("index", -1) == index]
        between = {json.dumps(uncounted(chunk), sort_keys=True) for chunk in own[1:-1]}
        said[f"prompt {index}"] = {
            "first": own[0],
            "between": [json.loads(chunk) for chunk in sorted(between)],
            "last": own[-1],
        }
    return said


def mask(value: Json, key: str = "") -> Json:
    """The value with what need not be the same replaced by its kind."""
    if isinstance(value, dict):
        return {name: mask(inner, name) for name, inner in value.items()}
    if key == "output_ids":
        return f"{len(value)} ids"
    if key.startswith(("input_t", "output_t")) and isinstance(value, list):
        return [_candidates(entry, key) for entry in value]
    if key == "message" and isinstance(value, str) and re.match(r"\d+ validation error", value):
        return "what FastAPI's validation says"
    if key == "id" and isinstance(value, str) and not value.startswith("parity-"):
        return "an id of the server's own"
    if key in OF_THE_MACHINE or key.endswith(TIMES) or isinstance(value, float):
        return type_name(value)
    if isinstance(value, list):
        return [mask(inner) for inner in value]
    return value


def _candidates(entry: Json, key: str) -> Json:
    """A logprob entry: the prompt or the request decides which token it is of, the model its value."""
    if entry is None:
        return None
    if isinstance(entry[0], list):
        return [_candidates(one, key) for one in entry]
    asked = key == "input_token_logprobs" or "token_ids" in key
    value, token, text = entry
    return [type_name(value), token if asked else type_name(token), text]


def uncounted(value: Json) -> Json:
    """A masked answer without how many tokens were generated."""
    if isinstance(value, dict):
        return {
            name: "some"
            if name in ("output_ids", "completion_tokens") and inner not in ("0 ids", 0)
            else uncounted(inner)
            for name, inner in value.items()
        }
    return [uncounted(inner) for inner in value] if isinstance(value, list) else value


def type_name(value: Json) -> str:
    """JSON's name of a value's type."""
    if isinstance(value, bool):
        return "boolean"
    names = {"int": "number", "float": "number", "str": "string", "NoneType": "null"}
    kind = type(value).__name__
    return names.get(kind, kind)


def differences(one: Json, other: Json, place: str = "") -> Iterable[str]:
    """Where two masked answers differ, one line each, ``one`` first."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            if key not in one or key not in other:
                side, value = ("only the first", one) if key in one else ("only the second", other)
                yield f"{place}/{key}: {side} has it ({json.dumps(value[key])[:120]})"
            else:
                yield from differences(one[key], other[key], f"{place}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{place}/{i}")
    elif one != other:
        yield f"{place}: {json.dumps(one)[:300]} against {json.dumps(other)[:300]}"


def prompt(length: int, seed: int) -> list[int]:
    """Plain ids, the same for both servers."""
    return random_ids(length, seed)
