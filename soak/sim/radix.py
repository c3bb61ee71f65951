"""The radix tree: which token slots, and which recurrent states, hold which prefix of which namespace.

Pure bookkeeping over slot numbers; it never touches keys, values or states. A hybrid can resume only where a
state is stored, so a match ends at the deepest node that has one; splitting a node leaves the state with the
lower half. The tree frees nothing by itself: what it lets go is handed to the caller.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from soak.sim.numerics import I64

Namespace = Hashable
T = TypeVar("T")


def there(value: T | None) -> T:
    """``value``, which the tree's invariants say is there. Raises LookupError if they do not hold."""
    if value is None:
        raise LookupError("the radix tree has lost a slot, a state or a parent that must be there")
    return value


class Node:
    """A run of tokens below its parent.

    ``slots`` is None while only the host tier has it; ``state`` a state slot.
    """

    __slots__ = (
        "access",
        "children",
        "host_slots",
        "host_state",
        "ids",
        "locks",
        "namespace",
        "parent",
        "slots",
        "state",
        "state_access",
        "state_locks",
    )

    def __init__(self, parent: Node | None, namespace: Namespace, ids: I64, slots: I64 | None) -> None:
        self.parent = parent
        self.namespace = namespace
        self.ids = ids
        self.slots = slots
        self.children: dict[tuple[Namespace, bytes], Node] = {}
        self.locks = 0
        self.state: int | None = None
        self.state_locks = 0
        self.host_slots: I64 | None = None
        self.host_state: int | None = None
        self.access = 0
        self.state_access = 0

    @property
    def device_leaf(self) -> bool:
        """On the device, with nothing below it on the device."""
        return self.slots is not None and all(child.slots is None for child in self.children.values())


@dataclass(frozen=True, slots=True)
class Match:
    """What the tree holds of a prompt.

    path: nodes from the root to the resume point, device part first; length: tokens on the path; device_len:
    of those, on the device; kv_len: tokens whose KV is there at all, with or without a state to resume from.
    """

    path: tuple[Node, ...]
    length: int
    device_len: int
    kv_len: int

    @property
    def node(self) -> Node | None:
        """Where the request resumes; None at the root."""
        return self.path[-1] if self.path else None


