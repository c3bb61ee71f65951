"""Run a command that must not outlive its owner: ``supervise.py GRACE_S COMMAND...``.

The command gets its own process group, and its output is ours. The owner holds the write end of our stdin;
when that closes, because the owner let go or died by whatever signal, the group gets SIGTERM and, GRACE_S
seconds later, SIGKILL. Ends when the command has ended, with its exit status. Standard library only.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

POLL_S = 0.2
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux to kill the command if this very process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def signal_group(group: int, number: int) -> bool:
    """Signal what is left of the group; False when nothing is."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def main() -> int:
    grace_s, command = float(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle: our stdin closes with it
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509  (this process has one thread)
    )
    while child.poll() is None:
        if select.select([sys.stdin], [], [], POLL_S)[0] and not os.read(sys.stdin.fileno(), 1):
            break
    signal_group(child.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and (child.poll() is None or signal_group(child.pid, 0)):
        time.sleep(POLL_S)
    signal_group(child.pid, signal.SIGKILL)
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
