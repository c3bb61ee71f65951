"""Any text at all where soak reads what somebody else wrote: a closed set of outcomes, never an error."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soak.config import ConfigError, load
from soak.run.trail import TRAIL_NAME, read_trail
from soak.sglang.fingerprint import fingerprint_of
from soak.sglang.server_metrics import parse_loads, parse_metrics

SECTIONS = ("target", "run", "load", "probe", "budget", "stop", "detect", "metrics", "journal", "grafana")
WORDS = st.text(string.printable, max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | WORDS
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
LINES = st.sampled_from(
    [
        *(f"{name}:" for name in SECTIONS),
        "  seed: 1",
        "  - x",
        "a: &b [*b]",
        "<<: *x",
        "? {a: b}",
        "\t",
        "%YAML 9",
    ]
)
ANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ANY
@given(st.lists(LINES | st.text(max_size=30), max_size=12).map("\n".join) | st.text(max_size=200))
def test_any_text_is_a_config_or_a_mistake_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load(path)
    except ConfigError as error:
        assert str(error)


@ANY
@given(st.binary(max_size=300))
def test_any_bytes_are_a_config_or_a_mistake_in_words(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(text)
    try:
        load(path)
    except ConfigError as error:
        assert str(error)


@ANY
@given(
    st.lists(
        st.sampled_from(["sglang:num_running_reqs", "sglang:token_usage{", '"} 1', " NaN", "\n"]) | WORDS
    )
)
def test_any_metrics_page_is_read(parts: list[str]) -> None:
    parse_metrics("".join(parts))


@ANY
@given(JSON)
def test_anything_on_loads_and_server_info_is_read(value: object) -> None:
    parse_loads(value)
    parse_loads({"loads": value})
    parse_loads({"loads": [value]})
    fingerprint_of({"version": value, "cuda_graph_config": value, "model_path": value}).digest()


@ANY
@given(st.binary(max_size=200) | JSON.map(lambda v: repr(v).replace("'", '"').encode()))
def test_any_trail_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / TRAIL_NAME).write_bytes(data)
    with pytest.raises(ConfigError):
        read_trail(tmp_path)
