"""Start and stop a real SGLang server for a test. It must never leave a process behind, nor show a key.

The server runs under ``kit/supervise.py``, which ends the whole process group when the test process lets go
of a pipe or dies. Models and logs live under ``build/real-sglang/`` of the repository.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KIT = Path(__file__).resolve().parent / "kit"
ROOT = KIT.parents[2]
VENV = ROOT / ".venv-sglang"
BUILD = ROOT / "build" / "real-sglang"

READY_TIMEOUT_S = 300.0
"""Start-up takes 20 to 50 s alone on two cores, and minutes when they are shared."""
GRACE_S = 15.0
"""What a server gets between SIGTERM and SIGKILL; it drains in about 6 s."""


class KitError(RuntimeError):
    """The environment is missing, a model could not be made, or a server did not come up."""


@dataclass(slots=True)
class Server:
    """A running server. ``pid`` is its supervisor's; ``api_key`` is kept out of the representation."""

    url: str
    pid: int
    log: Path
    api_key: str | None = field(repr=False)
    process: subprocess.Popen[bytes] = field(repr=False)

    def alive(self) -> bool:
        """Whether the server has not ended."""
        return self.process.poll() is None

    def post(self, path: str, body: object) -> Any:
        """POST JSON with the key and return the decoded answer; HTTPError for anything but 2xx."""
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def log_tail(self, lines: int = 40) -> str:
        """End of the log, each line cut to 300 characters, without the key (SGLang logs its arguments)."""
        text = self.log.read_text(errors="replace")
        if self.api_key:
            text = text.replace(self.api_key, "***")
        return "\n".join(line[:300] for line in text.splitlines()[-lines:])

    def stop(self) -> None:
        """End the whole process group and wait for it. Harmless when it has ended already."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait(GRACE_S + 30.0)


def require_environment() -> None:
    """Raise KitError unless ``make real-sglang`` has built the server's environment."""
    if not (VENV / ".soak-stamp").is_file():
        raise KitError(f"no SGLang environment at {VENV.name}: run make real-sglang")


def model(name: str) -> Path:
    """Folder of the tiny model ``name``, made on first use and again when its recipe changes."""
    recipe = KIT / "models" / name / "config.json"
    if not recipe.is_file():
        known = ", ".join(sorted(folder.name for folder in (KIT / "models").iterdir()))
        raise KitError(f"no model {name!r} in the kit; there are {known}")
    require_environment()
    digest = hashlib.sha256(recipe.read_bytes() + (KIT / "make_model.py").read_bytes()).hexdigest()[:12]
    # The folder's name becomes the served model's name.
    folder = BUILD / "models" / digest / name
    if not (folder / "model.safetensors").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = folder.with_name(f"{name}.{os.getpid()}")
        made = subprocess.run(
            [VENV / "bin" / "python", "-W", "ignore", KIT / "make_model.py", name, partial],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise KitError(f"make_model.py {name} ended with {made.returncode}:\n{made.stderr[-2000:]}")
        partial.rename(folder)
    return folder


def free_port() -> int:
    """A loopback port nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def start(
    model_name: str,
    *,
    extra_args: Sequence[str] = (),
    api_key: str | None = None,
    faults: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    port: int | None = None,
) -> Server:
    """Start a server for a model of the kit and wait until it answers.

    ``extra_args`` go to ``sglang.launch_server`` and override ``kit/serve.sh``; ``faults`` are names of
    ``kit/corruptions/*.py``; port: any free one by default. Raises KitError, with the end of the log, if it
    is not ready in READY_TIMEOUT_S.
    """
    for fault in faults:
        if not (KIT / "corruptions" / f"{fault}.py").is_file():
            known = ", ".join(sorted(path.stem for path in (KIT / "corruptions").glob("*.py")))
            raise KitError(f"no corruption {fault!r} in the kit; there are {known}")
    folder = model(model_name)
    port = port or free_port()
    log = BUILD / "logs" / f"{model_name}-{port}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-I", str(KIT / "supervise.py"), str(GRACE_S)]
    command += [str(KIT / "serve.sh"), str(folder), str(port), *extra_args]
    if api_key is not None:
        command += ["--api-key", api_key]
    environment = {**os.environ, **(env or {}), "SGLANG_KIT_VENV": str(VENV)}
    environment["SGLANG_KIT_CORRUPTIONS"] = ",".join(faults)
    environment.pop("PYTHONPATH", None)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    server = Server(f"http://127.0.0.1:{port}", process.pid, log, api_key, process)
    try:
        _wait_until_ready(server, model_name)
    except BaseException:
        server.stop()
        raise
    return server


def _wait_until_ready(server: Server, model_name: str) -> None:
    """Poll ``/health``, which needs no key, answers 503 until the warm-up is over and takes a second."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if not server.alive():
            status = server.process.returncode
            raise KitError(
                f"{model_name} server ended with {status} before it was ready:\n{server.log_tail()}"
            )
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=30) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    raise KitError(f"{model_name} server not ready after {READY_TIMEOUT_S:.0f} s:\n{server.log_tail()}")
