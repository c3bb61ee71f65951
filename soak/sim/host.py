"""The host tier: write-through copies of tree nodes, and loading them back, layer by layer.

Copies go through numbered host slots in their own arrays. A load-back fills device slots one layer after the
other while the forward pass already runs; the pass must wait for a layer before it reads it. Which nodes are
worth keeping is the tree's business, not this module's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soak.sim.config import SimConfig
from soak.sim.numerics import I64
from soak.sim.pools import FreeList, StatePool, TokenPool
from soak.sim.radix import Freed, Node, RadixTree, there


@dataclass(slots=True, eq=False)
class Transfer:
    """Host to device, one layer of one node: still to be done. ``tokens`` are what the link has yet to carry.

    slots are the device slots as they were when the transfer was queued: it writes there whoever owns them by
    then.
    """

    node: Node
    layer: int
    host_slots: I64
    slots: I64
    tokens: int
    last: bool


class HostTier:
    """Host memory for ``config.host_tokens`` tokens and as many states as the device has."""

    def __init__(self, config: SimConfig, device: TokenPool, states: StatePool, tree: RadixTree) -> None:
        self._bandwidth = config.host_bandwidth
        # SGLang #22811: one reader does not wait for its layer. SGLang #35049: an abort lets go of slots that
        # a transfer still writes to, since the transfer itself holds nothing.
        self._last_layer_waits = "host-tier-race" not in config.faults
        self._transfers_hold = "abort-slot-reuse" not in config.faults
        self._device = device
        self._device_states = states
        self._tree = tree
        layers, _, width = device.keys.shape
        self.pool = TokenPool(layers, config.host_tokens, device.page_size, width)
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

    def start_load(self, node: Node) -> None:
        """Queue the keys and values of every layer of ``node``, whose device slots are there but empty.

        The transfer holds the node until the last layer has arrived, whatever becomes of who asked for it.
        """
        layers, slots = len(self.pool.keys), there(node.slots)
        for layer in range(layers):
            host = there(node.host_slots)
            self._pending.append(Transfer(node, layer, host, slots, len(slots), layer == layers - 1))
        if self._transfers_hold:
            self._tree.lock(node, state=False)
        self.loaded_tokens += len(slots)

    def progress(self, steps: int = 1) -> None:
        """The link carries another ``host_bandwidth`` layer-tokens per step, in the order they were asked
        for.
        """
        tokens = self._bandwidth * steps
        self._pending.sort(key=lambda t: t.layer)
        while self._pending and tokens > 0:
            head = self._pending[0]
            carried = min(tokens, head.tokens)
            head.tokens -= carried
            tokens -= carried
            if head.tokens == 0:
                self._land(head)

    def wait(self, needed: I64, layer: int) -> None:
        """Before a forward pass reads ``layer``: block until that layer of the ``needed`` slots has arrived.

        Time passes all the same: the link carries what it can.
        """
        self.progress()
        if layer == len(self.pool.keys) - 1 and not self._last_layer_waits:
            return
        for transfer in [t for t in self._pending if t.layer == layer]:
            if np.isin(transfer.slots, needed).any():
                self._land(transfer)

    def _land(self, transfer: Transfer) -> None:
        layer, slots, host = transfer.layer, transfer.slots, transfer.host_slots
        self._device.keys[layer, slots] = self.pool.keys[layer, host]
        self._device.values[layer, slots] = self.pool.values[layer, host]
        self._pending.remove(transfer)
        if transfer.last and self._transfers_hold:
            self._tree.unlock(transfer.node, False)

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
