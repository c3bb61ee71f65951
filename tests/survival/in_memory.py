"""A run's parts on a server without sockets, so that a million requests take minutes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from prometheus_client import CollectorRegistry

from soak.drive.observation import Observation
from soak.plan.geometry import Geometry
from soak.plan.plan import Plan
from soak.run.identity import identify
from soak.run.journalling import journalled
from soak.run.parts import Parts, wire
from soak.sglang.client import SGLangClient
from soak.sglang.exchange import Answer, GenerateRequest, Outcome
from soak.sglang.fingerprint import fingerprint_of
from soak.sglang.preflight import ServerNow, Target, _short_digest
from soak.store.database import Store
from tests.survival.runs import config

GEOMETRY = Geometry(vocab_size=32_000, context_len=2048, chunk=256, max_total_tokens=200_000)
NOW = ServerNow(fingerprint_of({"version": "0.5.18", "model_path": "m"}), "", _short_digest(None))


class Instant(SGLangClient):
    """Answers at once, with as many tokens as were asked for."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self._tokens = np.arange(500, 500 + 4096, dtype=np.int32)

    async def generate(self, request: GenerateRequest) -> tuple[Answer, ...]:
        now = time.monotonic()
        return tuple(
            Answer(
                rid=rid,
                outcome=Outcome.OK,
                http_status=200,
                sent_s=now,
                first_token_s=now + 0.01,
                finished_s=now + 0.02,
                prompt_tokens=len(prompt),
                completion_tokens=request.max_new_tokens,
                cached_tokens=len(prompt) // 2,
                output_ids=self._tokens[: request.max_new_tokens],
            )
            for rid, prompt in zip(request.rids, request.prompts, strict=True)
        )

    async def abort(self, rid: str) -> bool:
        return True


TARGET = Target(
    url="http://127.0.0.1:1",
    version="0.5.18",
    model="m",
    fingerprint=NOW.fingerprint,
    geometry=GEOMETRY,
    deterministic=False,
    simulator=False,
    has_tokenizer=False,
    data_parallel=1,
    running=0,
    queued=0,
    now=NOW,
)


@contextmanager
def wired(out: Path, client: SGLangClient | None = None) -> Iterator[Parts]:
    """All parts of a run at a slow rate, with a journal of 20 MB."""
    load = {**config("http://127.0.0.1:1").load.model_dump(exclude_unset=True), "rate": 0.2}
    loaded = config("http://127.0.0.1:1", journal={"bytes": 20_000_000}, load=load)
    client = client or Instant()
    identity = identify(3, 5, loaded.resolve(GEOMETRY))
    target = replace(TARGET, url=client.base_url)
    store = Store(None)
    with journalled(loaded, target, identity, out, print) as journal:
        parts = wire(
            loaded,
            client,
            target,
            identity,
            store=store,
            registry=CollectorRegistry(),
            say=print,
            journal=journal,
        )
        try:
            yield parts
        finally:
            parts.desk.close()


async def send(parts: Parts, plan: Plan, index: int) -> None:
    """The first step of one index, as the driver would, through session, journal, record and victims."""
    item = plan.items(index)[0]
    for part, prompt in enumerate(item.prompts):
        ids = plan.ids(prompt)
        (answer,) = await parts.session.generate([ids], max_new_tokens=item.max_new_tokens)
        seen = Observation(item, part, ids, answer.sent_s, answer)
        parts.record.journal_load(seen)
        parts.continuity.observe(seen)


def plan_of(parts: Parts) -> Plan:
    """The plan that the parts were made for."""
    plan: Plan = parts.driver.plan
    return plan
