"""Recipes: the ids that a pass of the oracle sent, as pieces of what is known already.

A probe sends its victim's ids again and again with a tail after them. Written out, passes would take more
room than all the load. A piece is a slice of the victim's prompt and output, of a planned segment, of what an
earlier pass of the same probe sent or got back, or else the ids themselves. What the pieces give is the ids
that were sent, exactly: a piece is only made where the ids agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from soak.sglang.exchange import TokenIds

# A source and which of them: ("victim", 0), ("tail", 0), ("sent", 3), ("got", 0), the last two by pass
Source = tuple[str, int]
Piece = list[str | int]
_SHORTEST = 8  # ids; shorter agreements are chance, and cheaper written out


@dataclass(frozen=True, slots=True)
class Recipe:
    """pieces: [name, number, start, length] each, or ["ids", length] for ids out of ``literal``."""

    pieces: tuple[Piece, ...]
    literal: TokenIds


def describe(ids: TokenIds, sources: Mapping[Source, TokenIds]) -> Recipe:
    """The ids as pieces of the sources: the longest agreement first, what agrees with nothing written out."""
    pieces: list[Piece] = []
    at = 0
    while at < len(ids):
        source, start, length = _longest(ids[at:], sources)
        if length < min(_SHORTEST, len(ids) - at):
            break  # where one piece ends the next begins: nothing found here means nothing until the end
        pieces.append([*source, start, length])
        at += length
    if at < len(ids):
        pieces.append(["ids", len(ids) - at])
    return Recipe(tuple(pieces), ids[at:])


def _longest(rest: TokenIds, sources: Mapping[Source, TokenIds]) -> tuple[Source, int, int]:
    """(source, start, length) of the longest agreement from the source's begin, or with all of its end."""
    best: tuple[Source, int, int] = (("", 0), 0, 0)
    for source, held in sources.items():
        length = agreement(rest, held)
        if length > best[2]:
            best = (source, 0, length)
        tail = len(held) - len(rest)
        if tail > 0 and len(rest) > best[2] and np.array_equal(held[tail:], rest):
            best = (source, tail, len(rest))
    return best


def agreement(one: TokenIds, other: TokenIds) -> int:
    """How many leading ids are the same."""
    n = min(len(one), len(other))
    differ = one[:n] != other[:n]
    place = int(differ.argmax()) if n else 0
    return place if n and differ[place] else n


def rebuild(pieces: Sequence[Piece], literal: TokenIds, source: Callable[[Source], TokenIds]) -> TokenIds:
    """The ids again; ``source`` gives a source's ids by its name. Raises ValueError if one is too short."""
    parts = [np.empty(0, np.int32)]
    at = 0
    for piece in pieces:
        if piece[0] == "ids":
            length = int(piece[1])
            part = literal[at : at + length]
            at += length
        else:
            start, length = int(piece[2]), int(piece[3])
            part = source((str(piece[0]), int(piece[1])))[start : start + length]
        if len(part) != length:
            raise ValueError(f"piece {piece} of a recipe: only {len(part)} ids are there")
        parts.append(part)
    return np.concatenate(parts).astype(np.int32)
