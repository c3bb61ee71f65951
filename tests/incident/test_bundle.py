"""A bundle comes back as it was written, is whole or not there, and nothing foreign gets past its reader."""

from __future__ import annotations

import contextlib
import errno
import functools
import gzip
import io
import json
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.incident.bundle import SCHEMA, BundleError, read_bundle, write_bundle
from soak.incident.rows import MOST_ITEMS
from soak.incident.trace import Acted, Origin, Trace
from soak.oracle.probe import ProbeOutcome, ResumeKind
from tests.incident.traces import Script, about, random_ids, same


def small() -> Trace:
    script = Script()
    a, _ = script.send(random_ids(130, 1), random_ids(60, 2), new=3)
    script.rest()
    script.follow(a, random_ids(20, 3), temperature_milli=700, stream=True, namespace="tenant")
    script.send(random_ids(64, 4), abort_us=400)
    trace = script.ask(a, at_us=9)
    return replace(trace, case=replace(trace.case, control=trace.case.cold, cold_again=trace.case.cold))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy_into(tmp_path)
    return tmp_path


def test_a_bundle_comes_back_as_it_was(tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", small(), about(notes=("one", "two")))
    trace, said = read_bundle(tmp_path / "bundle")
    assert same(trace, small())
    assert said == about(notes=("one", "two"))
    assert "soak replay --bundle" in (tmp_path / "bundle" / "README.txt").read_text()


def schema(folder: Path) -> int:
    return int(json.loads((folder / "bundle.json").read_text())["schema"])


def test_what_an_older_soak_can_read_is_written_so_that_it_does(tmp_path: Path) -> None:
    trace = small()
    write_bundle(tmp_path / "plain", trace, about())
    acted = replace(trace, acted=(Acted("pause", 5, 30, {"mode": "in_place", "held_ms": 1}, "load"),))
    write_bundle(tmp_path / "acted", acted, about())
    case = replace(trace.case, kind=ResumeKind.DECODE_BATCH, victim=None, beside=(40, 0, 12))
    beside = replace(trace, case=case)
    write_bundle(tmp_path / "beside", beside, about())
    bound = replace(beside, sent=tuple(replace(one, code="soak-1") for one in trace.sent))
    write_bundle(tmp_path / "bound", bound, about())
    names = ("plain", "acted", "beside", "bound")
    assert [schema(tmp_path / name) for name in names] == [1, 2, 3, 4] == [1, 2, 3, SCHEMA]
    assert same(read_bundle(tmp_path / "bound")[0], bound)
    assert same(read_bundle(tmp_path / "beside")[0], beside)
    with pytest.raises(BundleError, match="one 0"):
        write_then_read(tmp_path / "two", replace(beside, case=replace(case, beside=(0, 0, 12))))


def write_then_read(folder: Path, trace: Trace) -> Trace:
    write_bundle(folder, trace, about())
    return read_bundle(folder)[0]


def test_an_alarm_of_a_load_prompt_comes_back(tmp_path: Path) -> None:
    """Its number is below 0: no probe asked."""
    trace = small()
    nothing = np.empty(0)
    case = replace(trace.case, number=-2, warm=nothing, cold=nothing, control=None, cold_again=None)
    case = replace(case, outcome=ProbeOutcome.BROKEN_INVARIANT, detail="canary 3 was answered as canary 4")
    assert same(write_then_read(tmp_path / "b", replace(trace, case=case)), replace(trace, case=case))


YES_OR_NO = st.booleans()
NUMBERS = st.integers(0, (1 << 62) - 1)
IDS = st.lists(st.integers(0, 1 << 24), min_size=1, max_size=12).map(lambda x: np.array(x, np.int32))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    script = Script()
    for _ in range(draw(st.integers(0, 5))):
        fields: dict[str, Any] = {
            "temperature_milli": draw(st.integers(0, 1_000_000)),
            "stream": draw(st.booleans()),
            "namespace": draw(st.text(max_size=8).filter(lambda t: t.isprintable())),
            "abort_us": draw(st.none() | NUMBERS),
        }
        if bool(script.sent) and draw(YES_OR_NO):
            script.follow(draw(st.integers(0, len(script.sent) - 1)), draw(IDS), **fields)
        else:
            script.send(*draw(st.lists(IDS, min_size=1, max_size=3)), **fields)
        if draw(YES_OR_NO):
            script.rest()
    victim = draw(st.none() | st.integers(0, len(script.sent) - 1)) if script.sent else None
    trace = script.ask(victim, ids=draw(IDS), tail=draw(st.integers(2, 20)), at_us=draw(NUMBERS))
    case = replace(
        trace.case,
        kind=draw(st.sampled_from(ResumeKind)),
        outcome=draw(st.sampled_from([o for o in ProbeOutcome if o.hard_alarm or o is ProbeOutcome.VALID])),
        number=draw(NUMBERS),
    )
    return replace(trace, case=case)


@settings(max_examples=25, deadline=None)
@given(traces(), st.text(max_size=50).filter(lambda t: all(not "\ud800" <= c <= "\udfff" for c in t)))
def test_any_trace_comes_back(trace: Trace, evidence: str) -> None:
    with tempfile.TemporaryDirectory() as there:
        write_bundle(Path(there) / "b", trace, about(evidence=evidence))
        read, said = read_bundle(Path(there) / "b")
    assert same(read, trace)
    assert said.evidence == evidence


# Writing


def test_nothing_is_overwritten(folder: Path) -> None:
    with pytest.raises(BundleError, match="is there already"):
        write_bundle(folder, small(), about())


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_leaves_nothing(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if call == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(BundleError, match=r"No space left on device.*nothing was left behind"):
        write_bundle(tmp_path / "bundle", small(), about())
    assert list(tmp_path.iterdir()) == []


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="spec"):
        write_bundle(tmp_path / "bundle", small(), about(spec_digest="0"))
    many = small()
    with pytest.raises(BundleError, match="give a window"):
        write_bundle(
            tmp_path / "bundle",
            replace(many, sent=many.sent[:1] * (MOST_ITEMS + 1), seen=many.seen[:1] * (MOST_ITEMS + 1)),
            about(),
        )
    assert list(tmp_path.iterdir()) == []


# Somebody else's bundle


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edited(folder: Path) -> None:
        whole = json.loads((folder / "bundle.json").read_text())
        change(whole)
        (folder / "bundle.json").write_text(json.dumps(whole))

    return edited


def array(name: str, values: Any) -> Callable[[Path], None]:
    return lambda folder: np.save(folder / f"{name}.npy", values)


def raw(name: str, content: bytes) -> Callable[[Path], None]:
    def written(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return written


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def sparse(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def instead(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def replaced(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return replaced


def pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([print], object), allow_pickle=True)
    return file.getvalue()


def zip_bomb() -> bytes:
    """Twenty megabytes of nothing in twenty kilobytes, as an archive of NumPy's has it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sent_ids.npy", bytes(20_000_000))
    return file.getvalue()


def sparse_nan(folder: Path) -> None:
    """As many NaN as a file may hold."""
    np.save(folder / "case_warm.npy", np.full(1_000_000, np.nan))
    np.save(folder / "case_cold.npy", np.full(1_000_000, np.nan))


def million(whole: dict[str, Any]) -> None:
    whole["sent"] = whole["seen"] = [{}] * 1_000_000


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda f: (f / "bundle.json").unlink(), "`soak incidents export ID DIR` makes a bundle"),
    "no array": (lambda f: (f / "seen_ids.npy").unlink(), "seen_ids.npy.*No such file"),
    "not JSON": (raw("bundle.json", b"{"), "not JSON"),
    "NaN in JSON": (raw("bundle.json", b'{"format": NaN}'), "not JSON"),
    "another format": (raw("bundle.json", b"[]"), "not a bundle"),
    "nested without end": (raw("bundle.json", b"[" * 100_000), "not JSON"),
    "newer": (edit(lambda w: w.update(schema=SCHEMA + 1)), "newer soak"),
    "schema true": (edit(lambda w: w.update(schema=True)), "schema"),
    "a link": (
        instead("sent_ids.npy", lambda p: p.symlink_to("/etc/passwd")),
        "sent_ids.npy: a link; plain files only",
    ),
    "a link to itself": (instead("bundle.json", lambda p: p.symlink_to(p)), "a link"),
    "a device": (instead("case_warm.npy", lambda p: p.symlink_to("/dev/zero")), "a link"),
    "a pipe": (instead("case_warm.npy", os.mkfifo), "not a plain file"),
    "a folder": (instead("case_warm.npy", Path.mkdir), "not a plain file"),
    "huge JSON": (sparse("bundle.json", 1 << 40), "at most"),
    "a huge array": (sparse("case_warm.npy", 1 << 40), "at most"),
    "a huge header": (
        raw(
            "sent_ids.npy", header("{'descr': '<i4', 'fortran_order': False, 'shape': (1099511627776,), }\n")
        ),
        "bytes of data for 1099511627776",
    ),
    "a negative shape": (
        raw("sent_ids.npy", header("{'descr': '<i4', 'fortran_order': False, 'shape': (-1,), }\n")),
        "bytes of data|no NumPy array",
    ),
    "a header that calls": (raw("sent_ids.npy", header("__import__('os').getcwd()\n")), "no NumPy array"),
    "a header of brackets": (raw("sent_ids.npy", header("(" * 5000 + "\n")), "no NumPy array"),
    "a header without end": (raw("sent_ids.npy", b"\x93NUMPY\x01\x00\xff\xff{"), "no NumPy array"),
    "a newer array": (raw("sent_ids.npy", b"\x93NUMPY\x03\x00"), "no NumPy array"),
    "a pickle": (raw("sent_ids.npy", pickle.dumps([1, 2])), "no NumPy array"),
    "a zip bomb for an array": (lambda f: (f / "sent_ids.npy").write_bytes(zip_bomb()), "no NumPy array"),
    "a zip bomb for the JSON": (lambda f: (f / "bundle.json").write_bytes(zip_bomb()), "not JSON"),
    "a gzip bomb for the JSON": (
        lambda f: (f / "bundle.json").write_bytes(gzip.compress(bytes(20_000_000))),
        "not JSON",
    ),
    "objects": (raw("sent_ids.npy", pickled()), "object"),
    "another dtype": (array("sent_ids", np.zeros(4, np.int64)), "int32"),
    "big-endian": (array("case_cold", np.zeros(23, ">f8")), "float64"),
    "two dimensions": (array("sent_ids", np.zeros((2, 2), np.int32)), "one dimension"),
    "NaN logprobs": (array("case_warm", np.full(23, np.nan)), "not finite"),
    "infinite logprobs": (array("case_control", np.full(23, np.inf)), "not finite"),
    "too few logprobs": (array("case_warm", np.zeros(22)), "22 logprobs for 23"),
    "a negative id": (array("case_ids", np.full(154, -1, np.int32)), "token ids must lie"),
    "too many ids": (array("sent_ids", np.zeros(9000, np.int32)), "token ids by its rows"),
    "a million prompts": (edit(million), "1,000,000 prompts"),
    "a million incidents": (edit(lambda w: w.update(case=[{}] * 1_000_000)), "case an object"),
    "a million alarms": (edit(lambda w: w["about"].update(alarm=[{}] * 1_000_000)), "alarm"),
    "a NaN bomb": (sparse_nan, "not finite|logprobs for 23"),
    "more answers": (edit(lambda w: w["seen"].append(w["seen"][0])), "answers seen"),
    "no rows": (edit(lambda w: w.update(sent={})), "must be lists"),
    "a row of another kind": (edit(lambda w: w["sent"].__setitem__(0, [])), r"sent\[0\]: an object"),
    "a field too many": (edit(lambda w: w["sent"][0].update(path="../../x")), "no such field 'path'"),
    "a field missing": (edit(lambda w: w["sent"][0].pop("shape")), "shape"),
    "a float": (edit(lambda w: w["sent"][0].update(at_us=1.5)), "at_us: 1.5; a whole number"),
    "an endless number": (edit(lambda w: w["sent"][0].update(at_us=10**30)), "whole number|not JSON"),
    "a long text": (edit(lambda w: w["sent"][0].update(shape="x" * 10_000)), "at most 500"),
    "an unknown origin": (edit(lambda w: w["sent"][0].update(origin="moon")), "load, probe, control"),
    "an unhashable origin": (edit(lambda w: w["sent"][0].update(origin=[])), "origin"),
    "a prompt without ids": (edit(lambda w: w["sent"][0].update(tokens=0)), "token ids by its rows"),
    "its own parent": (edit(lambda w: w["sent"][2].update(parent=2)), "parent"),
    "a parent that comes later": (edit(lambda w: w["sent"][0].update(parent=2, inherits=1)), "parent"),
    "more than the parent has": (edit(lambda w: w["sent"][2].update(parent=1)), "inherits"),
    "one request, two minds": (edit(lambda w: w["sent"][1].update(stream=True)), "differ in stream"),
    "no victim of that number": (edit(lambda w: w["case"].update(victim=99)), "victim"),
    "an outcome that is no alarm": (edit(lambda w: w["case"].update(outcome="evicted")), "no alarm"),
    "a start past the end": (edit(lambda w: w["case"].update(start=10_000)), "start"),
    "nothing to score": (edit(lambda w: w["case"].update(start=153)), "nothing to score"),
    "a changed spec": (edit(lambda w: w["about"]["spec"].update(rate="3")), "it was changed"),
    "no about": (edit(lambda w: w.pop("about")), "about: an object"),
    "deep about": (
        edit(lambda w: w["about"].update(alarm={"a": [[[[[[[[[[1]]]]]]]]]]})),
        "nested at most",
    ),
    "a fingerprint of lists": (edit(lambda w: w["about"].update(fingerprint={"a": []})), "plain values"),
    "notes without end": (edit(lambda w: w["about"].update(notes=["x"] * 5000)), "notes"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_in_words(name: str, folder: Path) -> None:
    spoil, words = HOSTILE[name]
    spoil(folder)
    with pytest.raises(BundleError, match=words) as refused:
        read_bundle(folder)
    assert str(folder) in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("path", ["nowhere", "a\0b", "x" * 5000])
def test_a_folder_that_is_none(path: str, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="a bundle is a folder"):
        read_bundle(tmp_path / path)


@functools.cache
def template() -> dict[str, bytes]:
    """The files of a good bundle: written once, since every file written is flushed to the disk."""
    with tempfile.TemporaryDirectory() as there:
        write_bundle(Path(there) / "b", small(), about())
        return {path.name: path.read_bytes() for path in (Path(there) / "b").iterdir()}


def copy_into(folder: Path) -> None:
    for name, content in template().items():
        (folder / name).write_bytes(content)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_bundle_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        copy_into(folder)
        names = sorted(p.name for p in folder.iterdir() if p.name != "README.txt")
        for _ in range(data.draw(st.integers(1, 3))):
            file = folder / data.draw(st.sampled_from(names))
            content = bytearray(file.read_bytes())
            at = data.draw(st.integers(0, max(0, len(content) - 1)))
            match data.draw(st.sampled_from(["set", "cut", "insert"])):
                case "set" if content:
                    content[at] = data.draw(st.integers(0, 255))
                case "cut":
                    del content[at : at + data.draw(st.integers(1, 200))]
                case _:
                    content[at:at] = data.draw(st.binary(min_size=1, max_size=20))
            file.write_bytes(content)
        with contextlib.suppress(BundleError):
            trace, _ = read_bundle(folder)
            assert all(sent.origin in Origin for sent in trace.sent)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as there:
        folder = Path(there)
        copy_into(folder)
        whole = json.loads((folder / "bundle.json").read_text())
        node: Any = whole
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
                break
            node = node[key]
        node[key] = data.draw(JSON)
        (folder / "bundle.json").write_text(json.dumps(whole))
        with contextlib.suppress(BundleError):
            read_bundle(folder)
