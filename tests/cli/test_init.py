from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from soak import config as configs
from soak.cli import main
from soak.cli.demo import simulator
from soak.cli.init import checked
from soak.plan.geometry import Geometry
from soak.run.first_config import first_config
from soak.sglang.fingerprint import Fingerprint
from soak.sglang.preflight import ServerNow, Target


def target(url: str = "http://gpu-7:30000", **changes: object) -> Target:
    fingerprint = Fingerprint((("version", "0.5.18"),))
    made = Target(
        url=url,
        version="0.5.18",
        model="tiny",
        fingerprint=fingerprint,
        geometry=Geometry(context_len=32_768, max_total_tokens=500_000, max_running=48),
        deterministic=False,
        simulator=False,
        has_tokenizer=True,
        data_parallel=1,
        running=0,
        queued=0,
        now=ServerNow(fingerprint, "", ""),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("context", [600, 2048, 32_768, 1 << 20])
@pytest.mark.parametrize("pool", [None, 2048, 1 << 22])
@pytest.mark.parametrize("hybrid", [False, True])
def test_the_config_is_valid_on_whatever_server(context: int, pool: int | None, hybrid: bool) -> None:
    geometry = Geometry(
        context_len=context,
        max_total_tokens=pool,
        max_running=4,
        hybrid=hybrid,
        state_grid=512 if hybrid else None,
        track_interval=256 if hybrid else None,
    )
    server = target(geometry=geometry)
    text = first_config(server, loopback=False, api_key_env=None, asked_at="2026-12-01")
    config = checked(text, server)
    assert config.target.url == server.url
    assert config.target.allow_load
    assert config.budget.in_flight == 4
    assert all(len(line) <= 120 for line in text.splitlines())
    assert "every 512" not in text, "a guess must not be said as if it were known"
    assert ("by decode every 256 tokens" in text) is hybrid


def test_a_server_with_other_people_on_it_is_shared() -> None:
    text = first_config(target(running=3), loopback=False, api_key_env="KEY", asked_at="2026-12-01")
    values = yaml.safe_load(text)
    assert values["target"]["shared"] is True
    assert values["target"]["api_key_env"] == "KEY"
    assert "3 requests of other people" in text


def test_a_servers_words_stay_in_comments() -> None:
    server = target(model="m\nrun: {duration: 9d}\r\n# \u2028", version="1\nload: none")
    values = yaml.safe_load(first_config(server, loopback=True, api_key_env=None, asked_at="2026-12-01"))
    assert values["run"]["duration"] == "30m"
    assert values["load"]["rate"] == 1


def test_asked_of_a_server_and_taken_by_plan_and_run(tmp_path: Path) -> None:
    file = tmp_path / "soak.yaml"
    with simulator(None) as url:
        done = CliRunner().invoke(main, ["init", url, "--to", str(file)])
        assert done.exit_code == 0, done.output
        assert f"soak doctor --config {file}" in done.stdout
        written = file.read_bytes()
        again = CliRunner().invoke(main, ["init", url, "--to", str(file)])
        assert again.exit_code == 2
        assert "is left as it is" in again.stderr
        assert file.read_bytes() == written
        shown = CliRunner().invoke(main, ["init", url, "--to", "-"])
        assert yaml.safe_load(shown.stdout)["target"]["url"] == url
        assert configs.load(file).target.url == url
        assert CliRunner().invoke(main, ["plan", str(file), "--count", "1"]).exit_code == 0
        words = ["run", str(file), "--duration", "2s", "--out", str(tmp_path / "out"), "--quiet"]
        words += ["--set", "metrics.port=null", "--set", "run.report=false", "--set", "run.state=null"]
        ran = subprocess.run(
            [sys.executable, "-m", "soak", *words], check=False, capture_output=True, timeout=120
        )
        assert ran.returncode == 3, ran.stderr  # two seconds say nothing
        assert (tmp_path / "out" / "summary.json").is_file()


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["init", "http://127.0.0.1:1", "--to", str(tmp_path / "soak.yaml")])
    assert done.exit_code == 4
    assert "cannot be reached" in done.stderr
    assert not (tmp_path / "soak.yaml").exists()


def test_an_address_that_is_none(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["init", "gpu-7", "--to", str(tmp_path / "soak.yaml")])
    assert done.exit_code == 2
    assert "an address such as http://127.0.0.1:30000 is wanted" in done.stderr
