"""A tiny text side: token ids to text and back. Every byte has a token; made-up words have their own.

Not a real tokenizer, but like one where it matters: what is decoded and encoded again may be other ids, and
every text can be encoded. Pure.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

FIRST_BYTE = 3  # below: padding, begin, end
FIRST_WORD = FIRST_BYTE + 256
_ONSETS, _VOWELS = "bdfgklmnprstvz", "aeiou"


class Tokenizer:
    """The tokens of a vocabulary of that size, at least FIRST_WORD."""

    def __init__(self, vocab: int) -> None:
        if vocab < FIRST_WORD:
            raise ValueError(f"vocab must be at least {FIRST_WORD} for text, not {vocab}")
        syllables = [a + b for a, b in itertools.product(_ONSETS, _VOWELS)]
        pairs = (f" {a}{b}" for a, b in itertools.product(syllables, syllables))
        words = list(itertools.islice(pairs, vocab - FIRST_WORD))
        words += [f" w{n}" for n in range(vocab - FIRST_WORD - len(words))]
        self._words = [word.encode() for word in words]
        self._ids = {word: FIRST_WORD + n for n, word in enumerate(self._words)}
        self._longest = max((len(word) for word in self._words), default=0)

    def encode(self, text: str) -> list[int]:
        """The ids of a text: the longest word that fits, else its next byte."""
        data, ids, at = text.encode(), [], 0
        while at < len(data):
            for length in range(min(self._longest, len(data) - at), 1, -1):
                found = self._ids.get(data[at : at + length])
                if found is not None:
                    ids.append(found)
                    at += length
                    break
            else:
                ids.append(FIRST_BYTE + data[at])
                at += 1
        return ids

    def decode(self, ids: list[int]) -> str:
        """Their text; the ids of padding, begin and end are none of it, bytes that are no text are marked."""
        parts = (
            self._words[i - FIRST_WORD] if i >= FIRST_WORD else bytes([i - FIRST_BYTE])
            for i in ids
            if i >= FIRST_BYTE
        )
        return b"".join(parts).decode(errors="replace")


@lru_cache(maxsize=4)
def tokenizer(vocab: int) -> Tokenizer:
    """The tokenizer of that vocabulary, made once."""
    return Tokenizer(vocab)
