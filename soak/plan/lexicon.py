"""Text as token ids: pieces of which documents are made, and facts to ask for. Plain data, checked.

Written once for a model by ``soak text``, read with the config, and part of the resolved spec from then on:
a run in text is as much a function of its seed as one in random ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Ids = tuple[int, ...]
Fact = tuple[Ids, Ids, Ids]
"""The sentence, the question, and the answer, which follows the question."""

FORMAT = "soak-text"
MOST_TOKENS = 200_000
"""Of all pieces together: they are part of the resolved spec, which every run and bundle holds."""

_HIGHEST = 1 << 24


class LexiconError(ValueError):
    """Not a lexicon; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """pieces: at least one, none empty; facts: maybe none; model: whose ids they are, as it names itself."""

    pieces: tuple[Ids, ...]
    facts: tuple[Fact, ...]
    model: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": FORMAT,
            "model": self.model,
            "pieces": [list(piece) for piece in self.pieces],
            "facts": [[list(part) for part in fact] for fact in self.facts],
        }


def lexicon_of(said: Any) -> Lexicon:
    """The lexicon that ``as_dict`` gave these values. Raises LexiconError."""
    if not isinstance(said, Mapping) or said.get("format") != FORMAT:
        raise LexiconError(f'not a text for soak: "format": "{FORMAT}" is missing; `soak text` writes one')
    pieces = tuple(_ids(piece) for piece in _list(said.get("pieces"), "pieces"))
    facts = []
    for fact in _list(said.get("facts", []), "facts"):
        parts = tuple(_ids(part) for part in _list(fact, "facts"))
        if len(parts) != 3:
            raise LexiconError("facts: each is a sentence, a question and an answer")
        facts.append((parts[0], parts[1], parts[2]))
    total = sum(map(len, pieces))
    if not pieces or total > MOST_TOKENS:
        raise LexiconError(
            f"pieces: {total:,} tokens; 1 to {MOST_TOKENS:,} are wanted: make it of fewer or shorter "
            "documents with `soak text`. Prompts of any length are put together from the pieces"
        )
    return Lexicon(pieces, tuple(facts), str(said.get("model", "")))


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise LexiconError(f"{name}: a list is wanted")
    return value


def _ids(value: Any) -> Ids:
    if (
        not isinstance(value, list)
        or not value
        or not all(type(i) is int and 0 <= i <= _HIGHEST for i in value)
    ):
        raise LexiconError("a piece is a list of token ids, none empty")
    return tuple(value)
