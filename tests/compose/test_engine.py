"""The engine ends with its owner, however that ends, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.compose.host import ROOT, Engine, Failed

OWNER = """
import time
from tests.compose.host import Engine
with Engine() as engine:
    print(engine.state, flush=True)
    time.sleep(600)
"""
GONE_S = 30.0


def left_of(state: Path) -> list[str]:
    """Processes that name the folder, control groups, the folder."""
    found = [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/{state.name}")]
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if state.name.encode() in line.read_bytes():
                found.append(str(line))
        except OSError:  # it has ended since
            continue
    return found + ([str(state)] if state.exists() else [])


def test_a_killed_owner_takes_the_engine_with_it(engine: Engine) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        state = Path(owner.stdout.readline().strip())
        assert state.is_dir() and state != engine.state and left_of(state)
        owner.kill()
    deadline = time.monotonic() + GONE_S
    while left_of(state) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_of(state) == []
    assert engine.docker("ps", "-q") == "", "the other engine is untouched"


def test_there_is_no_way_out_of_the_engines_network(engine: Engine) -> None:
    routes = engine.docker("run", "--rm", "--network", "host", "soak-test/base", "cat", "/proc/net/route")
    assert all(line.split()[1] != "00000000" for line in routes.splitlines()[1:]), "a default route"
    try:
        engine.fetch("http://192.0.2.1/")  # an address that is nobody's
    except Failed as error:
        assert "unreachable" in str(error)
    else:
        raise AssertionError("somebody answered")
