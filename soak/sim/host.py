"""The host tier: write-through copies of tree nodes, and loading them back, layer by layer.

Copies go through numbered host slots in their own arrays. A load-back fills device slots one layer after the
other while the forward pass already runs; the pass must wait for a layer before it reads it. Which nodes are
worth keeping is the tree's business, not this module's.
"""

from __future__ import annotations

from dataclasses import dataclass

from soak.sim.numerics import I64
from soak.sim.pools import FreeList, StatePool, TokenPool
from soak.sim.radix import Freed, Node, RadixTree, there


@dataclass(slots=True)
class Transfer:
    """Host to device, of one layer: still to be done. ``tokens`` are what the link has yet to carry."""

    layer: int
    host_slots: I64
    slots: I64
    tokens: int


class HostTier:
    """Host memory for ``tokens`` tokens and as many states as the device has."""

    def __init__(self, tokens: int, device: TokenPool, states: StatePool, tree: RadixTree) -> None:
        self._device = device
        self._device_states = states
        self._tree = tree
        layers, _, width = device.keys.shape
        self.pool = TokenPool(layers, tokens, device.page_size, width)
        self.states = StatePool(
            len(states.ssm) - 1, states.short.shape[2], states.conv.shape[2], states.ssm.shape[1]
        )
        self._pending: list[Transfer] = []
        self.loaded_tokens = 0

    def write_through(self, node: Node | None) -> None:
        """Back up every node on the way to ``node`` that has no copy yet, parents first.

        Stop when the host is full.
        """
        path: list[Node] = []
        while node is not None and node.parent is not None:
            path.append(node)
            node = node.parent
        for step in reversed(path):
            if step.host_slots is None:
                slots = there(step.slots)
                host = self._take(len(slots))
                if host is None:
                    return
                self.pool.keys[:, host] = self._device.keys[:, slots]
                self.pool.values[:, host] = self._device.values[:, slots]
                step.host_slots = host
            if step.state is not None and step.host_state is None:
                self._back_up_state(step)

    def _back_up_state(self, node: Node) -> None:
        state = there(node.state)
        if not len(self.states.free):
            self.give(self._tree.evict_host(0, 1))
        if not len(self.states.free):
            return
        (slot,) = self.states.free.take(1)
        self.states.short[slot] = self._device_states.short[state]
        self.states.conv[slot] = self._device_states.conv[state]
        self.states.ssm[slot] = self._device_states.ssm[state]
        node.host_state = slot

    def _take(self, tokens: int) -> I64 | None:
        if tokens > self.pool.free_tokens:
            self.give(self._tree.evict_host(tokens - self.pool.free_tokens, 0))
        if tokens > self.pool.free_tokens:
            return None
        return self.pool.take_pages(tokens // self.pool.page_size)

    def give(self, freed: Freed) -> None:
        """Take back host slots and states that the tree let go of."""
        for slots in freed.host_slots:
            self.pool.give(slots)
        self.states.free.give(freed.host_states)

    def load_state(self, host_state: int, slot: int) -> None:
        """Copy a state to the device; done at once, before the forward pass."""
        self._device_states.short[slot] = self.states.short[host_state]
        self._device_states.conv[slot] = self.states.conv[host_state]
        self._device_states.ssm[slot] = self.states.ssm[host_state]

    def start_load(self, host_slots: I64, slots: I64) -> None:
        """Queue the keys and values of every layer, first layer first."""
        for layer in range(len(self.pool.keys)):
            self._pending.append(Transfer(layer, host_slots, slots, len(slots)))
        self.loaded_tokens += len(slots)

    def progress(self, tokens: int) -> None:
        """The link carries ``tokens`` more layer-tokens, in order; what is complete reaches the device."""
        self._pending.sort(key=lambda t: t.layer)
        while self._pending and tokens > 0:
            head = self._pending[0]
            carried = min(tokens, head.tokens)
            head.tokens -= carried
            tokens -= carried
            if head.tokens == 0:
                self._land(self._pending.pop(0))

    def wait(self, layer: int) -> None:
        """Block until everything queued for ``layer`` has reached the device."""
        for transfer in [t for t in self._pending if t.layer == layer]:
            self._land(transfer)
            self._pending.remove(transfer)

    def finish(self) -> None:
        """Let every queued transfer arrive."""
        for transfer in self._pending:
            self._land(transfer)
        self._pending.clear()

    def _land(self, transfer: Transfer) -> None:
        self._device.keys[transfer.layer, transfer.slots] = self.pool.keys[
            transfer.layer, transfer.host_slots
        ]
        self._device.values[transfer.layer, transfer.slots] = self.pool.values[
            transfer.layer, transfer.host_slots
        ]

    @property
    def used_tokens(self) -> int:
        """Tokens held by the host tier."""
        return self.pool.size - self.pool.free_tokens

    @property
    def idle(self) -> bool:
        """Nothing under way."""
        return not self._pending

    def clear(self) -> None:
        """Forget everything (flush)."""
        self._pending.clear()
        self.pool.pages = FreeList(self.pool.pages.size)
        self.states.free = FreeList(self.states.free.size)
