"""What a person sets about detection. Plain data: it never reads a file and never looks at a score."""

from __future__ import annotations

from dataclasses import dataclass

from soak.oracle.probe import PAIR_WORDS, RESUMES

CONFIDENCE_ERROR = 0.01
"""Error of everything that is learned from controls, taken together: the calibration is right with 99%."""

KINDS = len(RESUMES)
"""Strata among which the error is shared; a kind that never occurs leaves its share unused."""

PAIRS_ERROR = CONFIDENCE_ERROR * len(PAIR_WORDS) / KINDS
"""Of the invariance pairs, which have an error to themselves: each a share as large as a resume kind's."""

ABSOLUTE_ERROR = CONFIDENCE_ERROR * 0.8 / KINDS
MAGNITUDE_ERROR = CONFIDENCE_ERROR * 0.1 / KINDS
PAIRED_ERROR = CONFIDENCE_ERROR * 0.1 / KINDS
"""Shares of one kind. The absolute channel finds most faults and its bound decides how long calibration
takes, so it has the most.
"""

HANDFUL = 5
"""A kind with fewer valid probes than this does not keep a run CALIBRATING, and the report says that
evidence did not judge it. From the fifth probe on it does. The same holds of probes alone or under load in
exact mode.
"""


@dataclass(frozen=True, slots=True)
class DetectSettings:
    """Settings of the detectors.

    p0_max: calibration holds once the upper bound on a healthy probe's exceedance is at most this, in (0,
    1). run_length: A, the least average number of probes to a false alarm of the evidence channels, > 1.
    max_abs_d: declared bound on max |d| in nats, None where nobody declared one. deterministic: the server
    says that it runs deterministic inference. exact_tokens: scored tokens that must agree to the last bit
    before exact mode. run_length_words: where the run length comes from, a sentence for the statement.

    Raises ValueError for a value that makes no sense.
    """

    p0_max: float = 0.01
    run_length: float = 1e6
    max_abs_d: float | None = None
    deterministic: bool = False
    exact_tokens: int = 4096
    run_length_words: str = ""

    def __post_init__(self) -> None:
        if not 0.0 < self.p0_max < 1.0:
            raise ValueError(f"detect.p0_max is {self.p0_max}: give a share between 0 and 1, such as 0.01")
        if not 1.0 < self.run_length < float("inf"):
            raise ValueError(f"detect.run_length is {self.run_length}: give a number of probes over 1")
        if self.max_abs_d is not None and not 0.0 < self.max_abs_d < float("inf"):
            raise ValueError(f"detect.max_abs_d is {self.max_abs_d}: give nats over 0, or leave it out")
        if self.exact_tokens < 1:
            raise ValueError(
                f"detect.exact_tokens is {self.exact_tokens}: give a number of tokens, at least 1"
            )
