"""A first config for a server that was looked at: commented YAML, valid, and cautious by default. Pure.

Of what the server says of itself only numbers become values; its texts stand in comments, a line each.
"""

from __future__ import annotations

import json

from soak.export.closing import printable
from soak.sglang.preflight import Target

_USUAL_CONTEXT = 8192
_SHARE_OF_POOL = 8  # a prompt takes no more than this part of the pool, or few victims would grow old in it
_SHAPES = {
    "shared-prefix": (4, "many prompts begin alike: the ordinary prefix hit"),
    "long-context": (1, "near the context limit, resumed from far back"),
    "chunked-burst": (2, "several prompts longer than a prefill chunk at once"),
    "decode-seeded": (3, "resumed from what decode has written"),
    "co-batched": (2, "prompts that share a prefill batch"),
    "branching": (2, "conversations that part ways in the middle"),
    "identical": (1, "the same prompt several times at once"),
    "abort-storm": (1, "prompts that are taken back in prefill and in decode"),
}
_FAR_BUDGET = (32, 20_000)  # in flight, tokens a second


def first_config(target: Target, *, loopback: bool, api_key_env: str | None, asked_at: str) -> str:
    """The text of a config for that server. loopback: whether it is this machine; asked_at: a date."""
    geometry, busy = target.geometry, (target.running or 0) + (target.queued or 0)
    limit = geometry.context_len - 1
    longest = min(limit, _USUAL_CONTEXT, max(512, (geometry.max_total_tokens or 1 << 30) // _SHARE_OF_POOL))
    decode = min(2 * (geometry.track_interval or 128) + 64, max(16, longest // 3))
    in_flight = min(_FAR_BUDGET[0], geometry.max_running or _FAR_BUDGET[0])
    burst = max(2, min(6, in_flight))
    limits = f"""
budget: # what this run may cost the server, at most
  in_flight: {in_flight} # prompts at once
  tokens_per_second: {_FAR_BUDGET[1]} # prefilled and generated, load and probes together"""
    unlimited = """
# budget: # on this machine a run may go without; off it both must be stated
#   in_flight: 32
#   tokens_per_second: 20000"""
    shapes = "\n".join(f"    {name}: {weight} # {words}" for name, (weight, words) in _SHAPES.items())
    key = f"api_key_env: {json.dumps(api_key_env)}" if api_key_env else "# api_key_env: SGLANG_API_KEY"
    simulator = ", soak's simulator" if target.simulator else ""
    shared = "true" if busy else "false"
    return f"""\
# Written by `soak init` on {asked_at}, from what the server said of itself. Change what you like; every
# key is in docs/reference/config.md. Next:
#   soak doctor --config THIS_FILE     tries its cache with a few requests
#   soak plan THIS_FILE --cost         says what an hour of it costs the server
#   soak run THIS_FILE --duration 10m
#
# The server: {_line(target.model)}, SGLang {_line(target.version)}{simulator}
#   context of {geometry.context_len:,} tokens, {_pool(target)}, prefill in chunks of {geometry.chunk:,}
#   {_states(target)}
#   {_determinism(target)}
target:
  url: {json.dumps(target.url)}
  # its key is read from the environment, or from a file (api_key_file): never from here
  {key}
  allow_load: {"true" if not loopback else "false"} # off this machine load must be allowed in words
  shared: {shared} # true: others' traffic runs beside, and probes take 2% of its pools a minute{_busy(busy)}
  disruptive: false # true allows the shapes pressure and tier-round-trip, which push out what others cached
run:
  duration: 30m # 8h for a night, 7d for a week
  seed: 1 # the same seed plans the same load
  state: soak-state.sqlite # what is normal here is learned once, and alarms outlive the run
load:
  rate: 1 # plan indices a second; a burst is one index
  max_context: {longest} # of {limit:,} that it takes: longer prompts reach more and cost more
  decode_tokens: {decode} # past two places where decode keeps a state
  burst: {burst}
  shapes: # weights
{shapes}
probe:
  rate: 2 # a second, at most
  tail: 64 # tokens scored after a prefix{limits if not loopback else unlimited}
detect:
  p0_max: 0.2 # 0.01 for runs of hours: it takes about 1,000 controls, and sees rarer faults
  min_valid_probes: 50 # fewer than that, and a run without findings is VACUOUS, not CLEAN
stop:
  queue: 64 # load backs off while more requests wait on the server
  ttft: 30s # or while the first token takes longer
metrics:
  port: 9464 # /metrics for Prometheus, on this machine only; null serves none
"""


def _line(words: str) -> str:
    """A server's words as the rest of a comment."""
    return printable(words)[:120]


def _pool(target: Target) -> str:
    pool = target.geometry.max_total_tokens
    return "a pool whose size it does not say" if pool is None else f"a pool of {pool:,} tokens"


def _states(target: Target) -> str:
    geometry = target.geometry
    if not geometry.hybrid:
        return "no recurrent state: a prefix can be resumed at any page"
    decode = f", by decode every {geometry.track_interval:,} tokens" if geometry.track_interval else ""
    # nobody has tried yet where prefill keeps one, and what the geometry holds for it is the cautious guess
    return f"recurrent state, kept by prefill at places that the doctor learns by trying{decode}"


def _determinism(target: Target) -> str:
    if target.deterministic:
        return "it promises to repeat itself to the last bit: one difference will be an alarm"
    return "it does not promise to repeat itself to the last bit: what is noise is learned from controls"


def _busy(busy: int) -> str:
    return f"\n  # it had {busy:,} requests of other people when it was asked" if busy else ""
