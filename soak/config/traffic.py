"""The section ``load``: what the plan sends."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from soak.config.values import MANY, Section, Share
from soak.plan.shapes import SHAPES
from soak.plan.spec import DEFAULT_WEIGHTS

ROOM = 3  # a shape's prompt has several parts of min_prompt or so: from here on they fit together
_OF_PLANTED = frozenset({"shapes", "max_context", "min_prompt", "decode_tokens"})
SMALLEST = 96  # tokens; in less, the shapes cannot be told apart


class Load(Section):
    """The plan's load. Lengths in tokens; rate in plan indices per second (a burst is one index).

    arrivals: poisson, constant; burst: as many indices at once as ``burst`` says; ramp: from nothing to twice
    the rate, again and again.
    ``load: none``, or no shapes: users' traffic is the load, and the run only plants its own prefixes, of up
    to max_context tokens, as often as its budget allows.

    tenants: namespaces of tenant-ping-pong; tenant_keys: their ``extra_key`` values, where given ones matter
    (the name of a LoRA adapter, say); pressure: most prompts at once of the shapes that fill the pool.
    """

    arrivals: Literal["poisson", "constant", "burst", "ramp"] = "poisson"
    rate: Annotated[float, Field(ge=1e-6, le=10_000)] = 1.0
    shapes: dict[str, Annotated[int, Field(ge=0, le=1000)]] = Field(
        default_factory=lambda: dict(DEFAULT_WEIGHTS)
    )
    max_context: Annotated[int, Field(ge=SMALLEST, le=MANY)] | None = None
    min_prompt: Annotated[int, Field(ge=8, le=65536)] = 64
    max_new_tokens: Annotated[int, Field(ge=4, le=65536)] = 32
    decode_tokens: Annotated[int, Field(ge=4, le=65536)] = 320
    burst: Annotated[int, Field(ge=2, le=256)] = 6
    roots: Annotated[int, Field(ge=1, le=4096)] = 16
    zipf_churn: Annotated[int, Field(ge=1, le=MANY)] = 64
    sampled_share: Share = 0.3
    served_share: Share = 0.05
    tenants: Annotated[int, Field(ge=2, le=64)] = 3
    tenant_keys: tuple[Annotated[str, Field(min_length=1, max_length=256)], ...] = ()
    pressure: Annotated[int, Field(ge=2, le=4096)] = 32

    @property
    def none(self) -> bool:
        """Whether this run sends no load of its own."""
        return not self.shapes

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
