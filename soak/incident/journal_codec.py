"""How token ids and per-token arrays lie in the journal: short, exact, the same on every machine. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import orjson

from soak.sglang.exchange import TokenIds

Array = npt.NDArray[np.float64]


def pack_ids(ids: TokenIds) -> bytes:
    """One byte that says how many bytes an id takes (2, 3 or 4), then the ids, little-endian; b"" for none.

    Random ids do not compress; a vocabulary of 65,536 to 16 million needs three bytes each. What a broken
    server returns, negative ids among them, takes four.
    """
    if not len(ids):
        return b""
    wide = ids.astype("<i4", copy=False)
    high = int(wide.view("<u4").max())
    if high < 1 << 16:
        return b"\x02" + ids.astype("<u2").tobytes()
    if high < 1 << 24:
        return b"\x03" + wide.view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return b"\x04" + wide.tobytes()


def unpack_ids(packed: bytes | None) -> TokenIds:
    """The ids again, int32 of shape (n,). Raises ValueError for what pack_ids does not make."""
    if not packed:
        return np.empty(0, np.int32)
    width, body = packed[0], packed[1:]
    if width not in (2, 3, 4) or len(body) % width:
        raise ValueError(f"{len(body)} bytes of ids, {width} bytes each")
    if width == 2:
        return np.frombuffer(body, "<u2").astype(np.int32)
    wide = np.zeros((len(body) // width, 4), np.uint8)
    wide[:, :width] = np.frombuffer(body, np.uint8).reshape(-1, width)
    return wide.view("<i4").reshape(-1).astype(np.int32)


def digest8(ids: TokenIds) -> bytes:
    """Eight bytes that name a row of ids: those of ``soak.plan.plan.digest``."""
    return hashlib.blake2b(ids.astype("<i4").tobytes(), digest_size=8).digest()


def pack_arrays(arrays: Mapping[str, Array]) -> bytes:
    """Named float64 arrays of shape (n,), each by its own n, bit for bit."""
    head = orjson.dumps({name: len(values) for name, values in arrays.items()})
    return b"".join(
        [len(head).to_bytes(4, "little"), head, *(v.astype("<f8").tobytes() for v in arrays.values())]
    )


def unpack_arrays(packed: bytes) -> dict[str, Array]:
    """The arrays again, in their order. Raises ValueError for what pack_arrays does not make."""
    size = int.from_bytes(packed[:4], "little")
    lengths = orjson.loads(packed[4 : 4 + size])
    values = np.frombuffer(packed[4 + size :], "<f8").astype(np.float64)
    if sum(lengths.values()) != len(values):
        raise ValueError(f"{len(values)} numbers for arrays of {lengths}")
    arrays, at = {}, 0
    for name, length in lengths.items():
        arrays[name] = values[at : at + length]
        at += length
    return arrays
