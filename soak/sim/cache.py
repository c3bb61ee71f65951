"""What requests do with the cache: take a prefix, get slots, leave a prefix behind, give everything back.

Holds the pools, the tree and the host tier together and is the only owner of slots: every slot is either
free, held by one request, or in the tree. Follows SGLang's unified radix cache (``cache_unfinished_req``,
``cache_finished_req``, the Mamba component) in what is inserted when. It never runs the model.
"""

from __future__ import annotations

import numpy as np

from soak.sim import weights as w
from soak.sim.config import SimConfig
from soak.sim.host import HostTier
from soak.sim.model import Model
from soak.sim.numerics import I64
from soak.sim.pools import FreeList, OutOfSlots, RequestTable, StatePool, TokenPool
from soak.sim.radix import Freed, Match, Namespace, Node, RadixTree, there
from soak.sim.request import Backup, Request


class Cache:
    """Pools, tree and host tier of one server."""

    def __init__(self, config: SimConfig) -> None:
        self.config = config
        self.tokens = TokenPool(
            Model.attention_layers(config), config.max_total_tokens, config.page_size, w.HEADS * w.HEAD_DIM
        )
        self.table = RequestTable(config.max_running_requests, config.context_len)
        self.states = StatePool(
            config.max_mamba_slots if config.hybrid else 0, w.HIDDEN, w.INNER, w.SSM_WIDTH
        )
        self.tree = RadixTree(config.page_size, config.hybrid)
        self.host = HostTier(config, self.tokens, self.states, self.tree) if config.host_tokens else None
        self.evicted_tokens = 0

    # -- slots -----------------------------------------------------------------------------------------------

    def _absorb(self, freed: Freed) -> None:
        for slots in freed.slots:
            self.tokens.give(slots)
        self.evicted_tokens += freed.tokens
        self.states.free.give(freed.states)
        if self.host is not None:
            self.host.give(freed)

    def take_tokens(self, tokens: int) -> I64:
        """Slots in whole pages for at least ``tokens`` tokens, evicting if needed. Raises OutOfSlots."""
        page = self.config.page_size
        pages = -(-tokens // page)
        missing = pages * page - self.tokens.free_tokens
        if missing > 0:
            self._absorb(self.tree.evict(missing, 0))
        return self.tokens.take_pages(pages)

    def take_state(self) -> int:
        """One state slot, evicting a stored state if needed. Raises OutOfSlots."""
        if not len(self.states.free):
            self._absorb(self.tree.evict(0, 1))
        (slot,) = self.states.free.take(1)
        return slot

    def available_tokens(self) -> int:
        """Free tokens and evictable ones."""
        return self.tokens.free_tokens + self.tree.counts()[1]

    def extend_row(self, request: Request, end: int) -> None:
        """Give the request's row slots for positions up to ``end``. Raises OutOfSlots, changing nothing."""
        if end <= request.allocated:
            return
        if end - request.allocated == 1 == self.config.page_size and len(self.tokens.pages):
            (slot,) = self.tokens.pages.take(1)  # every decode step comes this way
            self.table.slots[request.row, request.allocated] = slot
            request.allocated = end
            return
        slots = self.take_tokens(end - request.allocated)
        self.table.slots[request.row, request.allocated : request.allocated + len(slots)] = slots
        request.allocated += len(slots)

    # -- admission -------------------------------------------------------------------------------------------

    def _namespace(self, request: Request) -> Namespace:
        joined = "tenant-key-collision" in self.config.faults
        return request.joined_namespace if joined else request.namespace

    def match(self, request: Request) -> Match:
        """What the tree has of the request's tokens within its limit."""
        if self.config.disable_radix_cache:
            return Match((), 0, 0, 0)
        return self.tree.match(self._namespace(request), request.ids, request.match_limit)

    def admit(self, request: Request, match: Match) -> None:
        """Give the request a row, its cached prefix (locked) and its state slots.

        Raises OutOfSlots, undone.
        """
        held = self.tree.lock(match.node)
        taken: list[int] = []
        try:
            taken = self._take_states()
            held = self._load_back(match, held)
            (row,) = self.table.rows.take(1)
        except OutOfSlots:
            self.states.free.give(taken)
            self.tree.unlock(match.node, held)
            raise
        self.drop_prefetch(request)
        request.row = row
        request.node, request.node_state_held = match.node, held
        self._bind(row, match)
        request.kv_len = request.allocated = request.protected = match.length
        request.resumed = match.length > 0
        if self.config.hybrid:
            self._assign_states(request, taken)
            request.branching_len = self._branching(match)
            beyond = match.kv_len if match.kv_len > match.length else None
            request.window_branch_len = beyond if self.config.window else None
            if match.node is not None and "state-not-restored" not in self.config.faults:
                # copy on write: read where the tree has it, written to the working slot
                request.initial_slot, request.has_state = there(match.node.state), True

    def _take_states(self) -> list[int]:
        """A working slot and, with extra_buffer, two to track into. Raises OutOfSlots, taking nothing."""
        taken: list[int] = []
        for _ in range(self.config.slots_per_request if self.config.hybrid else 0):
            try:
                taken.append(self.take_state())
            except OutOfSlots:
                self.states.free.give(taken)
                raise
        return taken

    @staticmethod
    def _assign_states(request: Request, taken: list[int]) -> None:
        request.state_slot, *request.ping_pong = taken
        request.initial_slot, request.has_state = request.state_slot, False
        request.next_track = request.last_track = 0
        request.last_track_len = None

    def _bind(self, row: int, match: Match) -> None:
        """Write the cached prefix's slots into the row."""
        if not match.path:
            return
        slots = self._path_slots(match.node)
        row_slots = self.table.slots[row]
        if "middle-truncated" in self.config.faults:
            ends = len(slots) // 8
            row_slots[: len(slots)] = 0
            row_slots[:ends] = slots[:ends]
            row_slots[len(slots) - ends : len(slots)] = slots[len(slots) - ends :]
            return
        row_slots[: len(slots)] = slots

    def _branching(self, match: Match) -> int | None:
        """Where another request's tokens part from these beyond the last state.

        Worth a checkpoint of its own.
        """
        grid = self.config.checkpoint_grid
        at = match.kv_len // grid * grid
        return at if at > match.length else None

    def _load_back(self, match: Match, held_state: bool) -> bool:
        """Bring the host-only end of a (locked) match to the device; whether its state is held now.

        Raises OutOfSlots; what was begun goes on, and is in the tree.
        """
        end = match.node
        if self.host is None or end is None:
            return held_state
        for node in match.path:
            if node.slots is None:
                node.slots = self.take_tokens(len(node.ids))
                self.host.start_load(node)
        if self.config.hybrid and end.state is None:
            end.state = self.take_state()
            self.host.load_state(there(end.host_state), end.state)
            end.state_access = end.access
            end.state_locks += 1
            return True
        return held_state

    def prefetch(self, request: Request) -> None:
        """Begin to load a waiting request's prefix back from the host, if that is where it is and there is
        room.
        """
        if self.host is None or request.prefetched is not None:
            return
        match = self.match(request)
        if match.device_len == match.length:
            return
        held = self.tree.lock(match.node)
        try:
            held = self._load_back(match, held)
        except OutOfSlots:
            self.tree.unlock(match.node, held)
            return
        request.prefetched = (there(match.node), held)
        request.prefetched_tokens += match.length - match.device_len  # once more, if it was let go of

    def drop_prefetch(self, request: Request) -> None:
        """Let go of what was prefetched for a request that now starts, or never will."""
        if request.prefetched is not None:
            self.tree.unlock(*request.prefetched)
            request.prefetched = None

    # -- retraction to host memory ---------------------------------------------------------------------------

    def back_up(self, request: Request) -> None:
        """Take a running request's KV and state along to host memory before it is retracted."""
        length = request.seq_len - 1
        slots = self.table.slots[request.row, :length]
        state = None
        if self.config.hybrid and "retract-lost-state" not in self.config.faults:
            # SGLang #35957: the backup mode resolved to the attention pools only, and the state
            # was left behind.
            slot, pool = request.state_slot, self.states
            state = (pool.short[slot].copy(), pool.conv[slot].copy(), pool.ssm[slot].copy())
        keys, values = self.tokens.keys[:, slots].copy(), self.tokens.values[:, slots].copy()
        request.backup = Backup(length, keys, values, state)

    def bring_back(self, request: Request) -> None:
        """Give a retracted request slots of its own, and its backup copied in. Raises OutOfSlots, undone."""
        backup = there(request.backup)
        taken = self._take_states()
        try:
            (request.row,) = self.table.rows.take(1)
        except OutOfSlots:
            self.states.free.give(taken)
            raise
        if self.config.hybrid:
            self._assign_states(request, taken)
            request.has_state = True
        try:
            self.extend_row(request, backup.length + 1)
        except OutOfSlots:
            self.release(request, keep_from=0)
            raise
        slots = self.table.slots[request.row, : backup.length]
        self.tokens.keys[:, slots], self.tokens.values[:, slots] = backup.keys, backup.values
        if backup.state is not None:
            pool, slot = self.states, request.state_slot
            pool.short[slot], pool.conv[slot], pool.ssm[slot] = backup.state
        request.kv_len, request.backup = backup.length, None

    # -- leaving prefixes behind -----------------------------------------------------------------------------

    def cache_unfinished(self, request: Request, computed: int) -> None:
        """After a prefill (chunk) up to token ``computed``.

        Put it into the tree, rebind the row to the tree's slots.
        """
        if self.config.disable_radix_cache:
            return
        length, state = self._unfinished_state(request, computed)
        length = self._insert_length(request, min(length, computed))
        if length <= 0:
            self._give_state(state)
            return
        ids, slots = request.ids[:length], self.table.slots[request.row, :length]
        done = self.tree.insert(self._namespace(request), ids, slots, state, request.protected)
        self._free_duplicates(done.duplicates)
        if not done.state_taken:
            self._give_state(state)
        request.last_track_len = None
        if length < request.protected:  # a shallower branch point: the row already stands on a deeper prefix
            return
        self.table.slots[request.row, :length] = self._path_slots(done.node)
        held = self.tree.lock(done.node)
        self.tree.unlock(request.node, request.node_state_held)
        request.node, request.node_state_held = done.node, held
        request.protected = length
        if self.host is not None:
            self.host.write_through(done.node)

    def _insert_length(self, request: Request, length: int) -> int:
        """How much of a prefix goes into the tree: what the state belongs to, in whole pages."""
        branch = request.window_branch_len
        if "branch-state-mismatch" in self.config.faults and self.config.extra_buffer and branch is not None:
            # SGLang #38815: every component names a length and the shortest wins, so the branch point of the
            # sliding window shortens the key while the state stays the one of the full length.
            length, request.window_branch_len = min(length, branch), None
        return self.tree.aligned(length)

    def _unfinished_state(self, request: Request, computed: int) -> tuple[int, int | None]:
        """(length the state belongs to, a state slot for the tree).

        The request keeps working slots of its own.
        """
        if not self.config.hybrid:
            return computed, None
        if not self.config.extra_buffer:
            slot = self.take_state()
            self.states.copy(request.state_slot, slot)
            return computed, slot
        if request.last_track_len is None:
            return 0, None
        slot = request.ping_pong[request.last_track]
        request.ping_pong[request.last_track] = self.take_state()
        return request.last_track_len, slot

    def cache_finished(self, request: Request, insert: bool = True) -> None:
        """Put a finished request's tokens into the tree, or not, and give back all it held."""
        length, state = request.protected, None
        if insert and not self.config.disable_radix_cache:
            computed = request.seq_len - 1 if request.output else request.kv_len
            length, state = self._finished_state(request, computed)
            length = self._insert_length(request, min(length, computed))
            if length > 0:
                ids, slots = request.ids[:length], self.table.slots[request.row, :length]
                done = self.tree.insert(self._namespace(request), ids, slots, state, request.protected)
                self._free_duplicates(done.duplicates)
                if not done.state_taken:
                    state = None
                if self.host is not None:
                    self.host.write_through(done.node)
            else:
                state = None
        self.release(request, keep_from=max(length, request.protected), keep_state=state)

    def _finished_state(self, request: Request, computed: int) -> tuple[int, int | None]:
        if not self.config.hybrid:
            return computed, None
        if not self.config.extra_buffer:
            return computed, request.state_slot
        if request.last_track_len is None:
            return 0, None
        return request.last_track_len, request.ping_pong[request.last_track]

    def release(self, request: Request, keep_from: int, keep_state: int | None = None) -> None:
        """Free the row's slots past ``keep_from``, the state slots (but ``keep_state``), the row and the
        locks.
        """
        self.tokens.give(self.table.slots[request.row, self.tree.aligned(keep_from) : request.allocated])
        if self.config.hybrid:
            slots = [request.state_slot, *request.ping_pong]
            self.states.free.give(s for s in slots if s != keep_state)
        self.tree.unlock(request.node, request.node_state_held)
        self.table.rows.give([request.row])
        request.node, request.node_state_held = None, False
        request.row = request.kv_len = request.allocated = request.protected = 0
        request.state_slot, request.initial_slot, request.ping_pong, request.has_state = 0, 0, [], False
        request.last_track_len = request.branching_len = request.window_branch_len = None

    def _path_slots(self, node: Node | None) -> I64:
        parts: list[I64] = []
        while node is not None and node.parent is not None:
            parts.append(there(node.slots))
            node = node.parent
        return np.concatenate(parts[::-1])

    def _free_duplicates(self, duplicates: list[tuple[int, I64]]) -> None:
        for _, slots in duplicates:
            self.tokens.give(slots)

    def _give_state(self, slot: int | None) -> None:
        if slot is not None:
            self.states.free.give([slot])

    # -- whole cache -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Drop the whole cache. Only with no request holding anything. Bytes stay where they are."""
        self.tree = RadixTree(self.config.page_size, self.config.hybrid)
        self.tokens.pages = FreeList(self.tokens.pages.size)
        self.states.free = FreeList(self.states.free.size)
        if self.host is not None:
            self.host.clear()
            self.host = HostTier(self.config, self.tokens, self.states, self.tree)
