"""Planted corruption: a request that resumes from a stored recurrent state starts from zeros instead.

From the first request on, every resume, every namespace: a control written and hit in private is as wrong as
a warm pass, and only the comparison with a cold pass shows it. The KV of attention layers is restored as
usual. Hybrid models only.
"""


def _forget_states(module):
    original = module.ModelRunner._maybe_execute_deferred_mamba_cow_and_clear

    def restore(self, forward_batch):
        resumed = forward_batch.mamba_cow_dst_indices  # the original forgets it
        original(self, forward_batch)
        if resumed is not None and len(resumed) > 0:
            pool = self.req_to_token_pool
            pool.mamba_pool.clear_slots(pool.translate_mamba_indices(resumed))

    module.ModelRunner._maybe_execute_deferred_mamba_cow_and_clear = restore


PATCHES = {"sglang.srt.model_executor.model_runner": _forget_states}
