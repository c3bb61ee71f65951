"""Lines on what the server is and what stands between it and us: key, software, model, router, replicas."""

from __future__ import annotations

from soak.doctor.finding import Group, Line, bad, group, ok, warn
from soak.doctor.reads import NotSoakable, Reads

_SHOWN_WORKERS = 4
_SLOW_S = 2.0


def _text(value: object, limit: int = 80) -> str:
    return " ".join(str(value).split())[:limit]


def check_kind(reads: Reads) -> None:
    """Raises NotSoakable where /generate must not even be tried."""
    if reads.info.get("is_embedding") is True or reads.model.get("is_generation") is False:
        raise NotSoakable(
            "model",
            "an embedding or reward model: it generates nothing, and /generate would end such a server",
            "name a server with a generation model",
        )


def server_group(reads: Reads, *, has_key: bool, has_tokenizer: bool) -> Group:
    """Who answers."""
    return group(
        "Server",
        [_reach(reads), _key(reads, has_key), _software(reads), _model(reads, has_tokenizer)],
    )


def _reach(reads: Reads) -> Line:
    if reads.took_s > _SLOW_S:
        return warn(
            "reach",
            f"answers, after {reads.took_s:.1f} s",
            "a busy or distant server: give limits (stop.ttft, probe.timeout) room",
        )
    return ok("reach", f"answers in {reads.took_s * 1000:.0f} ms")


def _key(reads: Reads, has_key: bool) -> Line:
    if not has_key:
        return ok("key", "none wanted")
    if reads.key_needed is None:
        return ok("key", "accepted")
    return ok("key", "accepted" if reads.key_needed else "not needed: it answers without one as well")


def _software(reads: Reads) -> Line:
    version = _text(reads.info.get("version", "of a version that it does not say"))
    if not reads.info.get("simulator"):
        return ok("software", f"SGLang {version}")
    planted = reads.info.get("simulator_faults")
    names = ", ".join(_text(name) for name in planted) if isinstance(planted, list) else ""
    return ok(
        "software",
        f"soak's own simulator of SGLang {version.partition('+')[0]}, faults planted: {names or 'none'}",
    )


def _model(reads: Reads, has_tokenizer: bool) -> Line:
    said = reads.said
    named = _text(said.get("served_model_name") or said.get("model_path"))
    classes = said.get("architectures")
    kind = f" ({_text(classes[0])})" if isinstance(classes, list) and classes else ""
    words = "text and token ids" if has_tokenizer else "token ids only (no tokenizer), as soak sends them"
    return ok("model", f"{named}{kind}, takes {words}")


def topology_group(reads: Reads) -> Group:
    """What else there is besides one scheduler."""
    return group(
        "Between it and you",
        [_router(reads), _replicas(reads), _ranks(reads), _pair(reads), _speculation(reads)],
    )


def _router(reads: Reads) -> Line:
    if reads.workers is None:
        return ok("router", "none that shows")
    if not reads.workers:
        return bad(
            "router",
            "a router that names no worker",
            "register a worker with it, or name a server behind it",
        )
    shown = ", ".join(reads.workers[:_SHOWN_WORKERS])
    if len(reads.workers) > _SHOWN_WORKERS:
        shown += ", ..."
    if len(reads.workers) == 1:
        return warn("router", f"a router in front of {shown}", f"better name that one: {reads.workers[0]}")
    return warn(
        "router",
        f"a router in front of {len(reads.workers)} workers ({shown}): a probe "
        "may be answered by another than wrote its prefix",
        f"soak them one by one: {reads.workers[0]} first",
    )


def _replicas(reads: Reads) -> Line | None:
    if reads.faces == 1:
        return None
    return bad(
        "replicas",
        f"{reads.faces} different servers answer at this address in turn",
        "name one of them: what one has cached the other has not",
    )


def _ranks(reads: Reads) -> Line:
    said = reads.said
    sizes = {name: said.get(f"{name}_size") for name in ("tp", "pp", "ep", "dp")}
    many = ", ".join(f"{name} {n}" for name, n in sizes.items() if isinstance(n, int) and n > 1)
    if not many:
        return ok("ranks", "one rank" if isinstance(sizes["tp"], int) else "the server does not say")
    if isinstance(sizes["dp"], int) and sizes["dp"] > 1:
        return warn(
            "ranks",
            f"{many}: what one data-parallel rank has cached the others have not",
            "expect many probes without a hit; a server without --dp-size is soaked faster",
        )
    return ok("ranks", many)


def role(reads: Reads) -> str | None:
    """``prefill`` or ``decode`` for one half of a disaggregated pair, else None."""
    mode = reads.info.get("disaggregation_mode")
    return mode if isinstance(mode, str) and mode in ("prefill", "decode") else None


def _pair(reads: Reads) -> Line | None:
    half = role(reads)
    if half is None:
        return None
    if reads.workers is not None:
        return warn(
            "disaggregation",
            f"prefill and decode are apart (the server that answered is the {half} side)",
            "probes test the prefill side's cache; the decode side needs its own radix cache on to be tested",
        )
    return bad(
        "disaggregation",
        f"the {half} side of a pair: it takes requests from the router in front only, so none was sent",
        "name the router in front of the pair",
    )


def _speculation(reads: Reads) -> Line | None:
    algorithm = reads.info.get("speculative_algorithm")
    if algorithm in (None, "", "NONE"):
        return None
    return ok("speculation", f"{_text(algorithm)}: served logprobs come from the verify pass")
