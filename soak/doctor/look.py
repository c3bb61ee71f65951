"""Looks at one server from top to bottom and reports: reads first, then a few requests where allowed.

Never more than the meter's limits, never a flush, a pause or an abort of anything but its own, and nothing
sent to a server that says it is not for generation, or is one half of a pair.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from soak.config import Config
from soak.doctor import cache_lines, fault_lines, load_lines, server_lines
from soak.doctor.finding import Group, Line, Report, bad, group, ok, unknown
from soak.doctor.meter import ALONE, BEHIND_DATA_PARALLELISM, MeteredClient, OverLimit
from soak.doctor.next_step import steps_after
from soak.doctor.reads import NotSoakable, Reads, read_all
from soak.doctor.trial import NotTried, Trial, try_passes
from soak.runners.record import Record
from soak.sglang.client import SGLangClient
from soak.sglang.experiment import NoGenerate
from soak.sglang.preflight import Target, TargetUnusable, examine

_PREFLIGHT_TOKENS = 40_000  # as before a run, so that what is learned here is what a run will learn
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of the doctor.

    config: its target is looked at, its load is priced; key: of the server; may_try: whether requests may be
    sent; why_not, how: why they may not, and how they may; limit_s: for reading and for trying, each;
    controls_needed: until calibrated; config_words: how to name the config on a command line, "" without one;
    record: of the server's installation, if there is one.
    """

    config: Config
    key: str | None = field(repr=False)
    may_try: bool
    why_not: str
    how: str
    limit_s: float
    controls_needed: int
    config_words: str = ""
    record: Record | None = None


async def look(wanted: Wanted) -> Report:
    """The report. Cancelled, it takes back what it has on the server. Raises ValueError for a bad key."""
    url = wanted.config.target.url
    async with (
        MeteredClient(url, api_key=wanted.key, connect_timeout_s=_CONNECT_S) as client,
        SGLangClient(url, connect_timeout_s=_CONNECT_S) as anonymous,
    ):
        try:
            async with asyncio.timeout(wanted.limit_s):
                reads = await read_all(client, anonymous)
            server_lines.check_kind(reads)
        except NotSoakable as error:
            return _unusable(url, error.name, error.words, error.step)
        except TimeoutError:
            words = f"told too little within {wanted.limit_s:g} s"
            return _unusable(url, "reach", words, "give it time with --limit, or look at its log")
        return await _Visit(wanted, client, reads).report()


def _unusable(url: str, name: str, words: str, step: str) -> Report:
    return Report(url, (Group("Server", (bad(name, words, step),)),), (step,), usable=False)


