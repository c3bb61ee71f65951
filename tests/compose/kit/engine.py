"""A container engine that cannot outlive its owner: ``engine.py TOOLS STATE``. Linux, root, no packages.

dockerd runs in namespaces of its own (mounts, network, processes): no bridge, packet filter rule, mount or
process of it is ever seen outside, and all of them are gone when its first process is. Containers reach each
other and nothing else, as the namespace has a loopback and no way out. The owner holds the write end of our
stdin; when that closes, because the owner let go or died by whatever signal, all ends and STATE is removed.

Prints ``ready PID`` once the engine answers on STATE/docker.sock; PID is where ``nsenter`` finds the network.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
START_S = 60.0
GONE_S = 20.0
DATA_BYTES = 8 << 30  # at most; the images and containers of the tests take about 2 GB
NAMESPACES = ("--mount", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--mount-proc")


def loopback_up() -> None:
    """A new network namespace has its loopback down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def inside(tools: Path, state: Path) -> int:
    """Be the first process of the namespaces: start dockerd and leave with it."""
    loopback_up()
    data = state / "data"
    data.mkdir()
    # In memory: quicker, and gone with the namespace without a walk over some ten thousand files.
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DATA_BYTES}", "tmpfs", data], check=True)
    environment = {
        "PATH": f"{tools}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(state),
        "TMPDIR": str(state),
    }
    command = [
        *("dockerd", "--data-root", str(data), "--exec-root", str(state / "exec")),
        *("-H", f"unix://{state}/docker.sock", "-p", str(state / "docker.pid")),
        *("--cgroup-parent", f"/{state.name}", "--log-level", "warn"),
    ]
    return subprocess.run(command, env=environment, check=False).returncode


def remove_cgroups(name: str) -> bool:
    """Whether none is left. The kernel keeps a control group until somebody removes it, when it is empty."""
    left = False
    for top in (p for pattern in (name, f"*/{name}") for p in Path("/sys/fs/cgroup").glob(pattern)):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
        left = left or top.exists()
    return not left


def answers(path: Path) -> bool:
    """Whether the engine serves its API."""
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.settimeout(5)
            one.connect(str(path))
            one.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in one.recv(64)
        except OSError:
            return False


def first_process(unshare: int) -> int:
    """The namespaces' first process, by its number out here."""
    return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text(encoding="ascii").split()[0])


def outside(tools: Path, state: Path) -> int:
    """Hold the namespaces for as long as stdin is open, then remove every trace."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle: our stdin closes with it
    state.mkdir(mode=0o711, exist_ok=True)
    with (state / "dockerd.log").open("wb") as log:
        child = subprocess.Popen(
            ["unshare", *NAMESPACES, sys.executable, __file__, "--inside", str(tools), str(state)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509
        )
    try:
        deadline = time.monotonic() + START_S
        while not answers(state / "docker.sock"):
            if child.poll() is not None or time.monotonic() > deadline:
                said = (state / "dockerd.log").read_text(errors="replace")[-3000:]
                print(f"the container engine did not start; it said:\n{said}", file=sys.stderr)
                return 1
            if select.select([sys.stdin], [], [], 0.1)[0]:
                return 0
        print("ready", first_process(child.pid), flush=True)
        while child.poll() is None and not select.select([sys.stdin], [], [], 1.0)[0]:
            pass
        return 0
    finally:
        child.kill()
        child.wait()
        gone = time.monotonic() + GONE_S
        while time.monotonic() < gone:
            shutil.rmtree(state, ignore_errors=True)
            if remove_cgroups(state.name) and not state.exists():
                break
            time.sleep(0.1)


def main() -> int:
    """Both halves: outside, and with --inside as the first process of the namespaces."""
    within = sys.argv[1] == "--inside"
    tools, state = (Path(given).resolve() for given in sys.argv[2 if within else 1 :])
    return inside(tools, state) if within else outside(tools, state)


if __name__ == "__main__":
    sys.exit(main())
