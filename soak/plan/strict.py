"""What a strict-json request must come back as: a schema with a constant that no other request has.

The server's grammar, not the model, makes the answer, so any model can be asked. Pure.
"""

from __future__ import annotations

import json
import re

from soak.plan.words import raw_words

KINDS = ("alpha", "beta", "gamma")
TOKENS = 96
"""Most tokens of an answer: enough where every character is one, and for a little white space."""

_CODE = re.compile(r"soak-[0-9a-f]{16}")


def code_of(seed: int, nonce: int, index: int, part: int) -> str:
    """The constant of one prompt of one index."""
    return f"soak-{int(raw_words(seed, f'strict-{part}', index, 1, nonce)[0]):016x}"


def schema_of(code: str) -> str:
    """The JSON schema that only an object with this constant meets."""
    properties = {"id": {"const": code}, "kind": {"enum": list(KINDS)}}
    return json.dumps(
        {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    )


def wrong(text: str, code: str, whole: bool) -> str:
    """What is wrong with an answer that its schema made, in words; empty if nothing is.

    whole: it ended by itself; one that was cut off need not parse, but may hold no other request's constant.
    """
    foreign = next((found for found in _CODE.findall(text) if found != code), None)
    if foreign is not None:
        return f"holds the constant {foreign} of another request's schema, {code} is its own"
    if not whole:
        return ""
    try:
        said = json.loads(text)
    except ValueError as error:
        return f"does not parse ({error}): {text[:120]!r}"
    if said not in [{"id": code, "kind": kind} for kind in KINDS]:
        return f"does not meet its own schema: {text[:120]!r}"
    return ""
