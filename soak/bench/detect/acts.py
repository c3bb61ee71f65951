"""Traffic that brings a known fault's conditions together, and the same traffic with one of them missing.

An act sends requests and says which prefixes they left for the oracle to ask about. ``together`` says
whether the conditions come together this time; whether a prefix is spoiled is the server's doing and is
measured, never assumed. Prompts are of 100 to 400 tokens. Geometry: chunk 256, state grid 64, track interval
128.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from soak.bench.detect.in_process import Site
from soak.oracle.victims import Victim
from soak.sglang.exchange import TokenIds

Act = Callable[[Site, bool], list[Victim]]


def _together(site: Site, together: bool, *prompts: TokenIds) -> None:
    """Send prompts in one batch, or one after the other."""
    for prompt in prompts:
        site.send(prompt)
        if not together:
            site.direct.drain()
    site.direct.drain()


def ordinary(site: Site, together: bool) -> list[Victim]:
    """Two prompts in one batch or apart, and a generation that decodes across the track interval."""
    first, second = (site.ids(site.draw.between(100, 180)) for _ in range(2))
    _together(site, together, first, second)
    written = site.ask(site.ids(110), 24)
    return [site.victim(first), site.victim(second), site.generated(written)]


def prefilled(site: Site, together: bool) -> list[Victim]:
    """Two prompts, in one batch or apart. For faults that hit every resume."""
    first, second = (site.ids(site.draw.between(100, 180)) for _ in range(2))
    _together(site, together, first, second)
    return [site.victim(first), site.victim(second)]


def stale_track_rows(site: Site, together: bool) -> list[Victim]:
    """Two 128-token prompts in one replay arm its second row; a narrower replay fires into the second's
    checkpoint. Apart, no second row is armed.
    """
    first, second = site.ids(128), site.ids(128)
    _together(site, together, first, second)
    narrower = site.ids(100)
    site.ask(narrower)
    return [site.victim(first), site.victim(second), site.victim(narrower)]


def stale_track_tail(site: Site, together: bool) -> list[Victim]:
    """A generation decodes across the track interval alone; beside it one that does not get there."""
    crossing = site.ask(site.ids(110), 24 if together else 8)
    return [site.generated(crossing), site.victim(site.sent(site.ids(150)))]


def multi_prefill_offset(site: Site, together: bool) -> list[Victim]:
    """A prompt is prefilled behind another of an uneven length in one batch, and so begins off the grid."""
    first, second = site.ids(site.draw.between(66, 120)), site.ids(150)
    _together(site, together, first, second)
    return [site.victim(first), site.victim(second)]


def track_overlap(site: Site, together: bool) -> list[Victim]:
    """A request ends one token before the track interval, or some tokens past it."""
    ends = site.ask(site.ids(110), 18 if together else 24)
    upto = 127 if together else 128
    return [site.generated(ends, upto), site.victim(site.sent(site.ids(150)))]


def mixed_chunk_drop(site: Site, together: bool) -> list[Victim]:
    """A prompt lands while another request decodes, or while none does."""
    document = site.ids(200)
    if together:
        site.send(site.ids(40), 12)
        for _ in range(3):
            site.direct.scheduler.step()
    site.ask(document)
    return [site.victim(document), site.victim(site.sent(site.ids(150)))]


def branch_state_mismatch(site: Site, together: bool) -> list[Victim]:
    """A prompt parts from an earlier one off the checkpoint grid, or on it; both are asked about."""
    parts = 96 if together else 64
    first = site.ids(192)
    site.ask(first[:64])
    site.ask(first)
    second = np.concatenate([first[:parts], site.ids(192 - parts)])
    site.ask(second)
    return [site.victim(first[:parts]), site.victim(second)]


def abort_slot_reuse(site: Site, together: bool) -> list[Victim]:
    """A request is aborted, or not, while its prefix comes back from the host; the next needs the device."""
    prefix = site.ids(380)
    site.ask(prefix)
    for _ in range(2):
        site.ask(site.ids(250))
    site.send(site.ids(20), 8)
    site.direct.scheduler.step()
    waiting = site.send(np.concatenate([prefix, site.ids(20)]), 2)
    site.direct.scheduler.step()
    if together:
        site.direct.scheduler.abort(waiting.rid)
    written = site.send(site.ids(400))
    site.direct.drain()
    return [site.victim(written.prompt)]


def retract_lost_state(site: Site, together: bool) -> list[Victim]:
    """Three generations outgrow the pool and one is retracted, or they are short enough for all."""
    new = 100 if together else 30
    sent = [site.send(site.ids(70), new) for _ in range(3)]
    site.send(site.ids(40), 4)
    site.direct.drain()
    first = sorted(sent, key=lambda request: -request.retractions)[:2]  # the pool holds no more for long
    return [site.generated(request) for request in first]


def tenant_key_collision(site: Site, together: bool) -> list[Victim]:
    """One tenant uses the adapter; another's key is the adapter's name, or a name of its own."""
    document = site.ids(200)
    site.ask(document, lora="adapter-a")
    key = "adapter-a" if together else "tenant-b"
    if not together:
        site.ask(document, key=key)
    own = site.ids(150)
    site.ask(own, key="tenant-b")
    return [site.victim(document, namespace=key), site.victim(own, namespace="tenant-b")]


def host_tier_race(site: Site, together: bool) -> list[Victim]:
    """A prompt so long that it and a cold pass of it do not fit the device side by side, or a short one.

    Where the cold pass comes first, the warm pass has to load the prompt back and may read it too early. What
    was pushed off before the probe shows nothing: the locate request loads it, at leisure.
    """
    return [site.victim(site.sent(site.ids(300 if together else 120))) for _ in range(1 if together else 2)]


def short_tail_chunk(site: Site, together: bool) -> list[Victim]:
    """A request adds two tokens to a cached prefix, or eight; the prefix is asked about."""
    document = site.ids(200)
    site.ask(document)
    site.ask(np.concatenate([document, site.ids(2 if together else 8)]))
    return [site.victim(document), site.victim(site.sent(site.ids(150)))]
