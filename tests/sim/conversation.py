"""One fixed conversation with a server, simulated or real, and what of its answers must be the same.

Kept: statuses, refusals word for word, cached-token arithmetic, counts, finish reasons, and the shape (keys
and types) of every answer. Left out: ids and logprobs, which belong to the model, times, and the file names
in SGLang's validation errors. Needs a server with vocabulary 1000, context 4096, chunk 256, page 1, and
nobody else on it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from tests.sim.asking import body, prompt

Said = dict[str, Any]

# What a real server with metrics on says beyond what the simulator says.
REAL_ONLY = {
    "api_server_dispatch_finish_ts",
    "decode_throughput",
    "forward_entry_time",
    "prefill_finished_time",
    "response_sent_to_client_ts",
}


def shape(value: Any) -> Any:
    """Keys and types; of a list, the distinct shapes in it."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in sorted(value.items()) if key not in REAL_ONLY}
    if isinstance(value, list):
        return sorted({json.dumps(shape(item)) for item in value})
    if isinstance(value, bool) or value is None:
        return str(value)
    return "number" if isinstance(value, int | float) else type(value).__name__


class Talk:
    """Asks, and writes down what must be the same under the given names."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session
        self.said: Said = {}

    async def call(self, method: str, path: str, asked: Any = None) -> tuple[int, Any]:
        async with self._session.request(method, self._url + path, json=asked) as answer:
            text = await answer.text()
            try:
                return answer.status, json.loads(text)
            except json.JSONDecodeError:
                return answer.status, text

    async def status(self, name: str, method: str, path: str, asked: Any = None) -> None:
        """Note a status, and the text if it is one."""
        status, answer = await self.call(method, path, asked)
        self.said[name] = [status, answer if isinstance(answer, str) else shape(answer)]

    async def generate(self, name: str, ids: Any, new: int = 0, **fields: Any) -> Any:
        """Ask; note status, counts and shape, or the refusal."""
        status, answer = await self.call("POST", "/generate", body(ids, new, **fields))
        if status != 200:
            self.said[name] = [status, refusal(answer)]
            return answer
        answers = answer if isinstance(answer, list) else [answer]
        self.said[name] = [status, [counts(a) for a in answers], shape(answer)]
        return answer

    async def stream(self, name: str, asked: dict[str, Any]) -> None:
        """Note the shapes of a stream's chunks (sampled: first and last) and how it ends."""
        chunks: list[Any] = []
        async with self._session.post(self._url + "/generate", json=asked) as answer:
            async for line in answer.content:
                if line.startswith(b"data: "):
                    data = line[6:].strip()
                    chunks.append("[DONE]" if data == b"[DONE]" else json.loads(data))
            kind = answer.headers["Content-Type"]
            self.said[name] = [answer.status, kind, shape(chunks[0]), shape(chunks[-2]), chunks[-1]]
        if isinstance(chunks[0], dict) and "error" in chunks[0]:
            self.said[name].append(chunks[0]["error"])


def refusal(answer: Any) -> Any:
    """The words of a refusal; of a validation error only its frame, since it names files."""
    if isinstance(answer, dict) and answer.get("object") == "error":
        return {key: value for key, value in answer.items() if key != "message"}
    return answer


