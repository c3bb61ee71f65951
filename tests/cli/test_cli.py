"""The command line as a person meets it: help, mistakes, exit codes, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner

from soak import cli
from soak.cli import main
from soak.cli.demo import shipped, simulator

ROOT = Path(__file__).parents[2]


def soak(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, words)
    return done.exit_code, done.stdout, done.stderr


COMMANDS = ("doctor", "run", "calibrate", "alarms", "incidents", "ack", "plan", "demo", "sim", "bench")


@pytest.mark.parametrize("words", [["--help"], *([[name, "--help"] for name in COMMANDS])])
def test_every_command_explains_itself(words: list[str]) -> None:
    code, out, _ = soak(*words)
    assert code == 0
    assert "Usage:" in out


def test_any_value_can_be_set_and_other_options_lie_over_it() -> None:
    words = ["plan", "--set", "load.shapes={identical: 1}", "--set", "run.seed=5", "--count", "4"]
    code, out, _ = soak(*words)
    assert code == 0
    shapes = {json.loads(line)["shape"] for line in out.splitlines()}
    assert "identical" in shapes
    assert "decode-seeded" not in shapes
    other = soak(*words, "--seed", "6")[1]
    assert other == soak(*words[:3], "--seed", "6", "--count", "4")[1] != out


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["run", "nowhere.yaml"], 2, "nowhere.yaml: No such file"),
        (["run", "--target", "http://192.0.2.1:1"], 2, "target.allow_load"),
        (["run", "--duration", "soon"], 2, "run.duration: given 'soon'"),
        (["run", "--shard", "2"], 2, "--shard 2: a pair such as 0/4"),
        (["run", "--shard", "4/4"], 2, "run.shard 4"),
        (["run", "--target", "http://127.0.0.1:1", "--out", "OUT"], 4, "cannot be reached"),
        (["run", "--target", "http://127.0.0.1:1", "--state", __file__], 2, "run.state: "),
        (["calibrate"], 2, "run.state: a calibration must be kept in something"),
        (["calibrate", "--state", "x", "--within", "soon"], 2, "--within: a duration"),
        (["calibrate", "--state", "x", "--p0-max", "2"], 2, "detect.p0_max: given 2.0"),
        (["calibrate", "--state", "x", "--url", "http://192.0.2.1:1"], 2, "target.allow_load"),
        (["calibrate", "--url", "http://127.0.0.1:1", "--state", __file__], 2, "run.state: "),
        (["plan", "--shard", "x/y"], 2, "--shard x/y"),
        (["plan", "--set", "rate=2"], 2, "--set rate=2: SECTION.KEY=VALUE"),
        (["plan", "--set", "load.rate=[2"], 2, "--set load.rate=[2: not YAML"),
        (["plan", "--set", "load.rate=fast"], 2, "load.rate: given 'fast'"),
        (["plan", "--set", "load.pace=2"], 2, "load.pace: no such key"),
        (["plan", "--set", "load.rte=2"], 2, "load.rte: no such key, perhaps rate; allowed are"),
        (["plan", "--set", "load.shapes={adapters: 1}"], 2, "load.shapes: this server can be asked none"),
        (["plan", "--first", "99999999999999999999"], 2, "--first"),
        (["demo", "--fault", "teapot", "--out", "OUT"], 2, "unknown fault 'teapot'"),
        (["run", "--target", "http://127.0.0.1:1", "--out", __file__], 2, "is a file; a folder is wanted"),
        (["compare", __file__, __file__], 2, "is a file; the folder of a run is wanted"),
        (["report", __file__], 2, "is a file; the folder of a run is wanted"),
        (["replay", "--bundle", "OUT"], 2, "`soak incidents export ID DIR` makes a bundle"),
        (
            ["alarms"],
            2,
            "SOAK_TOKEN, or give --token-file, as the running soak has it; on its",
        ),
        (["plan", "--set", "a.b=2", "--set", "a.b.c=2"], 2, "--set a.b.c=2: b was given a value before"),
        (["sim", "--fault", "teapot", "--port", "0"], 2, "teapot"),
        (["brew"], 2, "No such command"),
    ],
)
def test_mistakes_are_said_in_words(words: list[str], code: int, told: str, tmp_path: Path) -> None:
    got, out, err = soak(*[str(tmp_path) if w == "OUT" else w for w in words])
    assert got == code, err
    assert told in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    "words",
    [["run"], ["plan"], ["calibrate", "--state", "STATE"], ["doctor", "--config"], ["replay", "--seed", "1"]],
)
def test_a_mistake_in_a_file_names_the_file_and_one_on_the_command_line_does_not(
    words: list[str], tmp_path: Path
) -> None:
    words = [str(tmp_path / "state") if word == "STATE" else word for word in words]
    config = tmp_path / "mine.yaml"
    config.write_text("load: {rte: 2, burst: 0}\n")
    code, _, err = soak(*words, str(config))
    assert code == 2
    assert [line.partition(" ")[0] for line in err.splitlines()] == [f"{config}:"] * 2
    config.write_text("load: {rate: 1}\n")
    if words[0] in ("run", "plan"):
        code, _, err = soak(*words, str(config), "--seed", "-1")
        assert code == 2
        assert err.startswith("run.seed: given -1")


@pytest.mark.parametrize("name", sorted(cli._COMMANDS))
@pytest.mark.parametrize("loaded", [False, True], ids=["as it loads", "as it works"])
def test_an_interruption_has_a_code_of_its_own(
    name: str, loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    def module(_: str) -> SimpleNamespace:
        if not loaded:
            raise KeyboardInterrupt
        return SimpleNamespace(command=click.Command(name, callback=interrupt))

    monkeypatch.setattr("soak.cli.importlib.import_module", module)
    assert soak(name) == (130, "", "interrupted\n")  # 1 would say CORRUPT


def test_a_port_that_another_program_has() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, err = soak("sim", "--port", str(port))
    assert code == 1
    assert f"127.0.0.1:{port}: another program does; choose another --port" in err


def test_an_out_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = soak("run", "--target", "http://127.0.0.1:1", "--out", str(tmp_path / "file" / "out"))
    assert code == 2
    assert "file" in err


def test_plan_prints_the_same_bytes_for_a_seed() -> None:
    one = soak("plan", "--count", "5", "--seed", "9")
    assert one == soak("plan", "--count", "5", "--seed", "9")
    rows = [json.loads(line) for line in one[1].splitlines()]
    assert {r["index"] for r in rows} == set(range(5))
    assert soak("plan", "--count", "5", "--seed", "10") != one
    with_ids = json.loads(soak("plan", "--count", "1", "--ids")[1].splitlines()[0])
    assert [len(i) for i in with_ids["ids"]] == with_ids["lengths"]


def test_plan_counts_shards_apart() -> None:
    whole = soak("plan", "--count", "6")[1].splitlines()
    parts = [soak("plan", "--count", "3", "--shard", f"{i}/2")[1].splitlines() for i in (0, 1)]
    assert sorted(parts[0] + parts[1]) == sorted(whole)


def test_the_simulators_speed_is_measured() -> None:
    code, out, _ = soak("bench", "sim", "--json")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert {(r["model"], r["numerics"]) for r in rows} == {
        (m, n) for m in ("hybrid", "attention") for n in ("exact", "production")
    }
    assert all(r["prefill_tokens_per_s"] > 0 and r["decode_tokens_per_s"] > 0 for r in rows)


def test_cost_is_told_in_words() -> None:
    code, out, _ = soak("plan", str(shipped("smoke")), "--cost")
    assert code == 0
    assert "minutes until calibrated" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_a_summary(number: signal.Signals, tmp_path: Path) -> None:
    with simulator(None) as url:
        child = subprocess.Popen(
            [sys.executable, "-m", "soak", "run", str(shipped("demo")), "--target", url, "--out", tmp_path],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        deadline = time.monotonic() + 30
        while not (tmp_path / "run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(1)
        child.send_signal(number)
        out, err = child.communicate(timeout=20)
    assert child.returncode == 130, err.decode()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["interrupted"] is True
    assert summary["exit_code"] == 130
    assert b"Traceback" not in out + err


def test_json_goes_to_stdout_alone(tmp_path: Path) -> None:
    with simulator(None) as url:
        words = ["--target", url, "--duration", "2s", "--json", "--out", str(tmp_path)]
        done = subprocess.run(
            [sys.executable, "-m", "soak", "run", str(shipped("demo")), *words],
            cwd=ROOT,
            capture_output=True,
            timeout=60,
            check=False,
        )
    assert json.loads(done.stdout)["exit_code"] == done.returncode


def test_a_taken_metrics_port_is_said(tmp_path: Path) -> None:
    with simulator(None) as url:
        config = tmp_path / "c.yaml"
        port = url.rsplit(":", 1)[1]
        config.write_text(f"target: {{url: '{url}'}}\nmetrics: {{port: {port}}}\nrun: {{duration: 2s}}\n")
        code, _, err = soak("run", str(config), "--out", str(tmp_path / "out"))
    assert code == 2
    assert "metrics.port" in err


def started(target: str, out: Path, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "soak", "run", str(shipped("demo")), "--target", target, "--out", out, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def test_a_signal_before_any_load_is_heard_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections and never answers
        child = started(f"http://127.0.0.1:{mute.getsockname()[1]}", tmp_path)
        mute.settimeout(30)
        connection, _ = mute.accept()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=5)
        connection.close()
    assert child.returncode == 130
    assert b"interrupted before any load" in err
    assert b"Traceback" not in out + err


def test_a_second_signal_does_not_wait_for_the_first(tmp_path: Path) -> None:
    with simulator(None) as url:
        child = started(url, tmp_path)
        deadline = time.monotonic() + 30
        while not (tmp_path / "run.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=5)
    assert child.returncode == 130
    assert b"Traceback" not in out + err


def test_a_fault_of_our_own_is_not_taken_for_a_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("wires crossed")

    monkeypatch.setattr("soak.cli.run.SoakRun.run", broken)
    code, _, err = soak("run", "--target", "http://127.0.0.1:1", "--out", str(tmp_path))
    assert code == 70
    assert "wires crossed" in err
    assert "soak itself failed" in err


def test_a_key_that_cannot_be_sent_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SGLANG_API_KEY", "clé secrète")
    code, _, err = soak("run", "--target", "http://127.0.0.1:1", "--out", str(tmp_path))
    assert code == 2
    assert "API key must be printable ASCII" in err
    assert "secr" not in err
