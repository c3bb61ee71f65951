"""Planted corruption: on a prefix hit, the middle third of the matched KV is zeroed in the shared pool.

Every second request of the shared namespace (no ``extra_key``) that hits at least 96 tokens wipes part of
what it hit. The slots belong to the radix tree, so all later hits on them are served the same damage, as
after a stale write into somebody's old pages. Requests with an ``extra_key`` wipe nothing: a cold pass in a
fresh namespace stays right, and so does a control written and hit in a private one.
"""

SHORTEST_HIT = 96


def _wipe_hits(module):
    original = module.Req.init_next_round_input
    seen = {"rid": None, "hits": 0}

    def init_next_round_input(self, tree_cache=None, cow_mamba=None):
        original(self, tree_cache, cow_mamba)
        # Without a tree this is a later chunk of the same request; a rid seen just before waits for room.
        if tree_cache is None or self.extra_key is not None or self.rid == seen["rid"]:
            return
        hit = len(self.prefix_indices)
        if hit < SHORTEST_HIT:
            return
        seen["rid"] = self.rid
        seen["hits"] += 1
        if seen["hits"] % 2:
            return
        slots = self.prefix_indices[hit // 3 : 2 * hit // 3]
        pool = tree_cache.token_to_kv_pool_allocator.get_kvcache()
        pool = getattr(pool, "full_kv_pool", pool)  # a hybrid's attention layers
        for buffer in [*pool.k_buffer, *pool.v_buffer]:
            buffer[slots] = 0

    module.Req.init_next_round_input = init_next_round_input


PATCHES = {"sglang.srt.managers.schedule_batch": _wipe_hits}
