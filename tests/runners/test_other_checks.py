"""The adjacent faults: fixed in another form, half fixed, dead, and as published, on modules of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.runners import cache_keys, scan_states, tracking
from tests.runners.trees import BATCH, DECODE, ENVIRON, PREFILL, RESULTS, WINDOW, site

SPECULATIVE = {
    "conjunction": ("return self.buffered() and self.cached and self.spec_algorithm.is_none()", "vulnerable"),
    "early return": (
        "if not self.spec_algorithm.is_none():\n    return False\nreturn self.buffered()",
        "vulnerable",
    ),
    "by name": (
        "yes = self.buffered()\nreturn yes and self.args.speculative_algorithm is None",
        "vulnerable",
    ),
    "gone": ("return self.buffered() and self.cached", "fixed"),
    "dead test": (
        "if False and not self.spec_algorithm.is_none():\n    return False\nreturn self.buffered()",
        "fixed",
    ),
    "either way": ("return self.buffered() and (self.spec_algorithm.is_none() or self.cached)", "fixed"),
    "never": ("return False", "unknown"),
}


@pytest.mark.parametrize("form", list(SPECULATIVE))
def test_tracking_under_speculation(tmp_path: Path, form: str) -> None:
    body, state = SPECULATIVE[form]
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    source = f"class Runner:\n    def _is_mamba_track_enabled(self):\n{lines}"
    assert tracking.check_speculative(site(tmp_path, {PREFILL: source})).state == state


def results(test: str, length: str, position: str) -> dict[str, str]:
    return {
        RESULTS: f"""\
class Processor:
    def at_boundary(self, req, batch, i):
        every = settings.mamba_track_interval
        lead = req.steps - batch.steps_then[i]
        if ({test}) % every == 0:
            return True, {length}
        return False, 0

    def finished(self, req, batch, i):
        hit, length = self.at_boundary(req, batch, i)
        if hit:
            req.mamba_last_track_idx = {position}
"""
    }


@pytest.mark.parametrize(
    ("parts", "state", "fix"),
    [
        (("req.kv_committed_len", "req.kv_committed_len", "req.next_idx"), "vulnerable", "absent"),
        (("req.kv_committed_len - lead", "req.kv_committed_len - lead", "batch.at[i]"), "fixed", "complete"),
        (("req.kv_committed_len - lead", "req.kv_committed_len", "batch.at[i]"), "vulnerable", "partial"),
        (
            ("req.kv_committed_len - lead", "req.kv_committed_len - lead", "req.idx"),
            "vulnerable",
            "partial",
        ),
    ],
)
def test_boundaries_under_overlap(tmp_path: Path, parts: tuple[str, str, str], state: str, fix: str) -> None:
    answer = tracking.check_overlap(site(tmp_path, results(*parts)))
    assert (answer.state, answer.fix) == (state, fix), answer


def mixing(before: str, after: str) -> dict[str, str]:
    names = ("mamba_track_indices", "mamba_track_mask", "mamba_track_seqlens")
    nones = "".join(f"        self.{name} = None\n" for name in names)
    return {
        BATCH: f"""\
class Batch:
    mamba_track_indices: object = None

    def merge(self, other):
        self.rows = self.rows + other.rows
{nones}
    def mix(self, other):
        self.forward_mode = Mode.MIXED
        {before}
        self.merge(other)
        {after}
"""
    }


KEEP = "kept = (self.mamba_track_indices, self.mamba_track_mask, self.mamba_track_seqlens)"


@pytest.mark.parametrize(
    ("before", "after", "state", "fix"),
    [
        ("pass", "pass", "vulnerable", "absent"),
        (
            KEEP,
            "self.mamba_track_indices, self.mamba_track_mask, self.mamba_track_seqlens = kept",
            "fixed",
            "complete",
        ),
        (
            "kept = self._held()",
            "for name, value in kept.items():\n            setattr(self, name, value)",
            "vulnerable",
            "absent",
        ),
        (KEEP, "self.mamba_track_mask = kept[1]", "vulnerable", "partial"),
        (
            KEEP,
            "if False:\n            self.mamba_track_mask, self.mamba_track_indices = kept[:2]",
            "vulnerable",
            "absent",
        ),
    ],
)
def test_mixed_batches(tmp_path: Path, before: str, after: str, state: str, fix: str) -> None:
    answer = tracking.check_mixed(site(tmp_path, mixing(before, after)))
    assert (answer.state, answer.fix) == (state, fix), answer


def scan(branch: str) -> dict[str, str]:
    return {
        scan_states.MODULE: f"""\
class Base:
    def choose(self, batch):
        tracked = batch.mamba_track_mask
        lens = batch.extend_seq_lens
        if isinstance(self, Mamba2AttnBackend):
            counts = lens // self.chunk
        else:
            counts = (lens - 1) // self.chunk + 1
        begin = torch.zeros_like(lens)
        begin[1:] = torch.cumsum(lens[:-1], dim=0)
        again = None
        if isinstance(self, Mamba2AttnBackend):
{branch}
        return source, again


class Mamba2AttnBackend(Base):
    pass
