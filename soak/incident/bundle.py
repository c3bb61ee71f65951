"""An incident as a folder that another person can replay: plain JSON, .npy arrays, and nothing that runs.

``bundle.json`` holds what is said (``about``) and the rows of the trace; the arrays lie beside it under fixed
names. Everything read is somebody else's until it is checked; only BundleError ever comes out of a reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from soak.incident.about import About, spec_digest
from soak.incident.folder import MOST_JSON_BYTES, BundleError, Folder, npy, write_folder
from soak.incident.order import order_of
from soak.incident.rows import MOST_INT, MOST_ITEMS, RowError, arrays_of, rows_of, trace_from
from soak.incident.trace import Trace

__all__ = ["BundleError", "read_bundle", "write_bundle"]

FORMAT = "soak-incident-bundle"
SCHEMA = 4  # 3 without constants of JSON schemas; 2 without prompts beside that of a case; 1 without actions
_JSON = "bundle.json"
_README = "README.txt"
_DTYPES = {
    "sent_ids": "<i4",
    "seen_ids": "<i4",
    "case_ids": "<i4",
    "case_warm": "<f8",
    "case_cold": "<f8",
    "case_control": "<f8",
    "case_cold_again": "<f8",
}
_OPTIONAL = ("case_control", "case_cold_again")
_MOST_TEXT = 8000
_MOST_NOTES = 1000
_DEEPEST = 8


def write_bundle(folder: Path, trace: Trace, about: About) -> None:
    """Make the folder, whole or not at all. Raises BundleError, also for what could not be read again."""
    if len(trace.sent) > MOST_ITEMS:
        raise BundleError(
            f"{len(trace.sent):,} prompts; a bundle holds at most {MOST_ITEMS:,}: give a window"
        )
    said = {
        "seed": about.seed,
        "nonce": about.nonce,
        "run_id": about.run_id,
        "spec": dict(about.spec),
        "spec_digest": about.spec_digest,
        "fingerprint": dict(about.fingerprint),
        "soak_version": about.soak_version,
        "alarm": dict(about.alarm),
        "evidence": about.evidence,
        "notes": list(about.notes),
    }
    if about.decisions:
        said["decisions"] = [dict(row) for row in about.decisions]
    whole = {"format": FORMAT, "schema": _schema_of(trace), "about": said, **rows_of(trace)}
    option = orjson.OPT_INDENT_2 if len(trace.sent) <= 1000 else 0
    try:
        text = orjson.dumps(whole, option=option | orjson.OPT_APPEND_NEWLINE)
    except (TypeError, ValueError) as error:
        raise BundleError(f"{folder}: a value that JSON cannot hold: {error}") from error
    if len(text) > MOST_JSON_BYTES:
        raise BundleError(
            f"{folder}: {len(text):,} bytes of JSON; at most {MOST_JSON_BYTES:,}: give a window"
        )
    _about(orjson.loads(text)["about"])
    files = {_JSON: text, _README: _readme(about, trace)}
    files |= {f"{name}.npy": npy(array, _DTYPES[name]) for name, array in arrays_of(trace).items()}
    write_folder(folder, files)


def _schema_of(trace: Trace) -> int:
    """The oldest that can say all of it, so that older ones of soak read what they can."""
    if any(sent.code for sent in trace.sent):
        return SCHEMA
    if trace.case.beside:
        return 3
    return 2 if trace.acted else 1


def _readme(about: About, trace: Trace) -> bytes:
    return (
        f"An incident of soak {about.soak_version}: {len(trace.sent)} prompts, and the question that was\n"
        "answered wrongly after them.\n"
        "Replay it on a server of your own:\n\n"
        "  soak replay --bundle THIS_FOLDER --target http://127.0.0.1:30000\n\n"
        "bundle.json says what was sent and seen; the .npy files hold token ids (int32) and logprobs\n"
        "in nats (float64), in the order of its rows. No key and no address is in it.\n"
    ).encode()


def read_bundle(folder: Path) -> tuple[Trace, About]:
    """A bundle, checked. Raises BundleError, saying what is wrong with which file."""
    with Folder(folder) as files:
        if not files.has(_JSON):
            raise BundleError(f"{folder}: has no {_JSON}; `soak incidents export ID DIR` makes a bundle")
        text = files.read(_JSON, MOST_JSON_BYTES)
        try:
            whole = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise BundleError(f"{folder / _JSON}: not JSON: {error}") from error
        del text
        _refuse_other_formats(folder, whole)
        arrays: dict[str, npt.NDArray[np.generic]] = {
            name: files.array(f"{name}.npy", dtype)
            for name, dtype in _DTYPES.items()
            if name not in _OPTIONAL or files.has(f"{name}.npy")
        }
    try:
        trace = trace_from(whole, arrays)
        order_of(trace)
        return trace, _about(whole.get("about"))
    except BundleError as error:
        raise BundleError(f"{folder / _JSON}: {error}") from error
    except (RowError, ValueError) as error:
        raise BundleError(f"{folder}: {error}") from error


def _refuse_other_formats(folder: Path, whole: object) -> None:
    where = folder / _JSON
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise BundleError(f"{where}: not a bundle of soak")
    schema = whole.get("schema")
    if type(schema) is not int or schema < 1:
        raise BundleError(f"{where}: schema {str(schema)[:40]!r} is none")
    if schema > SCHEMA:
        raise BundleError(
            f"{where}: schema {schema}, written by a newer soak; this one reads up to {SCHEMA}: update soak"
        )


def _about(said: object) -> About:
    if not isinstance(said, dict):
        raise BundleError("about: an object is wanted")
    spec, fingerprint, alarm = (_plain(said, name) for name in ("spec", "fingerprint", "alarm"))
    notes = said.get("notes")
    if not isinstance(notes, list) or len(notes) > _MOST_NOTES or not all(_is_text(n) for n in notes):
        raise BundleError(f"about.notes: a list of at most {_MOST_NOTES} texts is wanted")
    decisions = said.get("decisions", [])
    if not isinstance(decisions, list) or len(decisions) > MOST_ITEMS or not all(map(_is_plain, decisions)):
        raise BundleError(f"about.decisions: a list of at most {MOST_ITEMS:,} objects is wanted")
    if any(isinstance(value, dict | list) for value in fingerprint.values()):
        raise BundleError("about.fingerprint: plain values are wanted")
    about = About(
        seed=_number(said, "seed"),
        nonce=_number(said, "nonce"),
        run_id=_text(said, "run_id"),
        spec=spec,
        spec_digest=_text(said, "spec_digest"),
        fingerprint=fingerprint,
        soak_version=_text(said, "soak_version"),
        alarm=alarm,
        evidence=_text(said, "evidence"),
        notes=tuple(notes),
        decisions=tuple(decisions),
    )
    found = spec_digest(about.spec)
    if found != about.spec_digest:
        raise BundleError(f"about.spec: its digest is {found}, not {about.spec_digest}: it was changed")
    try:
        about.ordinary_ids()
    except ValueError as error:
        raise BundleError(f"about.{error}") from error
    return about


def _plain(said: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = said.get(name)
    if not isinstance(value, dict) or _depth(value) > _DEEPEST:
        raise BundleError(f"about.{name}: an object, nested at most {_DEEPEST} deep, is wanted")
    return value


def _is_plain(value: object) -> bool:
    return isinstance(value, dict) and _depth(value) <= _DEEPEST


def _depth(value: object) -> int:
    level, deepest = [value], 0
    while level and deepest <= _DEEPEST:
        deepest += 1
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
            if isinstance(child, dict | list)
        ]
    return deepest


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_TEXT


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise BundleError(f"about.{name}: a text of at most {_MOST_TEXT} characters is wanted")
    return value


def _number(said: Mapping[str, Any], name: str) -> int:
    value = said.get(name)
    if type(value) is not int or not 0 <= value <= 2 * MOST_INT:
        raise BundleError(f"about.{name}: a whole number from 0 on is wanted")
    return value
