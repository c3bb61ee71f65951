"""The section ``probe``: what the oracle asks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from soak.config.values import Seconds, Section, Share


class Probe(Section):
    """What the oracle asks. Shares are of probes; tail and blank context in tokens.

    oldest: with ``load: none``, the age up to which a planted prefix is left alone before it is asked about.
    top_k: candidates that warm and cold pass list at each token, for the coarsened KL; 0 lists none.
    """

    tail: Annotated[int, Field(ge=16, le=4096)] = 64
    max_scored: Annotated[int, Field(ge=16, le=4096)] = 256
    rate: Annotated[float, Field(gt=0, le=1000)] = 4.0
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    amnesia_share: Share = 0.25
    control_share: Share = 0.25
    repeat_share: Share = 0.25
    continuation: Annotated[int, Field(ge=16, le=1024)] = 24
    kept_context: Annotated[int, Field(ge=1, le=65536)] = 64
    top_k: Annotated[int, Field(ge=0, le=64)] = 0
    oldest: Annotated[Seconds, Field(ge=5, le=86400)] = 1200.0
    timeout: Seconds = 120.0