def counts(answer: dict[str, Any]) -> dict[str, Any]:
    """The numbers that the protocol, not the model, decides."""
    meta = answer["meta_info"]
    names = ("finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "cached_tokens_details")
    found = {name: meta.get(name) for name in names}
    scored = meta.get("input_token_logprobs")
    if scored is not None:
        found["input_ids"] = [triple[1] for triple in scored][:8]
        found["input_scored"] = [triple[0] is not None for triple in scored][:3]
        found["scored"] = [len(scored), len(meta["output_token_logprobs"])]
    return found


async def conversation(url: str) -> Said:
    """Hold the conversation; about 40 requests, one after the other."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        talk = Talk(url, session)
        await talk.status("flush", "POST", "/flush_cache")
        await _caching(talk)
        await _shapes(talk)
        await _refusals(talk)
        await _control(talk)
        return talk.said


async def _caching(talk: Talk) -> None:
    document = prompt(700, seed=1)
    await talk.generate("first", document, 1)
    for start in (0, 100, 300, 512, 600, 699, 700, -1):
        await talk.generate(f"scored from {start}", document, 0, return_logprob=True, logprob_start_len=start)
    for i, key in enumerate(("a", "b", "a", None)):
        await talk.generate(f"namespace {i} {key}", prompt(299, seed=2), 0, extra_key=key)
    await talk.generate("shares 400", [*document[:400].tolist(), *prompt(200, seed=3).tolist()], 2)
    await talk.generate("shares 400 again", [*document[:400].tolist(), *prompt(50, seed=4).tolist()], 0)
    await talk.generate("shares 130", [*document[:130].tolist(), *prompt(50, seed=5).tolist()], 0)
    grown = await talk.generate("generates", prompt(100, seed=6), 60)
    whole = [*prompt(100, seed=6).tolist(), *grown["output_ids"]]
    await talk.generate("continues", [*whole, 5, 6, 7], 0, return_logprob=True, logprob_start_len=160)
    await talk.generate("continues from one less", [*whole[:-1], 9, 8], 1)
    twice = [prompt(300, seed=7).tolist(), prompt(300, seed=7).tolist()]
    await talk.generate("the same twice in one batch", twice, 1)
    await talk.generate("and once more", [*twice[0], 11], 0)
    await talk.status("flush again", "GET", "/flush_cache")
    await talk.generate("after the flush", document, 0)


async def _shapes(talk: Talk) -> None:
    ids = prompt(30, seed=8)
    every = {
        "return_logprob": True,
        "logprob_start_len": 27,
        "top_logprobs_num": 2,
        "token_ids_logprob": [5, 6],
    }
    await talk.generate("all logprobs", ids, 3, **every)
    await talk.generate("ids without a start", ids, 1, return_logprob=True, token_ids_logprob=[5])
    await talk.generate("last id", [5, 999, 7], 0, return_logprob=True, logprob_start_len=0)
    await talk.generate("rids", [ids.tolist(), ids[:5].tolist()], 1, rid=["x", "y"])
    await talk.stream("stream", body(ids, 200, stream=True, return_logprob=True))
    await talk.stream("batched stream", body([ids.tolist(), ids[:9].tolist()], 200, stream=True))
    await talk.stream("stream refused", body([7] * 5000, 1, stream=True))
    every_id = {"max_new_tokens": 3, "temperature": 0.0, "stop_token_ids": list(range(1000))}
    status, answer = await talk.call(
        "POST", "/generate", {"input_ids": ids.tolist(), "sampling_params": every_id}
    )
    talk.said["stop token"] = [
        status,
        answer["meta_info"]["finish_reason"]["type"],
        len(answer["output_ids"]),
    ]


async def _refusals(talk: Talk) -> None:
    await talk.generate("empty", [])
    await talk.generate("too long", [7] * 5000, 1)
    await talk.generate("too many in all", [7] * 4000, 200)
    await talk.generate("longer than allowed", [7] * 4094, 1)
    await talk.generate("start past the end", [7, 8], 1, return_logprob=True, logprob_start_len=3)
    await talk.generate("picked id", [7], 1, return_logprob=True, token_ids_logprob=[2147483647])
    await talk.generate("same rid twice", [[5], [6]], 1, rid=["a", "a"])
    for name, sampling in (("temperature", {"temperature": -1}), ("new tokens", {"max_new_tokens": -1})):
        status, answer = await talk.call("POST", "/generate", {"input_ids": [5], "sampling_params": sampling})
        talk.said[f"bad {name}"] = [status, refusal(answer)]
    for name, asked in (("no prompt", {}), ("text", {"text": "hello"}), ("wrong type", {"input_ids": "x"})):
        status, answer = await talk.call("POST", "/generate", asked)
        talk.said[name] = [status, refusal(answer)]


async def _control(talk: Talk) -> None:
    await talk.status("abort nobody", "POST", "/abort_request", {"rid": "nobody"})
    await talk.status("abort without a rid", "POST", "/abort_request", {})
    await talk.status("flush with a bad timeout", "GET", "/flush_cache?timeout=-1")
    task = asyncio.create_task(talk.call("POST", "/generate", body(prompt(40, seed=9), 3000, rid="soak-1")))
    other = asyncio.create_task(
        talk.call("POST", "/generate", body(prompt(41, seed=10), 3000, rid="soak-10"))
    )
    for _ in range(1000):
        if running(str((await talk.call("GET", "/metrics"))[1])):
            break
        await asyncio.sleep(0.05)
    await talk.status("flush while busy", "GET", "/flush_cache")
    await talk.status("pause", "POST", "/pause_generation", {"mode": "in_place"})
    await talk.status("continue", "POST", "/continue_generation", {})
    await talk.status("abort by prefix", "POST", "/abort_request", {"rid": "soak-1"})
    for name, aborted in (("aborted", task), ("aborted by prefix", other)):
        status, answer = await aborted
        talk.said[name] = [status, answer["meta_info"]["finish_reason"], shape(answer)]
    await talk.generate("after an abort", prompt(40, seed=9), 0)
    await talk.status("pause with a bad mode", "POST", "/pause_generation", {"mode": "sideways"})
    await talk.status("health", "GET", "/health")
    await talk.status("no such path", "GET", "/nothing")
    for name in ("pause with a bad mode", "flush with a bad timeout"):
        talk.said[name] = talk.said[name][:1]


def running(text: str) -> bool:
    """Whether the metrics text says that two requests run."""
    lines = [line for line in text.splitlines() if line.startswith("sglang:num_running_reqs{")]
    return any(float(line.rsplit(" ", 1)[1]) >= 2 for line in lines)
