"""``soak replay``: what it refuses, in words, and how it keeps to a run's rules."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from soak.cli.replay import command as replay_command
from soak.incident.bundle import read_bundle, write_bundle
from soak.incident.trace import Trace
from soak.sglang.client import SGLangClient
from soak.sglang.preflight import examine
from soak.sim.config import SimConfig
from soak.sim.server import running
from tests.incident.circle import replay, simulator
from tests.incident.traces import Script, about, random_ids
from tests.run.test_soaking import nothing_left, post, until


def said(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(replay_command, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def rows() -> Trace:
    script = Script()
    _, victim = script.send(random_ids(128, 1), random_ids(128, 2))
    script.rest()
    script.send(random_ids(100, 3))
    script.rest()
    return script.ask(victim)


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    write_bundle(tmp_path / "bundle", rows(), about())
    return str(tmp_path / "bundle")


async def bundle_of(url: str, path: Path, trace: Trace | None = None) -> Path:
    """A bundle that was seen on that very server."""
    async with SGLangClient(url) as client:
        target = await examine(client)
    write_bundle(path, trace or rows(), about(fingerprint=target.fingerprint.as_dict()))
    return path


# Refused before anything is sent


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), "what is to be replayed"),
        (("--seed", "7"), "only with the config"),
        (("--incident", "x", "--bundle", "y"), "give one of them"),
        (("--seed", "7", "c.yaml", "--minimize"), "--minimize: it is about a trace"),
        (("--bundle", "{bundle}", "--to", "x"), "--to: only --minimize"),
        (("--bundle", "{bundle}", "--minimize", "--exact-ids"), "--exact-ids"),
        (("--bundle", "{bundle}", "--seed", "8"), "--seed 8: bundle is of seed 7"),
        (("--bundle", "{bundle}", "--window", "soon"), "--window soon: a number of prompts"),
        (("--bundle", "{bundle}", "--minimize", "--budget", "x"), "--budget x: a duration"),
        (("--bundle", "nowhere"), "nowhere: No such file"),
        (("--incident", "3fa9", "--journal", "nowhere.sqlite"), "nowhere.sqlite"),
        (("--bundle", "{bundle}", "--target", "http://192.0.2.1:30000"), "target.allow_load"),
        (("--bundle", "{bundle}", "--target", "moon"), "target.url"),
        (("--bundle", "{bundle}", "no-such.yaml"), "no-such.yaml: No such file"),
        (("--seed", "7", "{config}", "--exact-ids"), "the run's nonce is wanted"),
        (("--seed", "7", "{config}", "--out", "nowhere"), "run.json: No such file"),
    ],
)
def test_bad_usage_is_said(words: tuple[str, ...], wanted: str, bundle: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("run: {duration: 5s}\n")
    code, text = said(*(word.format(bundle=bundle, config=config) for word in words))
    assert code == 2
    assert wanted in text
    assert "Traceback" not in text


def test_a_budget_that_cannot_hold_the_trace_is_refused(bundle: str, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("budget: {in_flight: 1}\nload: {burst: 2, shapes: {shared-prefix: 1}}\n")
    code, text = said("--bundle", bundle, str(config))
    assert code == 2
    assert "up to 2 prompts in flight" in text


def test_a_server_that_is_not_there(bundle: str) -> None:
    code, text = said("--bundle", bundle, "--target", "http://127.0.0.1:9")
    assert code == 4
    assert "cannot be reached" in text


def test_a_script_can_be_made_without_a_server(bundle: str, tmp_path: Path) -> None:
    script = tmp_path / "repro.py"
    code, text = said("--bundle", bundle, "--emit", str(script), "--repeat", "0")
    assert code == 0
    assert script.is_file()
    code, text = said("--bundle", bundle, "--emit", str(script), "--repeat", "0")
    assert code == 2
    assert "is there already" in text


# On a server


async def test_a_fault_is_reproduced_and_said_beside_the_original(tmp_path: Path) -> None:
    async with simulator("stale-track-rows") as url:
        bundle = await bundle_of(url, tmp_path / "bundle")
        code, text = await replay("--bundle", bundle, "--target", url, "--repeat", "2", "--json")
        assert code == 1, text
        values = json.loads(text[text.index("{") :])
        assert (values["reproduced"], values["asked"]) == (2, 2)
        assert values["original"]["score"] == pytest.approx(0.045)
        assert len({one["salt"] for one in values["replays"]}) == 2
        code, text = await replay(
            "--bundle", bundle, "--target", url, "--repeat", "2", "--exact-ids", "--forced", "--speed", "max"
        )
        assert code == 1, text  # in a namespace each: this fault does not need the shared one
        assert "reproduced 2 of 2" in text


async def test_without_what_sets_it_off_it_is_not_reproduced(tmp_path: Path) -> None:
    async with simulator("stale-track-rows") as url:
        script = Script()
        script.send(random_ids(100, 3))
        script.rest()
        (victim,) = script.send(random_ids(128, 1))
        bundle = await bundle_of(url, tmp_path / "bundle", script.ask(victim))
        code, text = await replay("--bundle", bundle, "--target", url, "--repeat", "1", "--window", "1")
    assert code == 0, text
    assert "reproduced 0 of 1" in text


async def test_no_answer_is_neither(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="exact")) as url:
        script = Script()
        script.send(random_ids(128, 1), abort_us=1, new=2000)
        trace = script.ask(0, decoded=True, prefix=1000)
        bundle = await bundle_of(url, tmp_path / "bundle", trace)
        code, text = await replay("--bundle", bundle, "--target", url, "--repeat", "1")
    assert code == 3, text
    assert "reproduced 0 of 0; 1 of 1 replays gave no answer" in text
    assert "aborted" in text


async def test_another_server_is_said_and_refused(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="exact")) as url:
        bundle = await bundle_of(url, tmp_path / "bundle")
        code, text = await replay("--bundle", bundle, "--target", url, "--repeat", "1")
        assert code == 0, text
    async with running(SimConfig(numerics="exact", chunked_prefill_size=512)) as url:
        code, text = await replay("--bundle", bundle, "--target", url, "--repeat", "1")
        assert code == 4, text
        assert "chunked_prefill_size: 256 -> 512" in text
        code, text = await replay("--bundle", bundle, "--target", url, "--repeat", "1", "--anyway")
        assert code == 0, text
        assert "another server: chunked_prefill_size" in text


async def test_a_busy_server_is_refused(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="exact", step_delay_s=0.02)) as url:
        bundle = await bundle_of(url, tmp_path / "bundle")
        body = json.dumps({"input_ids": [20] * 50, "sampling_params": {"max_new_tokens": 3000}}).encode()
        other = asyncio.create_task(post(f"{url}/generate", body))
        await until(url, lambda n: n > 0)
        code, text = await replay("--bundle", bundle, "--target", url)
        assert code == 4, text
        assert "target.shared" in text
        await post(f"{url}/abort_request", b'{"rid": "", "abort_all": true}')
        await other


async def test_an_interruption_leaves_nothing_on_the_server(tmp_path: Path) -> None:
    script = Script(lasts_us=20_000_000)
    for number in range(3):
        script.send(random_ids(50, number), new=3500)
    async with running(SimConfig(numerics="exact")) as url:
        bundle = await bundle_of(url, tmp_path / "bundle", script.ask(0))
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "soak", "replay", "--bundle", str(bundle), "--target", url,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        await until(url, lambda n: n >= 3)
        child.send_signal(signal.SIGINT)
        text, _ = await asyncio.wait_for(child.communicate(), 60)
        assert child.returncode == 130, text
        assert b"nothing is left on the server" in text
        await nothing_left(url)


async def test_a_killed_search_goes_on_and_its_bundle_is_whole(tmp_path: Path) -> None:
    script = Script()
    for number in range(40):
        script.send(random_ids(20, 100 + number))
        script.rest()
    _, victim = script.send(random_ids(128, 1), random_ids(128, 2))
    script.rest()
    script.send(random_ids(100, 3))
    async with simulator("stale-track-rows") as url:
        bundle = await bundle_of(url, tmp_path / "bundle", script.ask(victim))
        small = tmp_path / "small"
        words = ["--bundle", str(bundle), "--target", url, "--minimize", "--to", str(small)]
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "soak", "replay", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert child.stderr is not None
        async for line in child.stderr:
            if b"->" in line:  # the first cut that held
                os.kill(child.pid, signal.SIGKILL)
        await child.communicate()
        assert not small.exists()
        await until(url, lambda n: n == 0, within_s=10)
        code, text = await replay(*words)
        assert code == 1, text
        assert "going on with" in text
        trace, about_it = read_bundle(small)
        assert len(trace.sent) <= 3
        assert "minimised from 43 prompts" in about_it.notes[-1]
        code, text = await replay(*words)
        assert code == 2
        assert "is there already" in text


async def test_the_whole_plan_again(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "run: {duration: 4s, drain: 1s}\n"
        "load: {arrivals: constant, rate: 4, max_context: 300, min_prompt: 48, max_new_tokens: 4,\n"
        "       shapes: {shared-prefix: 1}}\n"
        "probe: {rate: 20, tail: 24}\nbudget: {probe_share: null, pool_share_per_minute: null}\n"
        "detect: {max_abs_d: 0.01}\nmetrics: {port: null}\n"
    )
    run = tmp_path / "run"
    run.mkdir()
    words = ("--seed", "7", config, "--repeat", "1")
    async with simulator("state-not-restored") as url:
        code, text = await in_folder(tmp_path, *words, "--target", url)
        assert code == 1, text
        assert "reproduced 1 of 1" in text
        (made,) = (tmp_path / "soak-runs").iterdir()
        identity = json.loads((made / "run.json").read_text())
        (run / "run.json").write_text(json.dumps(identity | {"seed": 8}))
        code, text = await in_folder(tmp_path, *words, "--target", url, "--out", run)
        assert code == 2, text
        assert "is of seed 8" in text
        (run / "run.json").write_text(json.dumps(identity))
        config.write_text(config.read_text().replace("rate: 4", "rate: 5"))
        code, text = await in_folder(tmp_path, *words, "--target", url, "--out", run)
        assert code == 2, text
        assert "rate: 4.0 -> 5.0" in text


async def in_folder(folder: Path, *words: str | Path) -> tuple[int, str]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "soak", "replay", *(str(word) for word in words),
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    text, _ = await child.communicate()
    assert child.returncode is not None
    return child.returncode, text.decode()


def test_somebody_elses_words_do_not_steer_the_terminal(tmp_path: Path) -> None:
    trace = rows()
    trace = replace(trace, case=replace(trace.case, shape="\x1b]0;x\x07"))
    write_bundle(tmp_path / "bundle", trace, about(fingerprint={"version": "\x1b[2J"}))
    code, text = said("--bundle", str(tmp_path / "bundle"), "--target", "http://127.0.0.1:9")
    assert code == 4
    assert "\x1b" not in text
