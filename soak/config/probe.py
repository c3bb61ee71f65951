"""The section ``probe``: what the oracle asks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from soak.config.values import Seconds, Section, Share


class Probe(Section):
    """What the oracle asks. Shares are of probes, lengths in tokens."""

    tail: Annotated[int, Field(ge=16, le=4096)] = 64
    """Fresh tokens that a probe appends to the cached prefix."""
    max_scored: Annotated[int, Field(ge=16, le=4096)] = 256
    """Most tokens that are scored from the resume boundary on."""
    rate: Annotated[float, Field(gt=0, le=1000)] = 4.0
    """Most probes begun a second. The budget may allow fewer."""
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    """Most probes under way at once."""
    amnesia_share: Share = 0.25
    """Share that also asks how much of the far context is lost (two passes more)."""
    control_share: Share = 0.25
    """Share that a control is made beside, in the same question. Calibration makes more by itself."""
    repeat_share: Share = 0.25
    """Share that repeats its cold pass, to know how far cold passes are from each other."""
    invariance_share: Share = 0.0
    """Share that asks whether two ways to the same answer agree, at three full cold passes each."""
    continuation: Annotated[int, Field(ge=16, le=1024)] = 24
    """Tokens that a cold pass generates for the amnesia score."""
    kept_context: Annotated[int, Field(ge=1, le=65536)] = 64
    """Last tokens of the prefix that the blank pass of the amnesia score keeps."""
    top_k: Annotated[int, Field(ge=0, le=64)] = 0
    """Candidates that warm and cold pass list at each token, for the coarsened KL. 0 lists none."""
    oldest: Annotated[Seconds, Field(ge=5, le=86400)] = 1200.0
    """With ``load: none``, the age up to which a planted prefix is left alone before it is asked about."""
    timeout: Seconds = 120.0
    """How long one pass may take."""
