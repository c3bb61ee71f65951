"""``soak sim`` as a process.

It says when it is ready, serves, and stops on SIGTERM; wrong use starts nothing.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request

from click.testing import CliRunner

from soak.cli.sim import command
from soak.runners.faults import FAULTS


def test_it_serves_and_stops() -> None:
    began = time.monotonic()
    code = "from soak.cli.sim import command; command()"
    arguments = ["--port", "0", "--fault", "state-not-restored,stale-track-rows", "--numerics", "exact"]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "simulator ready on http://127.0.0.1:" in line, line
        assert time.monotonic() - began < 30
        url = line.split(" on ")[1].split(" ")[0]
        with urllib.request.urlopen(f"{url}/server_info") as answer:
            info = json.load(answer)
        assert info["simulator_faults"] == ["state-not-restored", "stale-track-rows"]
        assert info["mamba_radix_cache_strategy"] == "extra_buffer"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()


def test_list_and_refusals() -> None:
    listed = CliRunner().invoke(command, ["--list-faults"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == [f.name for f in FAULTS]
    wrong = CliRunner().invoke(command, ["--fault", "nope"])
    assert wrong.exit_code == 2
    assert "unknown fault 'nope'" in wrong.output
    wrong = CliRunner().invoke(command, ["--page-size", "16"])
    assert wrong.exit_code == 2
    assert "no_buffer needs page_size 1" in wrong.output
