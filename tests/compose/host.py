"""A container engine for the tests, and the words to use it by. It ends with the test run, and all in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[2]
KIT = Path(__file__).parent / "kit"
WORK = ROOT / "build" / "compose"
FETCH = """
import sys, urllib.request as u
print(u.urlopen(u.Request(sys.argv[1], {data}, {headers}), timeout=10).read().decode())
"""


class Failed(Exception):
    """A command of the engine that failed, with what it said."""


class Engine(AbstractContextManager["Engine"]):
    """dockerd in namespaces of its own (see kit/engine.py), as a context manager."""

    def __init__(self) -> None:
        # Short: the path of a Unix socket may have 107 characters.
        self.state = Path(tempfile.gettempdir()) / f"soak-compose-{os.getpid()}-{time.time_ns() % 10**6}"
        self._process: subprocess.Popen[str] | None = None
        self._pid = 0

    def __enter__(self) -> Engine:
        self._process = subprocess.Popen(
            [sys.executable, str(KIT / "engine.py"), str(WORK / "tools"), str(self.state)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        word, _, pid = self._process.stdout.readline().partition(" ")
        if word != "ready":
            self._process.wait()
            raise Failed("the container engine did not start; what it said is above")
        self._pid = int(pid)
        (self.state / "config").mkdir()
        (self.state / "config" / "cli-plugins").symlink_to(WORK / "tools" / "cli-plugins")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def docker(self, *words: str, env: Mapping[str, str] | None = None, timeout: float = 300) -> str:
        """What a docker command printed on stdout. Raises Failed with all that it printed."""
        done = self.attempt(*words, env=env, timeout=timeout)
        if done.returncode:
            said = f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
            raise Failed(f"docker {' '.join(words)} ended with {done.returncode}:\n{said}")
        return done.stdout

    def attempt(
        self, *words: str, env: Mapping[str, str] | None = None, timeout: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """A docker command, whatever comes of it. Nothing of the caller's environment reaches it."""
        environment = {
            "PATH": f"{WORK}/tools/bin:/usr/bin:/bin",
            "HOME": str(self.state),
            "DOCKER_HOST": f"unix://{self.state}/docker.sock",
            "DOCKER_CONFIG": str(self.state / "config"),
            "BUILDKIT_PROGRESS": "plain",
            **(env or {}),
        }
        return subprocess.run(
            [str(WORK / "tools" / "bin" / "docker"), *words],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )

    def build(self, tag: str, file: Path, context: Path, *more: str, timeout: float = 300) -> str:
        """Build an image; what the build printed. Raises Failed."""
        words = ["build", "--pull=false", "-t", tag, "-f", str(file), *more, str(context)]
        return self.docker(*words, timeout=timeout)

    def inspect(self, thing: str, kind: str = "image") -> dict[str, Any]:
        """What the engine knows of an image, container or volume."""
        found: list[dict[str, Any]] = json.loads(self.docker("inspect", "--type", kind, thing))
        return found[0]

    def fetch(self, url: str, post: object = None) -> Any:
        """JSON (or text) from a published port: they are on the loopback of the engine's own network."""
        data = None if post is None else json.dumps(post).encode()
        code = FETCH.format(data=repr(data), headers={"Content-Type": "application/json"})
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self._pid}/ns/net", sys.executable, "-c", code, url],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{url}: {done.stderr.strip().splitlines()[-1]}")
        try:
            return json.loads(done.stdout)
        except ValueError:
            return done.stdout
