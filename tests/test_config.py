"""Every mistake in the YAML is one line: the key's path, what was given, what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from soak import config
from soak.config.metrics import Metrics
from soak.config.target import Target
from soak.plan.geometry import Geometry
from soak.plan.plan import Plan
from soak.plan.shapes import SHAPES

WORKLOADS = Path(__file__).parents[1] / "workloads"
REMOTE = "http://192.0.2.7:30000"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"targt": {}}, ["targt: no such key", "target, run, load"]),
        ({"target": {"ur": 1}}, ["target.ur: no such key", "url, api_key_env"]),
        ({"target": {"api_key": "hunter2"}}, ["target.api_key: no such key", "api_key_file"]),
        ({"target": {"url": "localhost:30000"}}, ["target.url", "localhost:30000", "http://127.0.0.1:30000"]),
        ({"target": {"url": "http://me:pw@127.0.0.1:1"}}, ["target.url", "api_key_env"]),
        ({"target": {"url": REMOTE}}, ["target.allow_load", REMOTE]),
        ({"target": {"url": REMOTE, "allow_load": True}}, ["budget.in_flight", "tokens_per_second"]),
        ({"run": {"duration": "tomorrow"}}, ["run.duration: given 'tomorrow'", "90s, 10m"]),
        ({"run": {"duration": -1}}, ["run.duration: given -1", "above 0"]),
        ({"run": {"duration": True}}, ["run.duration: given True"]),
        ({"run": {"seed": "x"}}, ["run.seed: given 'x'", "integer"]),
        ({"run": {"shard": 3, "shards": 2}}, ["run.shard 3", "0 to 1"]),
        ({"load": {"rate": 0}}, ["load.rate: given 0", "greater than or equal to 0.000001"]),
        ({"load": {"rate": float("inf")}}, ["load.rate: given inf"]),
        ({"load": {"shapes": {"teapot": 1}}}, ["load.shapes.teapot: no such shape", "shared-prefix"]),
        ({"load": {"shapes": {"shared-prefix": 0}}}, ["load.shapes: at least one weight"]),
        ({"load": {"shapes": {"planted": 1}}}, ["load.shapes.planted: no such shape"]),
        ({"load": {"shapes": {}, "rate": 2}}, ["load.rate: there are no shapes", "max_context"]),
        ({"load": "some"}, ["load: given 'some'"]),
        (
            {"load": "none", "budget": {"probe_share": 0.5}},
            ["budget.probe_share: with load: none", "pool_share_per_minute"],
        ),
        ({"load": {"shapes": {"pressure": 1}}}, ["load.shapes.pressure", "target.disruptive: true"]),
        ({"load": {"tenant_keys": ["a", "a", "b"]}}, ["load.tenant_keys: 2 different keys for 3 tenants"]),
        ({"load": {"arrivals": "steady"}}, ["load.arrivals: given 'steady'", "poisson"]),
        ({"load": {"max_context": 100, "min_prompt": 90}}, ["load.max_context 100", "3 times min_prompt 90"]),
        ({"load": 3}, ["load: given 3"]),
        ({"load": {"rate": 1e-320}}, ["load.rate: given 1e-320", "0.000001"]),
        ({"target": {"url": "http://127.0.0.1:99999"}}, ["target.url 'http://127.0.0.1:99999'", "65535"]),
        ({"target": {"url": "http://me:pw@127.0.0.1:99999"}}, ["target.url 'http://127.0.0.1:99999'"]),
        ({"target": {"url": "ftp://me:pw@127.0.0.1"}}, ["target.url 'ftp://127.0.0.1'"]),
        ({"target": {"url": "http://[::1"}}, ["target.url 'http://[::1'"]),
        ({"target": {"url": "http://127.0.0.1:1/?key=hunter2"}}, ["target.url", "api_key_env"]),
        ({"budget": {"in_flight": 3}}, ["budget.in_flight: given 3", "load.burst (6)"]),
        ({"detect": {"p0_max": 2}}, ["detect.p0_max: given 2", "0.5"]),
        ({"detect": {"false_alarms_per_year": 1, "run_length": 1e6}}, ["detect.false_alarms", "keep one"]),
        ({"detect": {"fleet_size": 3}}, ["detect.fleet_size", "together with false_alarms_per_year"]),
        ({"detect": {"false_alarms_per_year": 1e8}}, ["detect.false_alarms_per_year 1e+08", "fewer"]),
        ({"metrics": {"port": 99999}}, ["metrics.port: given 99999", "65535"]),
        ({"budget": {"probe_share": 0}}, ["budget.probe_share: given 0"]),
        ({"probe": {"tail": "long"}}, ["probe.tail: given 'long'"]),
    ],
)
def test_one_line_each(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.build(values)
    (line,) = str(caught.value).splitlines()
    for word in words:
        assert word in line
    assert "hunter2" not in line
    assert "pw@" not in line


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(config.ConfigError) as caught:
        config.build({"load": {"rate": -1, "burst": 1}, "foo": 1})
    assert len(str(caught.value).splitlines()) == 3


def test_defaults_are_enough_on_this_machine() -> None:
    loaded = config.build({"target": {"url": "http://127.0.0.1:30000"}})
    assert loaded.target.loopback
    assert loaded.pool_share_per_minute == 0.5


def test_shared_servers_are_spared_unless_told_otherwise() -> None:
    assert config.build({"target": {"shared": True}}).pool_share_per_minute == 0.02
    lifted = config.build({"target": {"shared": True}, "budget": {"pool_share_per_minute": None}})
    assert lifted.pool_share_per_minute is None


def test_the_run_length_is_stated_or_follows_from_false_alarms() -> None:
    assert config.build({}).run_length == 1e6
    assert config.build({"detect": {"run_length": 5e4}}).run_length == 5e4
    assert config.build({}).run_length_words == ""
    asked = {"detect": {"false_alarms_per_year": 2, "fleet_size": 10}, "probe": {"rate": 3}}
    assert config.build(asked).run_length == 2 * 10 * 3 * 31_557_600 / 2
    assert "fleet of 10" in config.build(asked).run_length_words


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:1", True),
        ("http://127.9.9.9:1", True),
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://127.0.0.1.example.org:1", False),
        ("http://10.0.0.1:1", False),
        ("http://localhost.example.org", False),
    ],
)
def test_only_loopback_is_free(url: str, loopback: bool) -> None:
    budget = {"in_flight": 8, "tokens_per_second": 100}
    loaded = config.build({"target": {"url": url, "allow_load": True}, "budget": budget})
    assert loaded.target.loopback is loopback


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5h", 5400), ("2d", 172_800), ("250ms", 0.25), (12, 12), ("1w", 604_800)],
)
def test_durations(text: object, seconds: float) -> None:
    assert config.duration_s(text) == seconds


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5)
)
def test_no_value_breaks_the_loader(value: object) -> None:
    for section, key in (("run", "duration"), ("load", "shapes"), ("target", "url"), ("budget", "in_flight")):
        try:
            config.build({section: {key: value}})
        except config.ConfigError as error:
            assert str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("run: [", "not YAML"),
        ("- a\n- b\n", "a mapping of sections"),
        ("run:\n\tseed: 1\n", "line 2"),
    ],
)
def test_files_that_are_not_configs(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(config.ConfigError, match=words):
        config.load(path)


def test_a_missing_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(config.ConfigError, match=r"nowhere\.yaml: No such file"):
        config.load(tmp_path / "nowhere.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(config.ConfigError, match="not UTF-8"):
        config.load(tmp_path / "binary.yaml")


def test_the_command_line_lies_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("run: {seed: 4, duration: 5m}\nload: {rate: 3}\n")
    loaded = config.load(path, {"run": {"seed": 9}})
    assert (loaded.run.seed, loaded.run.duration, loaded.load.rate) == (9, 300, 3)


def test_the_key_comes_from_file_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_API_KEY", "from-env")
    assert Target().api_key() == "from-env"
    key = tmp_path / "key"
    key.write_text("from-file\n")
    assert Target(api_key_file=key).api_key() == "from-file"
    with pytest.raises(config.ConfigError, match=r"target\.api_key_file"):
        Target(api_key_file=tmp_path / "none").api_key()


def test_the_token_of_the_alarms_api_comes_from_file_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SOAK_TOKEN", raising=False)
    assert Metrics().token() is None
    monkeypatch.setenv("SOAK_TOKEN", "from-environment-x")
    assert Metrics().token() == "from-environment-x"
    file = tmp_path / "token"
    file.write_text("from-file-0123456789\n")
    assert Metrics(token_file=file).token() == "from-file-0123456789"
    for bad in ("too-short", "", "with space in the middle", "x" * 2000):
        file.write_text(bad)
        with pytest.raises(config.ConfigError, match=r"metrics\.token_file: .*at least 16") as caught:
            Metrics(token_file=file).token()
        assert not bad or bad not in str(caught.value)
    with pytest.raises(config.ConfigError, match=r"metrics\.token_file: .*No such file"):
        Metrics(token_file=tmp_path / "none").token()
    monkeypatch.setenv("SOAK_TOKEN", "too-short")
    with pytest.raises(config.ConfigError, match="SOAK_TOKEN: a token of at least 16"):
        Metrics().token()


@pytest.mark.parametrize("path", sorted(WORKLOADS.glob("*.yaml")), ids=lambda p: p.stem)
def test_what_ships_loads_and_says_what_it_is_for(path: Path) -> None:
    config.load(path)
    head = path.read_text().split("\n\n")[0]
    assert yaml.safe_load(path.read_text())
    for words in ("Reaches", "Costs", "ot "):
        assert words in head


def test_the_spec_follows_config_and_geometry() -> None:
    spec = config.build({"load": {"max_context": 900, "shapes": {"long-context": 2}}}).resolve(Geometry())
    assert spec.max_context == 900
    assert dict(spec.weights)["long-context"] == 2
    assert dict(spec.weights)["shared-prefix"] == 0
    small = config.build({}).resolve(Geometry(context_len=512))
    assert small.max_context == 511
    assert small.digest() != spec.digest()


def test_a_server_too_small_for_the_load_is_said() -> None:
    with pytest.raises(config.ConfigError, match=r"load\.min_prompt: given 64; the server takes 127 tokens"):
        config.build({}).resolve(Geometry(context_len=128))
    assert config.build({"load": {"min_prompt": 32}}).resolve(Geometry(context_len=128)).max_context == 127


def test_a_key_given_twice_is_a_mistake(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("run: {duration: 5}\nload: {rate: 2}\nrun: {seed: 3}\n")
    with pytest.raises(config.ConfigError, match=r"line 3, column 1: .*'run' is given twice"):
        config.load(path)


def test_a_key_file_that_is_no_text_is_said(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"\xe8\x00\xff")
    with pytest.raises(config.ConfigError, match=r"target\.api_key_file: .*not text"):
        Target(api_key_file=path).api_key()


@given(
    room=st.integers(96, 5000),
    share=st.floats(0, 1),
    chunk=st.sampled_from([64, 512, 8192]),
    index=st.integers(0, 10_000),
    shape=st.sampled_from(sorted(SHAPES)),
    most=st.sampled_from([4, 32, 4096]),
)
def test_what_a_config_allows_fits_into_its_context(
    room: int, share: float, chunk: int, index: int, shape: str, most: int
) -> None:
    least = 8 + int(share * (room // 3 - 8))
    loaded = config.build(
        {
            "load": {
                "max_context": room,
                "min_prompt": least,
                "max_new_tokens": most,
                "decode_tokens": most,
                "shapes": {shape: 1},
                "arrivals": "constant",
            },
            "target": {"disruptive": True},
        }
    )
    spec = loaded.resolve(
        Geometry(context_len=8000, chunk=chunk, track_interval=256, adapters=("a",), grammar=True)
    )
    ends: dict[int, int] = {}
    for item in Plan(1, spec).items(index):
        before = 0 if item.parent is None else ends[item.parent]
        for prompt in item.prompts:
            ends[item.step] = before + prompt.length + item.max_new_tokens
            assert ends[item.step] <= room


@pytest.mark.parametrize(
    ("size", "wanted"),
    [("2GB", 2_000_000_000), ("500 MiB", 500 << 20), (3_000_000, 3_000_000), ("1.5g", 1_500_000_000)],
)
def test_a_size_is_given_in_bytes_or_in_words(size: object, wanted: int) -> None:
    assert config.build({"journal": {"bytes": size}}).journal.bytes == wanted


@pytest.mark.parametrize("size", ["much", "1KB", -5, True, "2 horses"])
def test_a_size_that_is_none_is_refused(size: object) -> None:
    with pytest.raises(config.ConfigError, match=r"journal\.bytes: given"):
        config.build({"journal": {"bytes": size}})


def test_without_load_the_budget_says_how_much_is_planted(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("load: none\n")
    loaded = config.load(path, {"load": {"max_context": 600}})
    assert loaded.load.none
    assert loaded.shared
    assert loaded.spec_shapes == {"planted"}
    assert loaded.pool_share_per_minute == 0.02
    assert loaded.probe_share is None
    pool = Geometry(max_total_tokens=1_000_000)
    spec = loaded.resolve(pool)
    assert spec.weights == (("planted", 1),)
    planted = float(spec.rate) * 60 * spec.max_context
    assert planted == pytest.approx(5_000, rel=1e-3)
    assert loaded.probes_pool_share is not None
    assert planted + loaded.probes_pool_share * 1_000_000 <= 0.02 * 1_000_000 * 1.001
    assert loaded.resolve(pool) == spec
    assert float(loaded.resolve(Geometry()).rate) == pytest.approx(1 / 30, rel=1e-4)
    assert config.build({"load": "none"}).resolve(pool).max_context == 1024