"""
    }


@pytest.mark.parametrize(
    ("branch", "state", "fix"),
    [
        ("            source = counts[tracked] + lens // self.chunk", "vulnerable", "absent"),
        (
            "            ends = begin[tracked] + lens\n"
            "            fits = ends % self.chunk == 0\n"
            "            source = ends[fits]\n"
            "            again = ends[~fits]",
            "fixed",
            "complete",
        ),
        (
            "            ends = begin[tracked] + lens\n"
            "            fits = ends % self.chunk == 0\n"
            "            source = ends[fits]",
            "vulnerable",
            "partial",
        ),
        (
            "            source = counts[tracked]\n"
            "            if False:\n"
            "                fits = begin[tracked] % self.chunk == 0\n"
            "                again = begin[~fits]",
            "vulnerable",
            "absent",
        ),
    ],
)
def test_states_off_the_grid_of_a_scan(tmp_path: Path, branch: str, state: str, fix: str) -> None:
    answer = scan_states.check(site(tmp_path, scan(branch)))
    assert (answer.state, answer.fix) == (state, fix), answer


@pytest.mark.parametrize(
    ("body", "state", "fix"),
    [
        ("return None", "not applicable", ""),
        (
            "if req.branch is None:\n            return None\n        return req.branch",
            "vulnerable",
            "absent",
        ),
        ("if self.cache.has_mamba:\n            return None\n        return req.branch", "fixed", "complete"),
        (
            "if not self.cache.has_mamba:\n            return req.branch\n        return None",
            "fixed",
            "complete",
        ),
        (
            "if req.short:\n"
            "            return 1\n"
            "        if self.mamba:\n"
            "            return None\n"
            "        return req.branch",
            "vulnerable",
            "partial",
        ),
        (
            "if False and self.mamba:\n            return None\n        return req.branch",
            "vulnerable",
            "absent",
        ),
    ],
)
def test_windows_beside_states(tmp_path: Path, body: str, state: str, fix: str) -> None:
    source = f"class Window:\n    def prepare_for_caching_req(self, req):\n        {body}\n"
    answer = cache_keys.check_branch(site(tmp_path, {WINDOW: source}))
    assert (answer.state, answer.fix) == (state, fix), answer


def transfers(holding: str, default: str) -> dict[str, str]:
    return {
        ENVIRON: f"class Environ:\n    HOLD_KV_RELEASE = Flag({default})\n",
        DECODE: f"""\
class TransferQueue:
    def __init__(self):
        self.hold = envs.HOLD_KV_RELEASE.get()
        self.held = []

    def poll(self):
        for entry in self.queue:
            if entry.state == KVPoll.Failed:
                {holding}

    def free(self):
        for entry in self.held:
            release_kv_cache(entry)
""",
    }


HOLD = "if self.hold:\n                    self.held.append(entry)"


@pytest.mark.parametrize(
    ("holding", "default", "state", "fix"),
    [
        ("release_kv_cache(entry)", "True", "vulnerable", "absent"),
        (HOLD, "True", "fixed", "complete"),
        (HOLD, "False", "vulnerable", "partial"),
        (HOLD, "default()", "unknown", ""),
        ("if False:\n                    self.held.append(entry)", "True", "vulnerable", "absent"),
    ],
)
def test_slots_of_an_aborted_transfer(
    tmp_path: Path, holding: str, default: str, state: str, fix: str
) -> None:
    answer = cache_keys.check_release(site(tmp_path, transfers(holding, default)))
    assert (answer.state, answer.fix) == (state, fix), answer


@pytest.mark.parametrize(
    ("made", "state"),
    [
        ("(extra_key or '') + lora_id", "vulnerable"),
        ("f'{extra_key}/{lora_id}'", "vulnerable"),
        ("'/'.join((extra_key, lora_id))", "vulnerable"),
        ("(extra_key, lora_id)", "fixed"),
        ("digest(extra_key, lora_id)", "unknown"),
        ("extra_key", "unknown"),
    ],
)
def test_names_of_tenants(tmp_path: Path, made: str, state: str) -> None:
    source = (
        "class Request:\n    def __init__(self, extra_key=None, lora_id=None):\n"
        f"        if lora_id is not None:\n"
        f"            extra_key = {made}\n"
        f"        self.extra_key = extra_key\n"
    )
    assert cache_keys.check_tenant(site(tmp_path, {BATCH: source})).state == state


@pytest.mark.parametrize(
    "check",
    [
        tracking.check_speculative,
        tracking.check_overlap,
        tracking.check_mixed,
        scan_states.check,
        cache_keys.check_branch,
        cache_keys.check_release,
        cache_keys.check_tenant,
    ],
)
def test_code_that_has_moved_is_unknown_and_says_where_it_looked(tmp_path: Path, check: object) -> None:
    words = (
        "mamba_track_mask mamba_track_interval mamba_track_indices mamba_track_seqlens track_ssm_h_src "
        "lora_id DecodeTransferQueue Mamba2AttnBackend prepare_for_caching_req"
    )
    elsewhere = {"srt/elsewhere.py": f"{words.replace(' ', ' = ')} = None\n"}
    assert callable(check)
    answer = check(site(tmp_path, elsewhere))
    assert answer.state == "unknown", answer
    assert answer.where
