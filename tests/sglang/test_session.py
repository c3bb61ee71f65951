"""A session's names: fixed width, and never those of another process that runs under the same run id."""

from __future__ import annotations

from soak.sglang.client import SGLangClient
from soak.sglang.session import Session


def test_processes_of_one_run_share_no_rid_and_no_namespace() -> None:
    client = SGLangClient("http://127.0.0.1:1")
    one, other = Session(client, "0123456789ab"), Session(client, "0123456789ab")
    names = [[session.rid(), session.namespace(), session.rid()] for session in (one, other)]
    assert len({*names[0], *names[1]}) == 6
    rids = [name for pair in names for name in (pair[0], pair[2])]
    assert len({len(rid) for rid in rids}) == 1
    assert all(rid.startswith("soak-0123456789ab-") for rid in rids)