@dataclass(slots=True)
class Inserted:
    """What an insert did.

    duplicates: (position, slots) of ours that the tree already had under other slots.
    """

    node: Node
    state_taken: bool
    duplicates: list[tuple[int, I64]] = field(default_factory=list)
    new_nodes: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Freed:
    """What eviction let go of."""

    slots: list[I64] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    host_slots: list[I64] = field(default_factory=list)
    host_states: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Device tokens freed."""
        return sum(len(s) for s in self.slots)


class RadixTree:
    """A token tree with namespaces. ``needs_state``: the model is a hybrid."""

    def __init__(self, page_size: int, needs_state: bool) -> None:
        self.page_size = page_size
        self.needs_state = needs_state
        self._clock = 0
        self.root = Node(None, None, np.empty(0, np.int64), np.empty(0, np.int64))

    def _key(self, namespace: Namespace, ids: I64) -> tuple[Namespace, bytes]:
        return namespace, ids[: self.page_size].tobytes()

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def aligned(self, length: int) -> int:
        """``length`` cut to whole pages."""
        return length // self.page_size * self.page_size

    def match(self, namespace: Namespace, ids: I64, limit: int, touch: bool = True) -> Match:
        """The longest usable prefix of ``ids[:limit]``.

        Splits a node that is matched in part, as SGLang does.
        """
        limit = self.aligned(min(limit, len(ids)))
        node, depth = self.root, 0
        walked: list[Node] = []
        best = 0
        while depth < limit:
            child = node.children.get(self._key(namespace, ids[depth:limit]))
            if child is None:
                break
            same = self._common(child.ids, ids[depth:limit])
            if same < len(child.ids):
                child = self._split(child, same)
            walked.append(child)
            depth += same
            node = child
            if self._usable(child):
                best = len(walked)
            if same < len(child.ids):
                break
        kv_len = depth
        path = tuple(walked[:best])
        if touch:
            now = self._tick()
            for step in walked:
                step.access = now
            if path:
                path[-1].state_access = now
        length = sum(len(n.ids) for n in path)
        device_len = sum(len(n.ids) for n in path if n.slots is not None)
        return Match(path, length, device_len, kv_len)

    def _usable(self, node: Node) -> bool:
        return not self.needs_state or node.state is not None or node.host_state is not None

    def _common(self, a: I64, b: I64) -> int:
        n = min(len(a), len(b))
        differ = np.flatnonzero(a[:n] != b[:n])
        return self.aligned(int(differ[0]) if len(differ) else n)

    def _split(self, child: Node, at: int) -> Node:
        """Cut ``child`` after ``at`` tokens; the new upper node has no state. Returns the upper node."""
        upper = Node(there(child.parent), child.namespace, child.ids[:at], None)
        upper.access, upper.locks = child.access, child.locks
        if child.slots is not None:
            upper.slots, child.slots = child.slots[:at], child.slots[at:]
        if child.host_slots is not None:
            upper.host_slots, child.host_slots = child.host_slots[:at], child.host_slots[at:]
        there(child.parent).children[self._key(child.namespace, child.ids)] = upper
        child.ids = child.ids[at:]
        child.parent = upper
        upper.children[self._key(child.namespace, child.ids)] = child
        return upper

    def insert(
        self, namespace: Namespace, ids: I64, slots: I64, state: int | None, protected: int
    ) -> Inserted:
        """Put ``ids`` (whole pages) under ``slots``, with ``state`` at their end.

        Slots before ``protected`` are the tree's own already. A state that the end already has is kept, and
        ``state_taken`` is False.
        """
        node, depth = self.root, 0
        now = self._tick()
        done = Inserted(node, False)
        while depth < len(ids):
            child = node.children.get(self._key(namespace, ids[depth:]))
            if child is None:
                child = Node(node, namespace, ids[depth:].copy(), slots[depth:].copy())
                node.children[self._key(namespace, child.ids)] = child
                done.new_nodes.append(child)
                same = len(child.ids)
            else:
                same = self._common(child.ids, ids[depth:])
                if same < len(child.ids):
                    child = self._split(child, same)
                ours = slots[depth : depth + same]
                if child.slots is None:
                    child.slots = ours.copy()
                elif depth + same > protected:
                    cut = max(0, protected - depth)
                    done.duplicates.append((depth + cut, ours[cut:]))
            child.access = now
            depth += same
            node = child
        done.node = node
        if state is not None and node is not self.root and node.state is None:
            node.state = state
            done.state_taken = True
        node.state_access = now
        return done

    def lock(self, node: Node | None, state: bool = True) -> bool:
        """Keep the path to ``node`` from eviction, and its state. Returns whether a state was locked."""
        if node is None:
            return False
        held = state and node.state is not None
        if held:
            node.state_locks += 1
        while node is not None and node is not self.root:
            node.locks += 1
            node = node.parent
        return held

    def unlock(self, node: Node | None, held_state: bool) -> None:
        """Undo one ``lock`` that returned ``held_state``."""
        if node is None:
            return
        if held_state:
            node.state_locks -= 1
        while node is not None and node is not self.root:
            node.locks -= 1
            node = node.parent

    def evict(self, tokens: int, states: int) -> Freed:
        """Let go of at least so many device tokens and states, least recently used first, or all that is
        unlocked.
        """
        freed = Freed()
        while freed.tokens < tokens:
            leaves = [n for n in self.nodes() if n.device_leaf and n.locks == 0]
            if not leaves:
                break
            leaves.sort(key=lambda n: n.access)
            for leaf in leaves:
                self._drop(leaf, freed)
                if freed.tokens >= tokens:
                    break
        while len(freed.states) < states:
            holders = [n for n in self.nodes() if n.state is not None and n.state_locks == 0]
            if not holders:
                break
            oldest = min(holders, key=lambda n: n.state_access)
            if oldest.device_leaf and oldest.locks == 0:
                self._drop(oldest, freed)
            else:
                freed.states.append(there(oldest.state))
                oldest.state = None
        return freed

    def _drop(self, node: Node, freed: Freed) -> None:
        """Take an unlocked device leaf off the device, and every ancestor left without a use."""
        while node is not self.root and node.device_leaf and node.locks == 0:
            freed.slots.append(there(node.slots))
            node.slots = None
            if node.state is not None:
                freed.states.append(node.state)
                node.state = None
            parent = there(node.parent)
            if node.host_slots is None:
                self._forget(node, freed)
            node = parent
            if not self.needs_state or node.state is not None or node.host_slots is not None:
                break

    def _forget(self, node: Node, freed: Freed) -> None:
        """Remove ``node`` and what hangs below it (host-only) from the tree."""
        stack = [node]
        while stack:
            below = stack.pop()
            stack.extend(below.children.values())
            if below.host_slots is not None:
                freed.host_slots.append(below.host_slots)
            if below.host_state is not None:
                freed.host_states.append(below.host_state)
        del there(node.parent).children[self._key(node.namespace, node.ids)]

    def evict_host(self, tokens: int, states: int) -> Freed:
        """Let go of host copies.

        Of host-only leaves first (they leave the tree), then of nodes still on the device.
        """
        freed = Freed()

        def short() -> bool:
            return sum(len(s) for s in freed.host_slots) < tokens or len(freed.host_states) < states

        while short():
            gone = [n for n in self.nodes() if n.slots is None and not n.children and n.locks == 0]
            kept = [
                n
                for n in self.nodes()
                if n.slots is not None
                and n.host_slots is not None
                and n.locks == 0
                and all(child.host_slots is None for child in n.children.values())
            ]
            if gone:
                self._forget(min(gone, key=lambda n: n.access), freed)
            elif kept:
                node = min(kept, key=lambda n: n.access)
                freed.host_slots.append(there(node.host_slots))
                node.host_slots = None
                if node.host_state is not None:
                    freed.host_states.append(node.host_state)
                    node.host_state = None
            else:
                break
        return freed

    def counts(self) -> tuple[int, int, int]:
        """(device tokens in the tree, of those evictable, states in the tree)."""
        total = evictable = states = 0
        for node in self.nodes():
            if node.slots is not None:
                total += len(node.slots)
                evictable += len(node.slots) if node.locks == 0 else 0
            states += node.state is not None
        return total, evictable, states
