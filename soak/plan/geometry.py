"""The server's geometry, as the plan needs it: the lengths at which serving code changes its path.

Read once at the start of a run (or taken from the defaults, without a server) and never again: a plan that
followed the server would not replay.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from soak.plan.lexicon import Fact, Ids


@dataclass(frozen=True, slots=True)
class Geometry:
    """Lengths in tokens. None means the server has no such thing, or does not say.

    ``state_grid`` is the distance between places where a hybrid model's recurrent state is kept when
    prefill writes it; ``track_interval`` the same for states written by decode. ``reserved_ids``: ids below
    it are left out of random prompts (special tokens live there). ``adapters``: names of the LoRA adapters it
    has loaded; ``grammar``: whether it can be made to answer by a JSON schema; ``host_tier``: whether
    prefixes come back from host memory, None if it does not say. ``pieces``, ``facts``: of a lexicon, where
    documents are made of text instead of random ids.
    """

    vocab_size: int = 1000
    context_len: int = 4096
    chunk: int = 512
    page: int = 1
    state_grid: int | None = None
    track_interval: int | None = None
    window: int | None = None
    max_total_tokens: int | None = None
    max_running: int | None = None
    hybrid: bool = False
    strategy: str | None = None
    reserved_ids: int = 10
    adapters: tuple[str, ...] = ()
    grammar: bool = False
    host_tier: bool | None = None
    pieces: tuple[Ids, ...] = ()
    facts: tuple[Fact, ...] = ()

    def boundaries(self) -> tuple[int, ...]:
        """The lengths whose multiples matter, smallest first, without 1 and without repeats."""
        return _boundaries(self.chunk, self.page, self.state_grid, self.track_interval, self.window)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what few servers have only where there is one."""
        values = asdict(self) | {"adapters": list(self.adapters)}
        values["pieces"] = [list(piece) for piece in self.pieces]
        values["facts"] = [[list(part) for part in fact] for fact in self.facts]
        rare = {"adapters": [], "grammar": False, "host_tier": None, "pieces": [], "facts": []}
        return {name: value for name, value in values.items() if name not in rare or value != rare[name]}


@lru_cache(maxsize=64)
def _boundaries(*named: int | None) -> tuple[int, ...]:
    return tuple(sorted({n for n in named if n is not None and n > 1}))
