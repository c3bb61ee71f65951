"""Ask a real server one of everything a client meets, and keep the answers as samples for decoder tests.

A sample is ``{"request", "status", "content_type", "cut_short", "body"}``: body is decoded JSON, or text
(event streams, plain errors, metrics); cut_short says that the connection closed inside the body. What
belongs to one machine or one moment is replaced: paths, times, rates, ports, seeds, keys. The middle of long
streams and most histogram buckets are left out.

``python tests/real_sglang/recorder.py URL KEY FOLDER [NAME ...]`` asks a server of the kit that needs KEY; by
default everything, of a ``llama``. Other models' samples are named after the model.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Sample = dict[str, Any]
Json = Any

FIXED: dict[str, Json] = {
    "api_key": "sample-key",
    "created": 1700000000,
    "decode_throughput": 150.5,
    "e2e_latency": 0.0125,
    "last_gen_throughput": 150.5,
    "mem_fraction_static": 0.5,
    "model_path": "/models/tiny",
    "port": 30000,
    "queue_time": 0.0005,
    "random_seed": 42,
    "root": "/models/tiny",
    "startup_available": 20.5,
    "tokenizer_path": "/models/tiny",
}
"""Replacements by key, wherever it stands with a value of that type. Seconds, tokens per second, GB."""
LONGEST_STREAM = 12
"""Events; of longer streams the first two and the last three are kept."""
STAMP = 1700000000.25
"""Replaces every Unix time: keys that end in _ts or _time."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where to ask, and with which key."""

    url: str
    key: str

    def ask(
        self, method: str, path: str, body: Json = None, *, raw: bytes | None = None, key: bool = True
    ) -> Sample:
        """One request. The answer as a sample, scrubbed; raw bytes replace the JSON body."""
        target = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=120)
        headers = {"Authorization": f"Bearer {self.key}"} if key else {}
        payload = raw if raw is not None else None if body is None else json.dumps(body).encode()
        if payload is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, payload, headers)
        answer = connection.getresponse()
        try:
            text, cut_short = answer.read().decode(), False
        except http.client.IncompleteRead as broken:
            text, cut_short = broken.partial.decode(), True
        connection.close()
        kind = answer.headers.get("content-type")
        request: Sample = {"method": method, "path": path, "key": key}
        request["body"] = raw.decode() if raw is not None else body
        return {
            "request": request,
            "status": answer.status,
            "content_type": kind,
            "cut_short": cut_short,
            "body": scrub(text, kind),
        }


def scrub(text: str, content_type: str | None) -> Json:
    """The body without anything of this machine or this moment."""
    text = re.sub(r'(File \\*")[^"]*(?=/site-packages/)', r"\1", text)
    if content_type == "application/json":
        return _fix(json.loads(text))
    if (content_type or "").startswith("text/event-stream"):
        events = text.split("\n\n")
        if len(events) > LONGEST_STREAM:
            events = events[:2] + events[-4:]
        return "\n\n".join(_fixed_event(event) for event in events)
    # A histogram is recognised by one family; the others are as long again.
    text = re.sub(r"(?m)^sglang:(?!time_to_first_token)\w+_bucket\{.*\n", "", text)
    return re.sub(r'pid="\d+"', 'pid="1"', text)


def _fixed_event(event: str) -> str:
    if not event.startswith("data: {"):
        return event
    return "data: " + _compact(_fix(json.loads(event.removeprefix("data: "))))


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


