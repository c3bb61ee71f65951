"""``soak demo``: the simulator with a planted fault as a child process, and a minute of soaking it."""

from __future__ import annotations

import contextlib
import importlib.resources
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import click

from soak import config as configs
from soak.cli.given import overrides
from soak.cli.run import run_id_folder, soak
from soak.detect.verdict import Verdict
from soak.run.exit_code import ExitCode
from soak.run.until_verdict import UntilVerdict
from soak.runners.faults import BY_NAME

_FAULT = "stale-track-tail"  # SGLang #32555
_READY_S = 30.0
_PATIENCE = 4  # times as long as it takes on two quiet cores


def shipped(name: str) -> Path:
    """A workload that ships with soak, in a checkout or installed."""
    checkout = Path(__file__).resolve().parents[2] / "workloads" / f"{name}.yaml"
    if checkout.is_file():
        return checkout
    return Path(str(importlib.resources.files("soak") / "workloads" / f"{name}.yaml"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:  # noqa: S310 - our own loopback
            return bool(answer.status == 200)
    except OSError:
        return False


def _sim_options(fault: str | None) -> list[str]:
    room = ["--max-total-tokens", "65536", "--max-mamba-slots", "512"]  # for victims to grow old in
    return ["--numerics", "production", *room, *(["--fault", fault] if fault else [])]


@contextlib.contextmanager
def simulator(fault: str | None) -> Iterator[str]:
    """A simulator on a free loopback port, stopped at the end whatever happens."""
    port = _free_port()
    words = [sys.executable, "-m", "soak", "sim", "--port", str(port), *_sim_options(fault)]
    words.append("--while-stdin")  # a demo that is killed must not leave its simulator behind
    told = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would stop a talkative child
    child = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=told,
        start_new_session=True,  # a Ctrl-C is for soak, which then stops its child itself
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + _READY_S
        while not _healthy(url):
            if child.poll() is not None or time.monotonic() > deadline:
                child.kill()
                child.wait()
                told.seek(0)
                error = told.read().decode(errors="replace").strip()
                raise click.ClickException(f"the simulator did not start: {error or 'no words from it'}")
            time.sleep(0.1)
        yield url
    finally:
        child.terminate()
        try:
            child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
        told.close()


@click.command(
    epilog="""\b
Examples:
  soak demo
  soak demo --fault stale-track-rows --seed 3
  soak demo --healthy --out healthy"""
)
@click.option("--fault", default=_FAULT, show_default=True, help="`soak sim --list-faults` names them.")
@click.option("--healthy", is_flag=True, help="Plant nothing: the same minute on a healthy server.")
@click.option(
    "--duration",
    help="Exactly this long. Default: 75s (healthy 120s, since calling a server CLEAN takes controls), and "
    "on a machine too busy for that until the verdict is there, at most four times as long.",
)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
def command(*, fault: str, healthy: bool, duration: str | None, seed: int, out: Path | None) -> None:
    """Soak the embedded simulator with a planted fault for a minute, and see it found.

    Exits 0 when the fault was found (or, with --healthy, when the server was called CLEAN).
    """
    if unknown := set(fault.split(",")) - BY_NAME.keys():
        raise click.UsageError(f"unknown fault {min(unknown)!r}; `soak sim --list-faults` names them")
    planted = None if healthy else fault
    wanted = Verdict.CLEAN if healthy else Verdict.CORRUPT
    good_s = 120.0 if healthy else 75.0
    patient = None if duration else UntilVerdict(wanted, good_s, _PATIENCE * good_s)
    duration = duration or f"{_PATIENCE * good_s:.0f}s"
    folder = out or run_id_folder()
    with simulator(planted) as url:
        click.echo(f"simulator at {url}, fault planted: {planted or 'none'}")
        if patient:
            click.echo(f"takes {good_s:.0f} s, longer only if it is not {wanted.value} by then")
        try:
            config = configs.load(
                shipped("demo"), overrides(target__url=url, run__duration=duration, run__seed=seed)
            )
        except configs.ConfigError as error:
            click.echo(str(error), err=True)
            sys.exit(ExitCode.USAGE)
        again = f"soak demo --seed {seed}" + (" --healthy" if healthy else f" --fault {fault}")
        code, summary = soak(config, folder, command=again, beside=patient)
        healthy_words = "200 OK" if _healthy(url) else "not OK"
    if summary is None:
        sys.exit(code)
    if summary["incidents"]:
        words = shlex.join(["soak", "sim", *_sim_options(planted), "--port", "30000"])
        click.echo(
            f"the demo's simulator is gone; for a replay start it again and name it with --target: {words}"
        )
    verdict = Verdict(summary["verdict"])
    click.echo(f"the server's own health check, at the end: {healthy_words}")
    if verdict is not wanted:
        click.echo(f"the demo expected {wanted.value}; see {folder / 'summary.json'}", err=True)
        sys.exit(code or int(ExitCode.INCONCLUSIVE))
