"""Which conjunctions a prefill-decode disaggregated server cannot have, by what it says of itself. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_ON_THE_DECODE_SIDE = ("decode-written-resume", "retraction")


def cannot_apply(fingerprint: Mapping[str, object]) -> dict[str, str]:
    """Names of conjunctions, each with why; none for a server that prefills and decodes in one process.

    What decode writes, and what it retracts, is in the decode side's memory. A later request resumes from
    there only if that side has a radix cache (--disaggregation-decode-enable-radix-cache).
    """
    if fingerprint.get("disaggregation_mode") not in ("prefill", "decode"):
        return {}
    if fingerprint.get("disaggregation_decode_enable_radix_cache") is True:
        return {}
    why = (
        "prefill and decode are apart here and the decode side says nothing of a radix cache of its own, so "
        "nothing resumes from what decode has written"
    )
    return dict.fromkeys(_ON_THE_DECODE_SIDE, why)
