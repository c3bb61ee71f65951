"""What a shape is given: the spec, the index and keyed draws. Lengths stay inside the context limit."""

from __future__ import annotations

from dataclasses import dataclass

from soak.plan.item import Item, Prompt, Segment
from soak.plan.lengths import shared
from soak.plan.spec import ResolvedSpec
from soak.plan.words import Draw


@dataclass(frozen=True, slots=True)
class Scene:
    """One index of the plan, before its shape has filled it."""

    seed: int
    spec: ResolvedSpec
    index: int
    at_us: int

    def draw(self, purpose: str) -> Draw:
        """A stream of draws of this index alone."""
        return Draw(self.seed, purpose, self.index)

    def shared_draw(self, purpose: str, key: int) -> Draw:
        """A stream of draws of a document that several indices share."""
        return Draw(self.seed, purpose, key)

    def shared_length(self, purpose: str, key: int, low: int, high: int) -> int:
        """The length of a document that several indices share, in [low, high], around the geometry's."""
        return shared(self.seed, purpose, key, self.spec.geometry.boundaries(), low, high)

    @property
    def room(self) -> int:
        """The longest prompt + output allowed; one token is kept back for the probe's own."""
        return min(self.spec.max_context, self.spec.geometry.context_len - 1)

    def own(self, length: int, part: int = 0) -> Segment:
        """Tokens that no other index has; ``part`` keeps several prompts of one index apart."""
        return Segment(f"own-{part}", self.index, 0, length)

    def output(self, draw: Draw, most: int | None = None) -> int:
        """A short answer's length."""
        return draw.between(4, max(4, min(self.spec.max_new_tokens, most or self.spec.max_new_tokens)))

    def temperature_milli(self, draw: Draw) -> int:
        """Greedy for most, temperature 1 for the spec's share."""
        return 1000 if draw.chance(self.spec.sampled_per_mille) else 0

    def served(self, draw: Draw) -> bool:
        """Whether this item asks for logprobs (it can change the server's path, so few do)."""
        return draw.chance(self.spec.served_per_mille)

    def single(self, shape: str, draw: Draw, prompt: Prompt, output: int) -> Item:
        """One prompt by itself: mostly greedy and streamed, a small share with logprobs."""
        return Item(
            index=self.index,
            step=0,
            shape=shape,
            at_us=self.at_us,
            prompts=(prompt,),
            max_new_tokens=output,
            temperature_milli=self.temperature_milli(draw),
            stream=draw.chance(800),
            return_logprob=self.served(draw),
        )
