"""The fingerprint: stable, comparable, and nothing in it that is not on the list."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from soak.sglang.fingerprint import fingerprint_of
from tests.sglang.small import Small

INFO = Small().server_info()


def test_the_digest_is_the_same_everywhere() -> None:
    assert fingerprint_of(INFO).digest() == "33f1ddc4ef288473"
    assert fingerprint_of(dict(reversed(INFO.items()))).digest() == "33f1ddc4ef288473"


def test_what_changes_between_starts_is_left_out() -> None:
    again = {**INFO, "random_seed": 1, "max_total_num_tokens": 5, "host": "h", "port": 1, "startup_time": 2.5}
    assert fingerprint_of(again) == fingerprint_of(INFO)


def test_what_matters_changes_it_and_is_said() -> None:
    ours = fingerprint_of(INFO)
    theirs = fingerprint_of({**INFO, "version": "0.5.23", "kv_cache_dtype": "fp8_e5m2"})
    assert ours.digest() != theirs.digest()
    assert ours.differences(theirs) == [
        "kv_cache_dtype: not reported -> fp8_e5m2",
        "version: 0.5.18 -> 0.5.23",
    ]
    assert ours.differences(ours) == []


def test_a_field_that_is_null_is_not_a_field_that_is_missing() -> None:
    ours, theirs = fingerprint_of({"version": "1"}), fingerprint_of({"version": "1", "quantization": None})
    assert ours.differences(theirs) == ["quantization: not reported -> None"]


def test_no_key_and_no_credentials() -> None:
    got = fingerprint_of(
        {**INFO, "model_path": "s3://me:secret@bucket/model", "ssl_keyfile_password": "secret"}
    )
    assert got.get("model_path") == "s3://bucket/model"
    assert "secret" not in json.dumps(got.as_dict())
    assert "sk-not-for-anyone" not in json.dumps(got.as_dict())
    assert got.get("api_key") is None


def test_the_first_answer_that_has_a_field_wins() -> None:
    got = fingerprint_of({"version": "1"}, {"version": "2", "architectures": ["A", "B"]})
    assert got.as_dict() == {"version": "1", "architectures": "A,B"}


@given(
    st.dictionaries(st.sampled_from(["version", "model_path", "dtype", "api_key", "x"]), st.from_type(object))
)
def test_only_plain_values_of_named_fields(info: dict[str, object]) -> None:
    got = fingerprint_of(info).as_dict()
    assert set(got) <= {"version", "model_path", "dtype"}
    assert all(value is None or isinstance(value, str | int | float) for value in got.values())


def test_captured_graphs_are_part_of_it() -> None:
    graphs = {"prefill": {"backend": "full", "max_bs": 4, "bs": [1, 2]}, "decode": {"backend": "disabled"}}
    got = fingerprint_of({"cuda_graph_config": graphs}).as_dict()
    assert got == {
        "cuda_graph_config.decode.backend": "disabled",
        "cuda_graph_config.prefill.backend": "full",
        "cuda_graph_config.prefill.max_bs": 4,
    }
    others: list[object] = [None, 3, {"prefill": 3}, {"prefill": {"backend": []}}]
    for other in others:
        assert fingerprint_of({"cuda_graph_config": other}).as_dict() == {}
