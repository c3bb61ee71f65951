"""The section ``load``: what the plan sends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from soak.config.values import MANY, Section, Share
from soak.plan.shapes import SHAPES
from soak.plan.spec import DEFAULT_WEIGHTS

ROOM = 3  # a shape's prompt has several parts of min_prompt or so: from here on they fit together
_OF_PLANTED = frozenset({"shapes", "max_context", "min_prompt", "decode_tokens", "text"})
SMALLEST = 96  # tokens; in less, the shapes cannot be told apart


class AdaptiveLoad(Section):
    """Load that goes where coverage is thin or evidence grows, by decisions that are kept and replay."""

    every: Annotated[int, Field(ge=1, le=10_000)] = 24
    """Plan indices from one decision to the next."""
    together: Annotated[int, Field(ge=1, le=4096)] = 16
    """Most indices that start at once. Never more than budget.in_flight has room for."""
    recorded: tuple[dict[str, Any], ...] | None = None
    """Decisions to go by, instead of taking any: `soak replay --seed` reads them from the run's journal."""


class Load(Section):
    """The plan's load. Lengths in tokens.

    ``load: none``, or no shapes: users' traffic is the load, and the run only plants its own prefixes, of up
    to max_context tokens, as often as its budget allows.
    """

    arrivals: Literal["poisson", "constant", "burst", "ramp"] = "poisson"
    """Times between indices. burst: as many at once as ``burst`` says; ramp: from nothing to twice the rate,
    again and again.
    """
    rate: Annotated[float, Field(ge=1e-6, le=10_000)] = 1.0
    """Plan indices a second. A burst, or a conversation, is one index."""
    shapes: dict[str, Annotated[int, Field(ge=0, le=1000)]] = Field(
        default_factory=lambda: dict(DEFAULT_WEIGHTS)
    )
    """Weights of the shapes, by name. No shapes, or ``load: none``: users' traffic is the load."""
    max_context: Annotated[int, Field(ge=SMALLEST, le=MANY)] | None = None
    """Longest prompt and output together, in tokens. null: what the server takes."""
    min_prompt: Annotated[int, Field(ge=8, le=65536)] = 64
    """Shortest part that a prompt is made of, in tokens."""
    max_new_tokens: Annotated[int, Field(ge=4, le=65536)] = 32
    """Longest output of ordinary requests, in tokens."""
    decode_tokens: Annotated[int, Field(ge=4, le=65536)] = 320
    """Longest output of requests that are to write states by decode, in tokens."""
    burst: Annotated[int, Field(ge=2, le=256)] = 6
    """Prompts of one burst."""
    roots: Annotated[int, Field(ge=1, le=4096)] = 16
    """Documents that shared-prefix keeps popular at a time."""
    zipf_churn: Annotated[int, Field(ge=1, le=MANY)] = 64
    """Indices after which a new document becomes the most popular one."""
    sampled_share: Share = 0.3
    """Share of requests at temperature 1; the others are greedy."""
    served_share: Share = 0.05
    """Share of requests that ask for logprobs while they generate, for the served pass."""
    tenants: Annotated[int, Field(ge=2, le=64)] = 3
    """Namespaces of tenant-ping-pong."""
    tenant_keys: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    """Their ``extra_key`` values, where given ones matter (the name of a LoRA adapter, say)."""
    pressure: Annotated[int, Field(ge=2, le=4096)] = 32
    """Most prompts at once of the shapes that fill the pool."""
    adaptive: AdaptiveLoad | None = None
    """true, or how: the run varies by itself how much starts at once, how wide bursts and how long prompts
    are, and the weights, within what is configured. rate stays.
    """
    text: Path | None = None
    """A file that ``soak text`` wrote: prompts are made of its text instead of random ids."""

    @property
    def none(self) -> bool:
        """Whether this run sends no load of its own."""
        return not self.shapes

    @field_validator("adaptive", mode="before")
    @classmethod
    def _adaptive_or_not(cls, value: Any) -> Any:
        return {} if value is True else None if value is False else value

    @model_validator(mode="after")
    def _shapes_exist(self) -> Load:
        for name in self.shapes:
            if name not in SHAPES:
                raise ValueError(f"shapes.{name}: no such shape; there are {', '.join(SHAPES)}")
        if self.none:
            for name in self.model_fields_set - _OF_PLANTED:
                raise ValueError(
                    f"{name}: there are no shapes, so that nothing goes by it; what is planted goes by "
                    f"{', '.join(sorted(_OF_PLANTED - {'shapes'}))} and the budget"
                )
        elif not any(self.shapes.values()):
            raise ValueError("shapes: at least one weight must be above 0")
        if self.tenant_keys and len(set(self.tenant_keys)) != self.tenants:
            raise ValueError(
                f"tenant_keys: {len(set(self.tenant_keys))} different keys for {self.tenants} tenants; "
                "give each tenant one"
            )
        if self.max_context is not None and self.max_context < ROOM * self.min_prompt:
            raise ValueError(
                f"max_context {self.max_context} must be at least {ROOM} times min_prompt {self.min_prompt}"
            )
        return self
