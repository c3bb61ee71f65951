"""Is this a server that can be soaked, and what is it? Asked once, before any load.

Costs the server a few thousand prefill tokens in private namespaces. Says no in plain words: what is wrong,
where, and what to use instead. Never flushes, pauses or aborts anything, keeps nothing of /server_info but
what the fingerprint and the geometry name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from soak.plan.geometry import Geometry
from soak.sglang.client import SGLangClient
from soak.sglang.experiment import Experiment, Findings, TargetUnusable
from soak.sglang.fingerprint import Fingerprint, fingerprint_of
from soak.sglang.grid import state_grid
from soak.sglang.server_metrics import LOADS, ServerMetrics, parse_loads, parse_metrics

__all__ = ["ServerNow", "Target", "TargetUnusable", "examine", "fingerprint_now", "server_now"]

_AFFORDABLE = 40_000
_APART = (
    "Prefill and decode run in servers apart (disaggregation_mode): what decode writes is resumed from only "
    "where the decode side has a radix cache of its own, and shapes that need that count as not applicable "
    "unless the server says so."
)
_TURNS = 3  # further looks, since a router's workers answer in turn
_RESERVED_LOW = 1000  # of a full-size vocabulary: specials of most tokenizers lie below this, or at the top
_FULL_SIZE = 10_000


@dataclass(frozen=True, slots=True)
class ServerNow:
    """Which server answers, and digests of what it says of its last start.

    started: of the seconds that its start took, which no two starts share; empty if it does not say. seed: of
    its random seed, which SGLang draws anew at each start unless it was given one.
    """

    fingerprint: Fingerprint
    started: str
    seed: str

    @property
    def start(self) -> tuple[str, str]:
        """Names its last start: two processes share it only if neither says anything of theirs."""
        return self.started, self.seed


@dataclass(frozen=True, slots=True)
class Target:
    """A server found fit for a soak. running, queued: requests it had before ours, None if it does not say.

    now: by its own words alone, to know it again by. beside: others like it, of other starts, that answer at
    the same address in turn. notes: what a person should know, one sentence each.
    """

    url: str
    version: str
    model: str
    fingerprint: Fingerprint
    geometry: Geometry
    deterministic: bool
    simulator: bool
    has_tokenizer: bool
    data_parallel: int
    running: int | None
    queued: int | None
    now: ServerNow
    notes: tuple[str, ...] = ()
    beside: tuple[ServerNow, ...] = ()


async def examine(
    client: SGLangClient,
    *,
    affordable_tokens: int = _AFFORDABLE,
    on_sending: Callable[[str], None] = lambda _rid: None,
) -> Target:
    """Looks at the server behind ``client``. Raises TargetUnusable, saying what is wrong and what to do.

    ``affordable_tokens``: how many tokens the experiments may make the server prefill, at most; 0 sends
    none, and what only they can tell is assumed, with a note. ``on_sending``: told of each rid before it
    is sent; one is under way at a time.
    """
    info = await _server_info(client)
    model = await _first(client, "/model_info", "/get_model_info")
    _refuse_by_words(client, info, model)
    running, queued = await _busy(client)
    notes: list[str] = []
    facts = _Facts(info, model, await _first(client, "/v1/models"), notes)
    chunk = facts.chunk()
    if affordable_tokens:
        experiment = Experiment(
            client, chunk=chunk, page=facts.page(), context=facts.context_len(), on_sending=on_sending
        )
        found = await experiment.run(
            affordable_tokens=min(affordable_tokens, (facts.pool() or 8 * affordable_tokens) // 2),
            hybrid=facts.flag("uses_mamba_radix_cache"),
            data_parallel=facts.number("dp_size") or 1,
        )
    else:
        found = Findings(None, facts.flag("uses_mamba_radix_cache") is True, (), ())
    notes.extend(found.notes)
    if info.get("disaggregation_mode") in ("prefill", "decode"):
        notes.append(_APART)
    now = _now(info, model)
    beside = await _beside(client, now, notes)
    return Target(
        url=client.base_url,
        version=str(info.get("version", "unknown")),
        model=str(info.get("served_model_name") or info.get("model_path") or "unknown"),
        fingerprint=now.fingerprint,
        geometry=facts.geometry(found, chunk),
        deterministic=info.get("enable_deterministic_inference") is True,
        simulator=bool(info.get("simulator")),
        has_tokenizer=info.get("skip_tokenizer_init") is not True,
        data_parallel=facts.number("dp_size") or 1,
        running=running,
        queued=queued,
        now=now,
        notes=tuple(notes),
        beside=beside,
    )


async def _beside(client: SGLangClient, now: ServerNow, notes: list[str]) -> tuple[ServerNow, ...]:
    """Others that answer in turn behind the address. Raises TargetUnusable where they are not the same."""
    others: dict[tuple[str, str], ServerNow] = {}
    for _ in range(_TURNS):
        other = await server_now(client)
        differs = now.fingerprint.differences(other.fingerprint)
        if differs:
            raise TargetUnusable(
                f"servers that differ take turns behind {client.base_url}: {'; '.join(differs)}. Evidence is "
                "of one kind of server: name one of them, or a router whose workers are all alike."
            )
        if other.start != now.start:
            others[other.start] = other
    if others or len(client.workers) > 1:
        count = max(len(others) + 1, len(client.workers))
        notes.append(
            f"At least {count} servers take turns behind {client.base_url}, as a router's workers "
            "do: a prefix is found again only where it was written, and one of them that is started anew may "
            f"go unnoticed. {_who_answers(client)} To be sure of one, name it as target.url, and the others "
            "as target.replicas."
        )
    return tuple(others.values())


def _who_answers(client: SGLangClient) -> str:
    """Whether answers say which worker gave them, as far as the experiments have seen."""
    if client.workers:
        return (
            f"{len(client.workers)} of them were named in answers: each is judged by itself, and a probe "
            "that another one answered than the one whose cache it asks about is invalid."
        )
    return (
        f"Their answers have no {client.worker_header} header (target.worker_header) that says which one "
        "gave them: there is one verdict over all, and a probe that landed elsewhere cannot be told from "
        "one that was evicted."
    )


async def fingerprint_now(client: SGLangClient) -> Fingerprint:
    """The fingerprint alone, at no cost to the server: is it still the one that was examined?

    Raises TargetUnusable while it is down, loading, or something else.
    """
    return (await server_now(client)).fingerprint


async def server_now(client: SGLangClient) -> ServerNow:
    """Who answers now, at no cost to the server. Raises TargetUnusable as ``fingerprint_now``."""
    info = await _server_info(client)
    return _now(info, await _model_now(client))


async def _model_now(client: SGLangClient) -> Mapping[str, object]:
    """What it says of its model; a server without that endpoint says nothing.

    Raises TargetUnusable for an answer that was lost or cut on its way: without the fields in it, the same
    server would look like another one.
    """
    for path in ("/model_info", "/get_model_info"):
        status, value, detail = await client.get_json(path)
        if status == 200 and isinstance(value, dict):
            return value
        if status is None or status >= 500 or (status == 200 and detail):
            raise TargetUnusable(f"{client.base_url}{path} gave no whole answer: {detail}")
    return {}


def _now(info: Mapping[str, object], model: Mapping[str, object]) -> ServerNow:
    took = info.get("startup_time")
    return ServerNow(
        fingerprint=fingerprint_of(info, model),
        started=_short_digest(took) if took else "",
        seed=_short_digest(info.get("random_seed")),
    )


def _short_digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


async def _server_info(client: SGLangClient) -> Mapping[str, object]:
    """/server_info, or its older spelling. Raises TargetUnusable if this is not SGLang, or not there."""
    for path in ("/server_info", "/get_server_info"):
        status, value, detail = await client.get_json(path)
        if status is None:
            raise TargetUnusable(
                f"{client.base_url} cannot be reached: {detail}. Check target.url, and that the server runs."
            )
        if status in (401, 403):
            raise TargetUnusable(_key_wanted(client, detail))
        if status == 200 and isinstance(value, dict) and _is_sglang(value):
            return value
        if status >= 500:
            raise TargetUnusable(
                f"{client.base_url} is not ready: {detail} (GET {path}). Wait until it serves requests."
            )
    status, value, _ = await client.get_json("/v1/models")
    if status == 200 and isinstance(value, dict) and isinstance(value.get("data"), list):
        raise TargetUnusable(
            f"{client.base_url} speaks only the OpenAI API (it has /v1/models but no /server_info): a "
            "gateway, or another engine. soak needs SGLang's own /generate: name the SGLang server behind it "
            "as target.url."
        )
    raise TargetUnusable(
        f"{client.base_url} answers, but not like SGLang ({detail or 'GET /server_info is other JSON'}). "
        "Name the address at which `python -m sglang.launch_server` listens (its default port is 30000)."
    )


def _is_sglang(value: Mapping[str, object]) -> bool:
    return "model_path" in value and ("version" in value or "internal_states" in value)


def _key_wanted(client: SGLangClient, detail: str) -> str:
    if client.has_key:
        return (
            f"{client.base_url} refuses the API key it was given ({detail}). Put the server's --api-key into "
            "the environment variable that target.api_key_env names, or into target.api_key_file."
        )
    return (
        f"{client.base_url} needs an API key ({detail}). Put it into the environment variable that "
        "target.api_key_env names (SGLANG_API_KEY by default), or into target.api_key_file."
    )


def _refuse_by_words(client: SGLangClient, info: Mapping[str, object], model: Mapping[str, object]) -> None:
    """What the server itself says makes it unusable."""
    url = client.base_url
    if info.get("is_embedding") is True or model.get("is_generation") is False:
        raise TargetUnusable(
            f"{url} serves an embedding or reward model, which generates nothing and scores no tokens. "
            "Name a server with a generation model."
        )
    if info.get("disable_radix_cache") is True:
        why = (
            " (--enable-deterministic-inference turns it off for some attention backends: choose another)"
            if info.get("enable_deterministic_inference") is True
            else ""
        )
        raise TargetUnusable(
            f"{url} runs with the radix cache disabled: there is no prefix cache to soak. Restart it without "
            f"--disable-radix-cache{why}."
        )


async def _first(client: SGLangClient, *paths: str) -> Mapping[str, object]:
    """The first of these that answers with an object; empty if none does."""
    for path in paths:
        status, value, _ = await client.get_json(path)
        if status == 200 and isinstance(value, dict):
            return value
    return {}


async def _busy(client: SGLangClient) -> tuple[int | None, int | None]:
    """Requests running and queued now. /v1/loads is asked first: gauges on /metrics can be minutes old."""
    _, value, _ = await client.get_json(LOADS)
    seen = parse_loads(value)
    if seen is None:
        text = await client.metrics_text()
        seen = ServerMetrics() if text is None else parse_metrics(text)
    return (
        None if seen.running is None else round(seen.running),
        None if seen.queued is None else round(seen.queued),
    )


class _Facts:
    """The geometry as far as the server's words give it; what is assumed instead is noted."""

    def __init__(
        self,
        info: Mapping[str, object],
        model: Mapping[str, object],
        models: Mapping[str, object],
        notes: list[str],
    ) -> None:
        self._info = info
        self._model = model
        states = info.get("internal_states")
        first = states[0] if isinstance(states, list) and states else {}
        self._state: Mapping[str, object] = first if isinstance(first, dict) else {}
        data = models.get("data")
        listed = data[0] if isinstance(data, list) and data else {}
        self._listed: Mapping[str, object] = listed if isinstance(listed, dict) else {}
        self._notes = notes

    def number(self, *names: str) -> int | None:
        """The first of these fields that is a positive integer."""
        for name in names:
            for source in (self._info, self._state, self._model, self._listed):
                value = source.get(name)
                if type(value) is int and value > 0:
                    return value
        return None

    def flag(self, name: str) -> bool | None:
        value = self._info.get(name)
        return value if isinstance(value, bool) else None

    def context_len(self) -> int:
        found = self.number("max_model_len", "context_length", "max_req_input_len")
        # a prompt must stay below max_req_input_len, a few tokens under the context limit
        longest = self.number("max_req_input_len")
        if found is not None and longest is not None:
            found = min(found, longest)
        if found is None:
            self._notes.append("The server does not say its context length; 4096 tokens are assumed.")
        return found or 4096

    def pool(self) -> int | None:
        return self.number("max_total_num_tokens", "max_total_tokens")

    def page(self) -> int:
        return self.number("page_size") or 1

    def chunk(self) -> int:
        """Tokens per prefill chunk; the whole context where chunking is off (-1)."""
        return self.number("chunked_prefill_size") or self.context_len()

    def adapters(self) -> tuple[str, ...]:
        """Names of the LoRA adapters it was started with, in order."""
        said = self._info.get("lora_paths")
        entries = list(said) if isinstance(said, list | dict) else []
        names = [entry.get("lora_name") if isinstance(entry, dict) else entry for entry in entries]
        # NAME=PATH as on the command line, or the name alone
        return tuple(sorted({name.split("=")[0] for name in names if isinstance(name, str) and name}))

    def grammar(self) -> bool:
        """Whether it can be bound to a JSON schema: SGLang cannot without a tokenizer or a backend."""
        backend = self._info.get("grammar_backend")
        return (
            self._info.get("skip_tokenizer_init") is False and isinstance(backend, str) and backend != "none"
        )

    def geometry(self, found: Findings, chunk: int) -> Geometry:
        vocab = found.vocab_size or self.number("vocab_size")
        if vocab is None:
            vocab = 1000
            self._notes.append("The server does not say its vocabulary size; only ids below 1000 are used.")
        large = vocab >= _FULL_SIZE
        hybrid = found.hybrid
        strategy = self._info.get("mamba_radix_cache_strategy", self._info.get("mamba_scheduler_strategy"))
        buffered = hybrid and isinstance(strategy, str) and strategy.startswith("extra_buffer")
        grid = (
            state_grid(found.resumptions, chunk, self.number("_mamba_cache_chunk_size")) if hybrid else None
        )
        if hybrid and grid is None:
            self._notes.append(
                "Where this hybrid model's prefill keeps states could not be learned; chunk ends are assumed."
            )
        return Geometry(
            # specials, added and multimodal ids lie at the top of many vocabularies
            vocab_size=vocab - vocab // 100 if large else vocab,
            context_len=self.context_len(),
            chunk=chunk,
            page=self.page(),
            state_grid=grid if grid is not None or not hybrid else chunk,
            track_interval=self.number("mamba_track_interval") if buffered else None,
            window=self.number("sliding_window_size", "sliding_window", "attention_chunk_size"),
            max_total_tokens=self.pool(),
            max_running=self.number("effective_max_running_requests_per_dp", "max_running_requests"),
            hybrid=hybrid,
            strategy=strategy if hybrid and isinstance(strategy, str) else None,
            reserved_ids=_RESERVED_LOW if large else 10,
            adapters=self.adapters(),
            grammar=self.grammar(),
            host_tier=self.flag("enable_hierarchical_cache"),
        )
