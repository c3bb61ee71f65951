"""Runs one batch: eager or by replay, then sampling and logprobs. The only caller of the model.

Turns hidden states into tokens and scores; what they mean for a request (finish, cache, retract) is the
scheduler's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from soak.sim.batch import DECODE_NOISE, Chunk
from soak.sim.blas import use_one_thread
from soak.sim.cache import Cache
from soak.sim.config import SimConfig
from soak.sim.grammar import allowed
from soak.sim.graphs import DecodeGraphs, PrefillGraphs
from soak.sim.inputs import DecodeInputs, ExtendInputs
from soak.sim.model import Model, no_wait
from soak.sim.numerics import F64, I64, ExactNumerics, ProductionNumerics, log_softmax
from soak.sim.radix import there
from soak.sim.request import EOS, Request


@dataclass(slots=True)
class TokenScores:
    """Of one position.

    The chosen token's logprob, the top ones (logprobs, ids), and those asked for by id.
    """

    chosen: float
    top: tuple[list[float], list[int]] = field(default_factory=lambda: ([], []))
    picked: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Sampled:
    """A new token of a request, with scores if it asked for them."""

    token: int
    scores: TokenScores | None


@dataclass(slots=True)
class ForwardResult:
    """Per request of the batch: its new token (None for an unfinished prefill) and its prompt scores."""

    sampled: list[Sampled | None]
    inputs: list[list[TokenScores]]
    graph: bool


class Runner:
    """The model with its graphs, sampling and scoring."""

    def __init__(self, config: SimConfig, cache: Cache) -> None:
        use_one_thread()
        self.config = config
        noise_seed = config.seed if config.noise_seed is None else config.noise_seed
        numerics = ExactNumerics() if config.numerics == "exact" else ProductionNumerics(noise_seed)
        self.numerics = numerics
        self.model = Model(config, numerics, cache.tokens, cache.table, cache.states)
        self.prefill_graphs = PrefillGraphs(config)
        self.decode_graphs = DecodeGraphs(config)
        self._rng = np.random.Generator(np.random.Philox(key=[config.seed, 0x5A3F]))
        self._half_sum = "nan-logprob" in config.faults
        self.replays = 0

    def extend(
        self, batch: ExtendInputs, chunks: list[Chunk], wait: Callable[[int], None] = no_wait
    ) -> ForwardResult:
        """Run a prefill batch and score what was asked for."""
        bucket = self.prefill_graphs.bucket(batch)
        starts = batch.extend_start
        if bucket is not None:
            hidden = self.model.extend(self.prefill_graphs.load(batch, bucket), wait)
            self.replays += 1
        else:
            hidden = self.model.extend(batch, wait)
        result = ForwardResult([], [], bucket is not None)
        last_rows = [int(starts[i]) + c.end - c.start - 1 for i, c in enumerate(chunks)]
        requests = [c.request for c in chunks]
        result.sampled = self._sample(hidden[last_rows], requests, [c.last for c in chunks])
        for i, chunk in enumerate(chunks):
            first = int(starts[i])
            result.inputs.append(self._score_inputs(hidden[first : first + chunk.end - chunk.start], chunk))
        return result

    def decode(self, batch: DecodeInputs, requests: list[Request]) -> ForwardResult:
        """Run a decode batch."""
        size = self.decode_graphs.size(batch)
        if size is not None:
            replayed = self.model.decode(self.decode_graphs.load(batch, size), DECODE_NOISE)
            hidden = self.decode_graphs.output(replayed)[: batch.live]
            self.replays += 1
        else:
            hidden = self.model.decode(batch, DECODE_NOISE)
        sampled = self._sample(hidden, requests, [True] * len(requests))
        return ForwardResult(sampled, [[] for _ in requests], size is not None)

    def verify(self, batch: ExtendInputs) -> tuple[F64, ForwardResult]:
        """Run a verification batch, eager: hidden states of every token, and an empty result to count."""
        return self.model.extend(batch), ForwardResult([], [], False)

    def sample_one(self, hidden: F64, request: Request) -> Sampled:
        """The next token of one request, with its scores."""
        return there(self._sample(hidden[None], [request], [True])[0])

    # -- sampling --------------------------------------------------------------------------------------------

    def _sample(self, hidden: F64, requests: list[Request], wanted: list[bool]) -> list[Sampled | None]:
        logits = self.model.logits(hidden)
        for i, request in enumerate(requests):
            if wanted[i] and request.sampling.texts:
                _bind(logits[i], request)
        tokens = logits.argmax(axis=1)
        scored = [i for i, r in enumerate(requests) if wanted[i] and r.return_logprob]
        out: list[Sampled | None] = [None] * len(requests)
        for i, request in enumerate(requests):
            if wanted[i]:
                if request.sampling.temperature > 0:
                    tokens[i] = self._draw(logits[i], request)
                out[i] = Sampled(int(tokens[i]), None)
        if scored:
            temperatures = np.asarray([requests[i].sampling.temperature or 1.0 for i in scored])
            rows = self._log_softmax(logits[scored] / temperatures[:, None])
            _displace(rows, tokens[scored], self.numerics.outliers(len(scored)))
            for row, i in enumerate(scored):
                sampled = there(out[i])
                sampled.scores = _scores(rows[row], sampled.token, requests[i])
        return out

    def _draw(self, logits: F64, request: Request) -> int:
        sampling = request.sampling
        rng = self._rng
        if self.numerics.exact:
            seed = 42 if sampling.seed is None else sampling.seed
            rng = np.random.Generator(np.random.Philox(key=[seed % 2**63, request.seq_len]))
        if sampling.top_k <= 0 and sampling.top_p >= 1.0:
            return int(np.argmax(logits / sampling.temperature + rng.gumbel(size=len(logits))))
        logprobs = log_softmax(logits[None] / sampling.temperature)[0]
        order = np.argsort(-logprobs, kind="stable")
        if sampling.top_k > 0:
            order = order[: sampling.top_k]
        if sampling.top_p < 1.0:
            mass = np.cumsum(np.exp(logprobs[order]))
            order = order[: int(np.searchsorted(mass, sampling.top_p)) + 1]
        return int(order[np.argmax(logprobs[order] + rng.gumbel(size=len(order)))])

    # -- scoring ---------------------------------------------------------------------------------------------

    def _log_softmax(self, logits: F64) -> F64:
        if self._half_sum:
            # The normaliser is summed in half precision without taking the maximum out first: it overflows
            # to infinity wherever the model is sure of itself, and the logprob with it.
            with np.errstate(over="ignore"):
                half = np.exp(logits.astype(np.float16))
                total = np.log(half.sum(axis=1, keepdims=True, dtype=np.float16)).astype(np.float64)
                halved: F64 = logits - total
            return halved
        return log_softmax(logits)

    def _score_inputs(self, hidden: F64, chunk: Chunk) -> list[TokenScores]:
        """Scores of the prompt tokens that follow this chunk's positions, from logprob_start_len on."""
        request = chunk.request
        if not request.return_logprob or request.input_done or request.logprob_start_len < 0 or chunk.decode:
            return []
        first = max(chunk.start, request.logprob_start_len)
        end = min(chunk.end, len(request.prompt) - 1)
        if first >= end:
            return []
        rows = self._log_softmax(self.model.logits(hidden[first - chunk.start : end - chunk.start]))
        targets = request.prompt[first + 1 : end + 1]
        _displace(rows, targets, self.numerics.outliers(len(rows)))
        if request.top_logprobs_num == 0 and request.token_ids_logprob is None:
            return [TokenScores(v) for v in rows[np.arange(len(rows)), targets].tolist()]
        return [_scores(row, int(t), request) for row, t in zip(rows, targets, strict=True)]


def _bind(logits: F64, request: Request) -> None:
    """Leave only what the request's grammar allows next; the end token once nothing else is."""
    may = allowed(request.sampling.texts, [*request.output, *request.future])
    barred = np.ones(len(logits), bool)
    barred[list(may) if may else [EOS]] = False
    logits[barred] = -np.inf


def _displace(rows: F64, targets: I64, nats: F64) -> None:
    """Move one token's logit in each row by so many nats; every row stays a distribution."""
    for row in np.flatnonzero(nats):
        token, shift = targets[row], nats[row]
        total = np.log1p(np.exp(rows[row, token]) * np.expm1(shift))
        rows[row, token] += shift
        rows[row] -= total


def _scores(logprobs: F64, token: int, request: Request) -> TokenScores:
    scores = TokenScores(float(logprobs[token]))
    if request.top_logprobs_num > 0:
        top = np.argsort(-logprobs, kind="stable")[: request.top_logprobs_num]
        scores.top = (logprobs[top].tolist(), top.tolist())
    if request.token_ids_logprob is not None:
        scores.picked = logprobs[list(request.token_ids_logprob)].tolist()
    return scores
