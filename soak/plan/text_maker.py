"""A built-in text: sentences of no meaning but good grammar, and facts with a number each. Pure and frozen.

The same seed makes the same text for ever, on every machine: thresholds of recall must not move with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from soak.plan.words import Draw

_ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "r", "s", "t", "v")
_NUCLEI = ("a", "e", "i", "o", "u")
_THINGS = ("harbour", "archive", "bridge", "library", "station", "garden", "tower", "market")
_PEOPLE = (
    "The clerk",
    "A traveller",
    "The gardener",
    "An old pilot",
    "The baker",
    "A neighbour",
    "The warden",
)
_DOES = ("counted", "remembered", "painted", "described", "repaired", "visited", "measured", "forgot")
_WHAT = ("the wooden boats", "a row of lamps", "the northern road", "seven letters", "the quiet square")
_WHEN = ("before the rain", "in late autumn", "on a Tuesday", "after the concert", "when the ferry had left")
SENTENCES, FACTS = 160, 24


@dataclass(frozen=True, slots=True)
class MadeText:
    """sentences; facts: each a sentence, the question, and the answer that follows the question."""

    sentences: tuple[str, ...]
    facts: tuple[tuple[str, str, str], ...]


def made_text(seed: int = 1) -> MadeText:
    """The text of a seed."""
    sentences = []
    for number in range(SENTENCES):
        draw = Draw(seed, "text-sentence", number)
        who, does, what, when = (draw.choice(words) for words in (_PEOPLE, _DOES, _WHAT, _WHEN))
        sentences.append(f" {who} {does} {what} of {_name(draw)} {when}.")
    facts = []
    for number in range(FACTS):
        draw = Draw(seed, "text-fact", number)
        told = f"{_THINGS[number % len(_THINGS)]} code of {_name(draw)}"
        answer = f" {draw.between(10_000, 99_999)}"
        facts.append(
            (
                f" The {told} is{answer}.",
                f" Question: what is the {told}? Answer: the {told} is",
                answer,
            )
        )
    return MadeText(tuple(sentences), tuple(facts))


def _name(draw: Draw) -> str:
    syllables = (draw.choice(_ONSETS) + draw.choice(_NUCLEI) for _ in range(draw.between(2, 3)))
    return "".join(syllables).capitalize()
