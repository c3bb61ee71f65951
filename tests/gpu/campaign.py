"""Many servers and what is asked of each, side by side, for as long as a machine is lent.

Servers of one model wait for the first of it, which compiles kernels into the cache on disk; after that
each has a thread of its own: start, warm up, then its soaks and commands one after the other. What a soak
found is printed and written to OUT/figures.json as it ends, so nothing found is lost when it is cut off."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.lab import Soak, figures, line, say, start
from tests.gpu.servers import Server

Task = Soak | Callable[[Server, Path], None]


@dataclass
class Post:
    """A server and what is asked of it, in order.

    It starts when the servers in ``after`` are ready, those in ``behind`` have stopped, and ``needs`` exists.
    """

    server: Server
    tasks: Sequence[Task]
    after: Sequence[str] = ()
    behind: Sequence[str] = ()
    needs: Path | None = None
    warm_up: bool = True
    may_die: bool = False


@dataclass
class Campaign:
    """Posts under way; figures are added by their threads."""

    out: Path
    deadline: float
    found: list[dict[str, Any]] = field(default_factory=list)
    ready: dict[str, threading.Event] = field(default_factory=dict)
    done: dict[str, threading.Event] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def left(self) -> float:
        """Seconds until everything must have stopped."""
        return self.deadline - time.monotonic()

    def keep(self, figure: dict[str, Any]) -> None:
        """Print one soak's line and write all figures so far."""
        with self.lock:
            self.found.append(figure)
            print(line(figure), flush=True)
            (self.out / "figures.json").write_text(json.dumps(self.found, indent=1))

    def soak(self, soak: Soak) -> None:
        """One soak from its start to its figures; it is killed where it does not end by itself."""
        process = start(soak, self.out)
        try:
            process.wait(min(soak.seconds + 75, max(1.0, self.left())))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        self.keep(figures(soak, self.out, process.returncode))

    def man(self, post: Post) -> None:
        """One server's thread."""
        server = post.server
        try:
            for event in (*(self.ready[n] for n in post.after), *(self.done[n] for n in post.behind)):
                event.wait(max(0.0, self.left()))
            while post.needs is not None and not post.needs.exists() and self.left() > 0:
                time.sleep(0.5)
            if self.left() < 30:
                return
            began = time.monotonic()
            server.start()
            if not server.wait(min(420, self.left())):
                print(f"{server.name}: DID NOT START", flush=True)
                return
            print(f"{server.name}: up after {time.monotonic() - began:.0f} s", flush=True)
            if post.warm_up:
                server.warm_up()
            print(f"{server.name}: ready after {time.monotonic() - began:.0f} s", flush=True)
            self.ready[server.name].set()
            for task in post.tasks:
                if self.left() < 20 or (not server.alive() and not post.may_die):
                    break
                if isinstance(task, Soak):
                    self.soak(task)
                else:
                    task(server, self.out)
            print(f"{server.name}: alive {server.alive()}; batches {server.prefill_batches()}", flush=True)
        except Exception as wrong:  # one server's trouble must not end the others
            print(f"{server.name}: {type(wrong).__name__}: {wrong}", flush=True)
        finally:
            self.ready[server.name].set()
            server.stop()
            self.done[server.name].set()
            print(f"{server.name}: done, {self.left():.0f} s left", flush=True)

    def run(self, posts: Sequence[Post]) -> None:
        """All posts to their end, or to the deadline."""
        self.out.mkdir(parents=True, exist_ok=True)
        self.ready = {p.server.name: threading.Event() for p in posts}
        self.done = {p.server.name: threading.Event() for p in posts}
        threads = [threading.Thread(target=self.man, args=(p,), daemon=True) for p in posts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self.left()))
        for post in posts:
            post.server.stop()


def command(*words: str, within_s: float = 120) -> Task:
    """A task that runs ``python -m WORDS``; ``{url}`` and ``{out}`` stand for the server's and the folder."""

    def task(server: Server, out: Path) -> None:
        say([sys.executable, "-m", *(w.format(url=server.url, out=out) for w in words)], within_s)

    return task
