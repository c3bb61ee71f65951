"""What the simulator is told before it starts: model, numerics, pools, graphs, tiers and planted faults.

Pure data with checks. Nothing here starts anything, and nothing here depends on the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from soak.runners.faults import check_names
from soak.sim.text import tokenizer

ModelKind = Literal["hybrid", "attention"]
Numerics = Literal["exact", "production"]
RadixStrategy = Literal["no_buffer", "extra_buffer"]


@dataclass(frozen=True, slots=True)
class SimConfig:
    """Geometry and switches of one simulated server. Token counts are tokens, slots are pool entries.

    ``seed`` draws weights and noise; ``noise_seed`` the noise alone, for several servers of one model.

    Raises ``ValueError`` when two settings contradict each other; the message names both.
    """

    model: ModelKind = "hybrid"
    numerics: Numerics = "production"
    vocab: int = 1000
    context_len: int = 4096
    page_size: int = 1
    chunked_prefill_size: int = 256
    max_running_requests: int = 16
    max_total_tokens: int = 32768
    max_mamba_slots: int = 192
    radix_strategy: RadixStrategy = "no_buffer"
    mamba_track_interval: int = 128
    state_chunk: int = 64
    window: int = 64
    prefill_graph: bool = True
    prefill_graph_rows: int | None = None
    prefill_graph_buckets: tuple[int, ...] = (64, 128, 256, 512)
    decode_graph: bool = True
    decode_graph_batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    host_tokens: int = 0
    host_bandwidth: int = 512
    seed: int = 0
    noise_seed: int | None = None
    faults: tuple[str, ...] = ()
    api_key: str | None = None
    enable_metrics: bool = True
    overlap: bool = False
    mixed_chunk: bool = False
    disable_radix_cache: bool = False
    retraction_backup: bool = False
    spec_draft_tokens: int = 0
    lora_adapters: tuple[str, ...] = ()
    tokenizer: bool = False
    step_delay_s: float = 0.0
    model_path: str = "soak/sim"

    def __post_init__(self) -> None:
        """Refuse geometry that SGLang would refuse, and geometry this model cannot hold."""
        check_names(self.faults)
        self._check_options()
        for name in ("vocab", "context_len", "page_size", "max_running_requests"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.vocab < 16:
            raise ValueError(f"vocab must be at least 16, not {self.vocab}")
        if self.context_len > 16384:
            raise ValueError(
                f"context_len must be at most 16384 (the exact arithmetic), not {self.context_len}"
            )
        if self.chunked_prefill_size != -1 and self.chunked_prefill_size < 1:
            raise ValueError(
                f"chunked_prefill_size must be -1 (off) or at least 1, not {self.chunked_prefill_size}"
            )
        if self.chunked_prefill_size != -1 and self.chunked_prefill_size % self.page_size:
            raise ValueError(
                f"chunked_prefill_size {self.chunked_prefill_size} must be a multiple of page_size "
                f"{self.page_size}"
            )
        if self.max_total_tokens < self.page_size * 2:
            raise ValueError(
                f"max_total_tokens {self.max_total_tokens} holds no two pages of {self.page_size}"
            )
        if self.hybrid and self.radix_strategy == "no_buffer":
            if self.page_size != 1:
                raise ValueError("radix strategy no_buffer needs page_size 1; use extra_buffer")
            if self.overlap:
                raise ValueError("radix strategy no_buffer cannot overlap; use extra_buffer or overlap off")
        if self.hybrid and self.mamba_track_interval % self.page_size:
            raise ValueError(
                f"mamba_track_interval {self.mamba_track_interval} must be a multiple of page_size "
                f"{self.page_size}"
            )
        # each request holds its slots, locks one stored state, and may need one more to leave a state behind
        needed = (self.slots_per_request + 1) * self.max_running_requests + 2
        if self.hybrid and self.max_mamba_slots < needed:
            raise ValueError(
                f"max_mamba_slots {self.max_mamba_slots} is too few for max_running_requests "
                f"{self.max_running_requests}: at least {needed}"
            )

    def _check_options(self) -> None:
        """Options that exclude each other, in SGLang or here; a vocabulary too small for text."""
        if self.tokenizer:
            tokenizer(self.vocab)
        for option in ("retraction_backup", "mixed_chunk", "spec_draft_tokens"):
            if self.overlap and getattr(self, option):
                raise ValueError(f"{option} cannot be combined with overlap here; turn overlap off")
        if self.mixed_chunk and self.spec_draft_tokens:
            raise ValueError("mixed_chunk cannot be combined with spec_draft_tokens, in SGLang neither")
        if not 0 <= self.spec_draft_tokens <= 16:
            raise ValueError(f"spec_draft_tokens must be 0 (off) to 16, not {self.spec_draft_tokens}")

    @property
    def prefill_budget(self) -> int:
        """Tokens of one prefill batch; without chunked prefill, SGLang's max_prefill_tokens."""
        return 16384 if self.chunked_prefill_size == -1 else self.chunked_prefill_size

    @property
    def graph_rows(self) -> int:
        """Request rows of a prefill graph.

        Resolved from the chunk as SGLang does (there: chunk // 512, at least 1).

        The simulator's chunks are an eighth of the real ones, and so is the divisor.
        """
        rows = self.prefill_graph_rows
        if rows is None:
            rows = max(self.chunked_prefill_size // 64, 1)
        return min(rows, self.max_running_requests)

    @property
    def hybrid(self) -> bool:
        """Whether the model carries recurrent state."""
        return self.model == "hybrid"

    @property
    def extra_buffer(self) -> bool:
        """Whether states are tracked into ping-pong slots (``extra_buffer``) rather than copied."""
        return self.hybrid and self.radix_strategy == "extra_buffer"

    @property
    def slots_per_request(self) -> int:
        """State slots a running request holds.

        Its working slot, and two ping-pong slots with extra_buffer.
        """
        return 3 if self.extra_buffer else 1

    @property
    def checkpoint_grid(self) -> int:
        """Prefill checkpoints with extra_buffer land on multiples of this past the resume point."""
        return max(self.state_chunk, self.page_size)
