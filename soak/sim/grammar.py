"""A tiny grammar: JSON schemas that only a few texts meet, as the bytes that may come next.

Objects of constants and enumerations, in the order of their properties, without white space. Whatever else a
schema may say is refused, never ignored. Pure.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from soak.sim.text import FIRST_BYTE

MOST = 512
_KNOWN = {"type", "properties", "required", "additionalProperties"}


class GrammarError(ValueError):
    """A schema that this grammar does not know; the message says what."""


def texts_of(schema: str) -> tuple[bytes, ...]:
    """Every text that meets the schema. Raises GrammarError."""
    try:
        said = json.loads(schema)
    except ValueError as error:
        raise GrammarError(f"json_schema is not JSON: {error}") from error
    if not isinstance(said, dict) or said.get("type") != "object" or set(said) - _KNOWN:
        raise GrammarError(f"only objects of constants and enumerations are known, not {schema[:80]!r}")
    properties = said.get("properties")
    if not isinstance(properties, dict) or set(said.get("required", properties)) != set(properties):
        raise GrammarError("every property of json_schema must be named and required")
    choices = [[(name, value) for value in _values(name, one)] for name, one in properties.items()]
    total = 1
    for values in choices:
        total *= len(values)
    if total > MOST:
        raise GrammarError(f"json_schema is met by {total} texts, at most {MOST} are known")
    objects = (dict(pairs) for pairs in itertools.product(*choices))
    return tuple(json.dumps(one, separators=(",", ":")).encode() for one in objects)


def _values(name: str, schema: Any) -> list[Any]:
    if isinstance(schema, dict) and set(schema) == {"const"}:
        return [schema["const"]]
    if isinstance(schema, dict) and set(schema) == {"enum"} and isinstance(schema["enum"], list):
        return list(schema["enum"])
    raise GrammarError(f"property {name!r}: only const and enum are known")


def allowed(texts: tuple[bytes, ...], generated: list[int]) -> set[int] | None:
    """Ids that may come next; empty once a text is complete, None where what was generated meets none."""
    done = bytes(token - FIRST_BYTE for token in generated if FIRST_BYTE <= token < FIRST_BYTE + 256)
    open_ = [text for text in texts if text.startswith(done)]
    if len(done) != len(generated) or not open_:
        return None
    return {FIRST_BYTE + text[len(done)] for text in open_ if len(text) > len(done)}
