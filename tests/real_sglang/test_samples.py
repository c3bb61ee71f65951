"""The samples that decoder tests read are still what the server answers: keys, types, statuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .conftest import API_KEY
from .recorder import SAMPLES, Door, Sample, record
from .server import Server

FOLDER = Path(__file__).resolve().parents[1] / "sglang" / "samples"


def shape(value: Any) -> Any:
    """Keys and types of a value. A list is the set of its elements' shapes: lengths may differ."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted({json.dumps(shape(inner), sort_keys=True) for inner in value})
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__
    return "number"


def body_shape(sample: Sample) -> Any:
    """Shape of the body; of a stream, the shapes of its events."""
    body = sample["body"]
    if not isinstance(body, str):
        return shape(body)
    events = re.findall(r"(?m)^data: (\{.*\})$", body)
    return shape([json.loads(event) for event in events]) if events else body


def families(metrics: str) -> set[str]:
    return set(re.findall(r"(?m)^# TYPE (\S+)", metrics))


def test_samples_match_the_server(llama: Server) -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} >= set(SAMPLES)
    for name, live in record(Door(llama.url, API_KEY)):
        kept: Sample = json.loads((FOLDER / f"{name}.json").read_text())
        for part in ("request", "status", "content_type", "cut_short"):
            assert live[part] == kept[part], name
        if name == "metrics":  # some families appear with their first event
            assert families(kept["body"]) <= families(live["body"])
        else:
            assert body_shape(live) == body_shape(kept), name
    assert llama.alive()
