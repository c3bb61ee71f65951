"""The simulator answers as SGLang does: the same conversations with both, and what they said compared.

``parity_cases.py`` and ``parity_control.py`` are the table of conversations; ``talk.py`` says what is kept of
an answer. What differs on purpose stands in KNOWN with its reason; a difference that is gone must leave it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from .conftest import API_KEY
from .parity_cases import CACHING, REFUSALS, SHAPES
from .parity_control import CONTROL, REPORTS
from .server import Server
from .simulated import LIKE, serving
from .talk import ATTENTION, HYBRID, Case, Talk, differences

CASES: dict[str, Case] = {**SHAPES, **CACHING, **REFUSALS, **CONTROL, **REPORTS}


@dataclass(frozen=True, slots=True)
class Known:
    """A difference that is meant to be. ``lines``: what all its lines match."""

    case: str
    lines: str
    reason: str


KNOWN = (
    Known(
        "every logprob, no tokens",
        r"/body/meta_info/output_(top|token_ids)_logprobs: .* against \[\]",
        "SGLang shows candidates of a token it computed and then withheld; the simulator withholds them too",
    ),
    Known(
        "one of a batch with a bad start, streamed",
        r"/body/prompt -?\d: only",
        "SGLang refuses that prompt alone; the simulator refuses the whole stream",
    ),
    Known(
        "flush while retracted",
        r"/0/(status|body): ",
        "0.5.18 refuses; the simulator does as later releases, which flush under a retracting pause",
    ),
    Known("places", r"/0: 5 against 4", "of 16 places 0.5.18 on the CPU fills 15"),
    Known(
        "fingerprint",
        r"/[a-z0-9_]+: only the first|/simulator(_faults)?: only the second",
        "kernels, parallelism and devices that the simulator has not; and it says that it is one",
    ),
    Known(
        "model_info", r"/[01]/body/embedding: only the first", "what SGLang could do with embedding models"
    ),
    Known(
        "loads",
        r"/body/loads/0/(total_prefill_\w+|decode_moments): only the first",
        "sums for routers' cost models",
    ),
    Known(
        "metrics",
        r"/families/sglang:\w+: only|/families/sglang:(num_retracted_reqs|time_to_first\w+|e2e_\w+)/1: "
        r"|/read/(retracted|evicted_tokens)_total: only the second",
        "families soak does not read, or that SGLang shows from their first event on; one more label on some",
    ),
)


@pytest.fixture(scope="module")
def simulated() -> Iterator[dict[str, Talk]]:
    """A simulator for each kind of server."""
    with serving(LIKE["llama"]) as attention, serving(LIKE["hybrid"]) as hybrid:
        yield {
            "llama": Talk(attention, LIKE["llama"].api_key),
            "hybrid": Talk(hybrid, LIKE["hybrid"].api_key),
        }


def unexpected(case: str, found: list[str]) -> list[str]:
    """Differences that are not in KNOWN. AssertionError if a known one is gone."""
    for known in KNOWN:
        if known.case == case:
            rest = [line for line in found if not re.match(known.lines, line)]
            assert len(rest) < len(found), f"no longer so, take it out of KNOWN: {known.reason}"
            found = rest
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in (ATTENTION, HYBRID) for name, case in CASES.items() if kind in case.kinds],
)
def test_the_simulator_says_what_sglang_says(
    kind: str, name: str, simulated: dict[str, Talk], request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(kind)
    answers = []
    for talk in (Talk(server.url, server.api_key), simulated[kind]):
        talk.flush()
        answers.append(json.loads(json.dumps(CASES[name].ask(talk))))
    assert server.alive(), server.log_tail()
    assert unexpected(name, list(differences(*answers))) == []


def test_every_known_difference_is_of_a_case() -> None:
    assert {known.case for known in KNOWN} <= CASES.keys()
    assert all(known.reason for known in KNOWN)


def test_a_difference_is_seen() -> None:
    """The comparison itself: a missing key, another value, another length."""
    one = {"meta": {"cached": 5, "rows": [1, 2]}, "only": None}
    other = {"meta": {"cached": 6, "rows": [1]}}
    found = list(differences(one, other))
    assert [line.split(":")[0] for line in found] == ["/meta/cached", "/meta/rows", "/only"]
    assert API_KEY not in "".join(found)
