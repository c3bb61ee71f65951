"""Writing what ``/generate`` answers: the exact JSON shapes of SGLang 0.5.18, from the engine's updates.

One ``Pending`` collects the updates of one request. Pure: no engine, no I/O.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from soak.sim.engine import Update
from soak.sim.radix import there
from soak.sim.request import InputLogprobs, Request
from soak.sim.text import tokenizer

Triple = list[float | int | None]


class Pending:
    """A request that is being served: everything received so far, and an event set on each update."""

    def __init__(self, request: Request, received_s: float, vocab: int, *, text: bool = False) -> None:
        self.request = request
        self._vocab = vocab
        self._text = tokenizer(vocab) if text else None
        self.received_s = received_s
        self.wall_s = time.time()
        self.first_s: float | None = None
        self.event = asyncio.Event()
        self._answered = False
        self.last: Update | None = None
        self.output: list[int] = []
        self.input_triples: list[Triple] = []
        self.input_top: list[Any] = []
        self.input_picked: list[Any] = []
        self.output_triples: list[Triple] = []
        self.output_top: list[Any] = []
        self.output_picked: list[Any] = []

    @property
    def finish(self) -> dict[str, Any] | None:
        """Why it ended; None while it runs."""
        return self.last.finish if self.last is not None else None

    def take(self, update: Update) -> None:
        """Add what is new."""
        if self.first_s is None:
            self.first_s = time.monotonic()
        self.last = update
        self.output.extend(update.output)
        request = self.request
        if request.return_logprob:
            pairs = zip(update.logprobs, update.output, strict=True)
            self.output_triples.extend([value, token, None] for value, token in pairs)
            self.output_top.extend(_triples(values, ids) for values, ids in update.top)
            if request.token_ids_logprob is not None:
                self.output_picked.extend(_triples(v, request.token_ids_logprob) for v in update.picked)
            if update.inputs is not None:
                self._take_inputs(update.inputs)
        self.event.set()

    def fail(self, reason: dict[str, Any]) -> None:
        """End it for a reason of the server's own."""
        self.take(Update(self.request.rid, [], [], [], [], None, reason, 0, 0, 0, 0, 0.0, len(self.output)))

    def _take_inputs(self, inputs: InputLogprobs) -> None:
        request = self.request
        scored = request.prompt[request.logprob_start_len :].tolist()
        if not scored:
            return
        # SGLang writes id 0 for the vocabulary's last token here, and only here.
        shown = [token if token < self._vocab - 1 else 0 for token in scored]
        self.input_triples = [
            [value, token, None] for value, token in zip([None, *inputs.chosen], shown, strict=True)
        ]
        if request.top_logprobs_num > 0:
            self.input_top = [None, *(_triples(values, ids) for values, ids in inputs.top)]
        if request.token_ids_logprob is not None:
            self.input_picked = [None, *(_triples(v, request.token_ids_logprob) for v in inputs.picked)]

    def answer(self, index: int | None = None) -> dict[str, Any]:
        """The answer as it stands: ``output_ids``, ``meta_info``, ``index`` in a batched stream, and ``text``
        with a tokenizer.
        """
        out: dict[str, Any] = {"output_ids": self.output, "meta_info": self._meta()}
        if self._never_started:
            out = {"text": "", **out}
        elif self._text is not None:
            out = {"text": self._text.decode(self.output), **out}
        if index is not None:
            out["index"] = index
        self._answered = True
        return out

    @property
    def _never_started(self) -> bool:
        """Whether it was aborted in the queue."""
        finish = self.finish
        return finish is not None and finish["type"] == "abort" and "status_code" not in finish

    def _meta(self) -> dict[str, Any]:
        request, last = self.request, there(self.last)
        if self._never_started:
            return self._aborted_in_queue()
        meta: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": last.finish,
            "prompt_tokens": len(request.prompt),
            "weight_version": "default",
            "num_retractions": last.retractions,
            "forward_entry_time": self.wall_s + last.queue_time_s,
            "prefill_finished_time": self.wall_s + there(self.first_s) - self.received_s,
            "queue_time": last.queue_time_s,
        }
        if request.return_logprob:
            meta.update(self._logprobs())
        details = {"device": last.cached_device, "host": last.cached_host} if last.cached else None
        meta.update(
            reasoning_tokens=0,
            completion_tokens=len(self.output),
            cached_tokens=last.cached,
            cached_tokens_details=details,
            dp_rank=None,
        )
        if last.finish is not None:
            meta.update(self._times(last))
        elif not self._answered:
            meta["response_sent_to_client_ts"] = time.time()
        return meta

    def _times(self, last: Update) -> dict[str, float]:
        """What only the last answer says: seconds, Unix times, and tokens per second."""
        latency = time.monotonic() - self.received_s
        times = {
            "e2e_latency": latency,
            "request_received_ts": self.wall_s,
            "api_server_dispatch_finish_ts": self.wall_s,
            "request_finished_ts": self.wall_s + latency,
        }
        if len(self.output) > 1:
            times["decode_throughput"] = len(self.output) / max(latency - last.queue_time_s, 1e-6)
        times["response_sent_to_client_ts"] = self.wall_s + latency
        return times

    def _aborted_in_queue(self) -> dict[str, Any]:
        """A request that never started has a shorter ``meta_info``."""
        meta: dict[str, Any] = {
            "id": self.request.rid,
            "finish_reason": self.finish,
            "weight_version": "default",
            "e2e_latency": time.monotonic() - self.received_s,
        }
        if self.request.return_logprob:
            meta.update(self._logprobs())
        meta["completion_tokens"] = len(self.output)
        meta["response_sent_to_client_ts"] = time.time()
        return meta

    def _logprobs(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "input_token_logprobs": self.input_triples,
            "output_token_logprobs": self.output_triples,
            "output_token_logprobs_length": len(self.output_triples),
        }
        if self.request.top_logprobs_num > 0:
            out.update(input_top_logprobs=self.input_top, output_top_logprobs=self.output_top)
        if self.request.token_ids_logprob is not None:
            out.update(
                input_token_ids_logprobs=self.input_picked, output_token_ids_logprobs=self.output_picked
            )
        return out


def refused_late(message: str, rid: str, received_s: float) -> dict[str, Any]:
    """What a stream says when the scheduler, not the door, refuses a request: a token nobody computed."""
    latency = time.monotonic() - received_s
    now = time.time()
    reason = {"type": "abort", "message": message, "status_code": 400, "err_type": "BadRequestError"}
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": reason,
        "prompt_tokens": 1,
        "weight_version": "default",
        "num_retractions": 0,
        "forward_entry_time": now,
        "prefill_finished_time": now,
        "queue_time": 0.0,
        "reasoning_tokens": 0,
        "completion_tokens": 1,
        "cached_tokens": 0,
        "cached_tokens_details": None,
        "dp_rank": None,
        "e2e_latency": latency,
        "request_received_ts": now - latency,
        "api_server_dispatch_finish_ts": now - latency,
        "request_finished_ts": now,
        "response_sent_to_client_ts": now,
    }
    return {"output_ids": [0], "meta_info": meta}


def _triples(values: list[float], ids: Any) -> list[Triple]:
    return [[value, int(token), None] for value, token in zip(values, ids, strict=True)]