class _Visit:
    """One server that can be read: what is learned of it, in the order in which it is learned."""

    def __init__(self, wanted: Wanted, client: MeteredClient, reads: Reads) -> None:
        self._wanted, self._client, self._reads = wanted, client, reads
        self._busy = load_lines.busy(reads)
        ranks = reads.info.get("dp_size")
        self._data_parallel = ranks if isinstance(ranks, int) and ranks > 1 else 1
        client.limits = ALONE if self._data_parallel == 1 else BEHIND_DATA_PARALLELISM
        self._tried: list[Line] = []
        self._reachable = True
        self._learned: Target | None = None

    async def report(self) -> Report:
        """Everything, as a report."""
        reads, config = self._reads, self._wanted.config
        target, trial = await self._try()
        has_tokenizer = reads.info.get("skip_tokenizer_init") is not True
        groups = [
            server_lines.server_group(reads, has_key=self._client.has_key, has_tokenizer=has_tokenizer),
            server_lines.topology_group(reads),
        ]
        cache = [cache_lines.radix_line(reads), *self._tried]
        load = [load_lines.busy_line(self._busy, shared=config.shared), load_lines.metrics_line(reads)]
        faults = fault_lines.fault_lines(reads, self._wanted.record)
        facts = self._facts(target, trial)
        facts["faults"] = list(faults.judged)
        plan: list[Line] = []
        if target is not None:
            cache += [
                cache_lines.deterministic_line(reads),
                *cache_lines.geometry_lines(target, reads, tried=self._learned is not None),
            ]
            priced, cost = load_lines.price_lines(
                config,
                target.geometry,
                self._wanted.controls_needed,
                reads.info.get("max_mamba_cache_size"),
            )
            load += priced
            facts["cost_per_hour"] = None if cost is None else _finite(dataclasses.asdict(cost))
            plan, rows = fault_lines.shape_lines(target.geometry, reads.said, faults.names)
            facts["shapes"] = rows
        load.append(self._sent())
        groups += [
            cache_lines.cache_group(cache),
            group("Load", load),
            group("Known faults", faults.lines),
            *([group("Shapes", plan)] if plan else []),
        ]
        whole = Report(config.target.url, tuple(groups), (), self._reachable, facts)
        steps = steps_after(whole, config, self._wanted.config_words)
        return dataclasses.replace(whole, steps=steps)

    async def _try(self) -> tuple[Target | None, Trial | None]:
        """What requests show, as lines and as plain values."""
        why = self._not_to_be_tried()
        if why is not None:
            if self._reads.info.get("disable_radix_cache") is True:
                return None, None
            self._tried.append(why)
            return await self._by_words(), None
        try:
            async with asyncio.timeout(self._wanted.limit_s):
                return await self._by_requests()
        except NoGenerate as error:
            self._reachable = False
            self._tried.append(self._refused(error))
            return None, None
        except TargetUnusable as error:
            self._tried.append(self._refused(error))
        except TimeoutError:
            words = f"not done within {self._wanted.limit_s:g} s; what was under way has been aborted"
            self._tried.append(unknown("tried", words, "give it time with --limit, or wait until it is idle"))
        except OverLimit as error:
            self._tried.append(unknown("tried", f"stopped: {error}", "look at the lines above"))
        if self._learned is not None:
            return self._learned, None
        return await self._by_words(), None

    def _not_to_be_tried(self) -> Line | None:
        reads = self._reads
        if reads.info.get("disable_radix_cache") is True:
            return unknown("tried", "nothing: there is no cache", "see radix-cache")
        if server_lines.role(reads) is not None and reads.workers is None:
            return unknown("tried", "nothing: one half of a pair takes no requests", "see disaggregation")
        if not self._wanted.may_try:
            return unknown(
                "tried",
                f"nothing ({self._wanted.why_not}): whether cold is cold, warm is warm and namespaces are "
                "kept apart is not known",
                f"{self._wanted.how}: at most "
                f"{self._client.limits.requests} requests and {self._client.limits.tokens:,} tokens",
            )
        return None

    async def _by_words(self) -> Target | None:
        """The target as far as its own words tell, with no request sent."""
        try:
            async with asyncio.timeout(self._wanted.limit_s):
                return await examine(self._client, affordable_tokens=0)
        except TargetUnusable as error:
            self._tried.append(self._refused(error))
        except TimeoutError:
            words = f"told too little within {self._wanted.limit_s:g} s"
            self._tried.append(unknown("told", words, "give it time with --limit, or look at its log"))
        return None

    async def _by_requests(self) -> tuple[Target, Trial | None]:
        ranks = min(8, 1 if self._data_parallel == 1 else 2 * self._data_parallel)
        target = await examine(self._client, affordable_tokens=_PREFLIGHT_TOKENS // ranks)
        self._learned = target
        self._tried.append(ok("namespaces", "kept apart by extra_key; logprob_start_len limits the match"))
        try:
            trial = await try_passes(self._client, target.geometry, self._data_parallel)
        except NotTried as error:
            self._tried.append(
                unknown(
                    "passes", f"warm against cold was not tried: {error}", "a soak tries it at its own pace"
                )
            )
            return target, None
        self._tried.extend(cache_lines.trial_lines(trial, self._data_parallel))
        return target, trial

    def _refused(self, error: TargetUnusable) -> Line:
        """The preflight's own words: what is wrong, then what to do."""
        told = str(error).removeprefix(self._client.base_url).strip()
        words, _, step = told.partition(". ")
        return bad("preflight", words, step or "look at the server's log")

    def _sent(self) -> Line:
        client = self._client
        if not client.requests:
            return ok("sent", "nothing but GETs")
        return ok(
            "sent",
            f"{client.requests} requests, {client.tokens:,} prompt tokens in all, {client.generated} "
            "generated, in namespaces of their own (never more than "
            f"{client.limits.requests} and {client.limits.tokens:,})",
        )

    def _facts(self, target: Target | None, trial: Trial | None) -> dict[str, Any]:
        reads, client = self._reads, self._client
        return {
            "server": {
                "version": _plain(reads.info.get("version")),
                "model": _plain(reads.said.get("served_model_name") or reads.said.get("model_path")),
                "simulator": bool(reads.info.get("simulator")),
                "fingerprint": None if target is None else target.fingerprint.digest(),
                "deterministic": reads.info.get("enable_deterministic_inference") is True,
                "radix_cache": reads.info.get("disable_radix_cache") is not True,
                "metrics": reads.metrics is not None,
                "workers": None if reads.workers is None else list(reads.workers),
            },
            "traffic": dataclasses.asdict(self._busy),
            "geometry": None if target is None else target.geometry.as_dict(),
            "trial": None if trial is None else _finite(dataclasses.asdict(trial)),
            "sent": {"requests": client.requests, "tokens": client.tokens, "generated": client.generated},
            "limits": dataclasses.asdict(client.limits),
            "faults": [],
            "shapes": [],
            "cost_per_hour": None,
        }


def _plain(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """JSON knows neither NaN nor infinity: null."""
    return {
        key: _finite(value)
        if isinstance(value, dict)
        else None
        if isinstance(value, float) and not math.isfinite(value)
        else value
        for key, value in values.items()
    }