def _fix(value: Json, key: str = "") -> Json:
    if isinstance(value, dict):
        return {name: _fix(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_fix(inner) for inner in value]
    if isinstance(value, float) and key.endswith(("_ts", "_time")) and key != "queue_time":
        return STAMP
    if key in FIXED and isinstance(value, type(FIXED[key])):
        return FIXED[key]
    return value


def prompt(length: int, seed: int) -> list[int]:
    """Plain ids below 1000; the same for the same arguments, on every machine."""
    return [3 + (seed * 7919 + i * i * 31 + i * 101) % 997 for i in range(length)]


def asking(ids: Json, tokens: int = 3, **more: Json) -> dict[str, Json]:
    """Body of a greedy /generate."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": ids, "sampling_params": sampling, **more}


def _posting(
    name: str, *, key: bool = True, raw: bytes | None = None, **body: Json
) -> Callable[[Door], Sample]:
    return lambda door: door.ask("POST", f"/{name}", None if raw is not None else body, raw=raw, key=key)


def _getting(path: str) -> Callable[[Door], Sample]:
    return lambda door: door.ask("GET", path)


def _aborted_running(door: Door, *, stream: bool) -> Sample:
    rid = f"sample-abort-{int(stream)}"
    abort = threading.Timer(0.4, lambda: door.ask("POST", "/abort_request", {"rid": rid}))
    abort.start()
    sample = door.ask("POST", "/generate", asking(prompt(20, 40), 2000, rid=rid, stream=stream))
    abort.join()
    return sample


def _aborted_in_queue(door: Door) -> Sample:
    """More requests at once than the server runs: the last one waits, and is aborted there."""
    rids = [f"sample-queue-{i:02d}" for i in range(16)]
    fill = threading.Thread(
        target=door.ask,
        args=("POST", "/generate", asking([prompt(20, 50 + i) for i in range(16)], 2000, rid=rids)),
    )
    fill.start()
    time.sleep(0.5)
    late = threading.Timer(0.4, lambda: door.ask("POST", "/abort_request", {"rid": "sample-waiting"}))
    late.start()
    sample = door.ask("POST", "/generate", asking(prompt(20, 49), 3, rid="sample-waiting"))
    for rid in rids:
        door.ask("POST", "/abort_request", {"rid": rid})
    fill.join()
    late.join()
    return sample


def _flush_while_busy(door: Door) -> Sample:
    rid = "sample-busy"
    busy = threading.Thread(
        target=door.ask, args=("POST", "/generate", asking(prompt(20, 41), 2000, rid=rid))
    )
    busy.start()
    time.sleep(0.4)
    sample = door.ask("POST", "/flush_cache")
    door.ask("POST", "/abort_request", {"rid": rid})
    busy.join()
    return sample


SHORT, LONG = prompt(6, 1), prompt(5000, 2)
SCORED = {"return_logprob": True, "logprob_start_len": 2}
OFF_VOCABULARY = 2147483647

SAMPLES: dict[str, Callable[[Door], Sample]] = {
    "abort_answer": _posting("abort_request", rid="sample-unknown"),
    "aborted_in_queue": _aborted_in_queue,
    "aborted_running": lambda door: _aborted_running(door, stream=False),
    "batch": _posting("generate", **asking([SHORT, prompt(7, 3)], rid=["sample-000001", "sample-000002"])),
    "batch_scored": _posting("generate", **asking([SHORT, prompt(7, 3)], 0, **SCORED)),
    "completions": _posting("v1/completions", model="llama", prompt=SHORT, max_tokens=2),
    "embeddings": _posting("v1/embeddings", model="llama", input=SHORT),
    "error_bad_json": _posting("generate", raw=b'{"input_ids": [1,2'),
    "error_empty_prompt": _posting("generate", **asking([])),
    "error_float_id": _posting("generate", **asking([5, 1.5])),
    "error_no_key": _posting("generate", key=False, **asking(SHORT)),
    "error_no_prompt": _posting("generate", sampling_params={"max_new_tokens": 1}),
    "error_start_too_high": _posting(
        "generate", **asking(SHORT, 0, return_logprob=True, logprob_start_len=9)
    ),
    "error_text": _posting("generate", text="hello", sampling_params={"max_new_tokens": 1}),
    "error_token_ids_logprob": _posting(
        "generate", **asking(SHORT, 1, return_logprob=True, token_ids_logprob=[OFF_VOCABULARY])
    ),
    "error_too_long": _posting("generate", **asking(LONG)),
    "error_unknown_sampling": _posting("generate", input_ids=SHORT, sampling_params={"frobnicate": 1}),
    "flush_busy": _flush_while_busy,
    "flush_idle": lambda door: door.ask("POST", "/flush_cache?timeout=20"),
    "generate": _posting("generate", **asking(SHORT, rid="sample-000003")),
    "generate_scored": _posting("generate", **asking(SHORT, rid="sample-000004", **SCORED)),
    "generate_top": _posting(
        "generate", **asking(SHORT, 2, top_logprobs_num=2, token_ids_logprob=[5, 6], **SCORED)
    ),
    "generate_zero": _posting("generate", **asking(SHORT, 0, **SCORED)),
    "metrics": _getting("/metrics"),
    "model_info": _getting("/model_info"),
    "models": _getting("/v1/models"),
    "server_info": _getting("/server_info"),
    "stream": _posting("generate", **asking(SHORT, stream=True, rid="sample-000005")),
    "stream_aborted": lambda door: _aborted_running(door, stream=True),
    "stream_batch": _posting(
        "generate", **asking([SHORT, prompt(7, 3)], stream=True, rid=["sample-000006", "sample-000007"])
    ),
    "stream_error_start_too_high": _posting(
        "generate", **asking(SHORT, 0, stream=True, return_logprob=True, logprob_start_len=9)
    ),
    "stream_error_too_long": _posting("generate", **asking(LONG, stream=True)),
    "stream_error_unknown_sampling": _posting(
        "generate", input_ids=SHORT, sampling_params={"frobnicate": 1}, stream=True
    ),
    "stream_scored": _posting("generate", **asking(SHORT, stream=True, rid="sample-000008", **SCORED)),
}
"""Name to question. None of these harms a server; several known ones would end it (see README.md)."""


def record(door: Door, names: Iterable[str] = SAMPLES) -> Iterator[tuple[str, Sample]]:
    """Samples in order, from an empty cache; a prompt of thousands of ids is not kept."""
    door.ask("POST", "/flush_cache?timeout=20")
    for name in names:
        sample = SAMPLES[name](door)
        body = sample["request"]["body"]
        if isinstance(body, dict) and body.get("input_ids") == LONG:
            body["input_ids"] = f"{len(LONG)} ids"
        yield name, json.loads(json.dumps(sample).replace(door.key, FIXED["api_key"]))


def main(url: str, key: str, folder: Path, names: Iterable[str]) -> None:
    """Record into ``folder``, one file a sample."""
    folder.mkdir(parents=True, exist_ok=True)
    door = Door(url, key)
    served = door.ask("GET", "/v1/models")["body"]["data"][0]["id"]
    prefix = "" if served == "llama" else f"{served}_"
    for name, sample in record(door, names):
        text = _flat_lists(json.dumps(sample, indent=1))
        (folder / f"{prefix}{name}.json").write_text(text + "\n")


def _flat_lists(text: str) -> str:
    """Innermost lists on one line."""
    return re.sub(
        r"\[[^\[\]{}]*\]",
        lambda part: re.sub(r"\s*\n\s*", " ", part[0]).replace("[ ", "[").replace(" ]", "]"),
        text,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:] or SAMPLES)
