"""The bench: rounds of every client on one stub, by turns, each in a process of its own.

By turns, and compared with their neighbours, since nothing else is fair on a machine that others use too.
"""

from __future__ import annotations

import contextlib
import selectors
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from soak.bench.load.figures import Round
from soak.bench.load.peers import Peer, PeerRun
from soak.bench.machine import machine

AT_ONCE = 64
SHORT_TOKENS = 8
STREAMED_TOKENS = 64
RATES = (50, 200, 1000)
_PATIENCE_S = 60.0
LONGEST_S = 60.0
"""Seconds after which a round ends with what it has."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. rounds: of each client and kind; requests: in each, a fifth if streamed."""

    rounds: int = 7
    requests: int = 5000
    rates: tuple[int, ...] = RATES
    rate_seconds: float = 20.0
    peer_rounds: int = 3
    """Of each peer, each two runs of a whole program."""
    limits: bool = True
    """Whether the client written by hand runs as well."""


SHORT = Extent(rounds=5, requests=1000, rates=(200,), rate_seconds=5.0, peer_rounds=0, limits=False)
"""For CI."""


@dataclass(slots=True)
class Measured:
    """All rounds. short, streamed: by client; rates: by rate and client; peers: by name."""

    short: dict[str, list[Round]] = field(default_factory=dict)
    streamed: dict[str, list[Round]] = field(default_factory=dict)
    rates: dict[int, dict[str, list[Round]]] = field(default_factory=dict)
    peers: dict[str, PeerRun] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    machine: dict[str, str] = field(default_factory=dict)


class BenchFailed(RuntimeError):
    """A process of the bench that did not do what it is for; the message has its last words."""


@contextlib.contextmanager
def stub() -> Iterator[str]:
    """The URL of a stub in a process of its own, which ends with the block or with this process."""
    with _process("-m", "soak", "bench", "stub", "--port", "0", "--while-stdin") as child:
        yield _line(child).decode().split()[-1]


@contextlib.contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        try:
            yield child
        finally:
            with contextlib.suppress(OSError):
                child.stdin.close()  # type: ignore[union-attr]
            try:
                child.wait(10.0)
            except subprocess.TimeoutExpired:
                child.kill()


def _line(child: subprocess.Popen[bytes], within_s: float = _PATIENCE_S) -> bytes:
    """The next line it writes. Raises BenchFailed where none comes."""
    assert child.stdout is not None  # noqa: S101 - for the type checker: it is a pipe
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdout, selectors.EVENT_READ)
        if not ready.select(within_s):
            raise BenchFailed(f"{' '.join(map(str, child.args[1:]))}: no word for {within_s:.0f} s")  # type: ignore[index]
    line = child.stdout.readline()
    if not line:
        raise BenchFailed(
            f"{' '.join(map(str, child.args[1:]))} ended with {child.wait()}; its words are above"  # type: ignore[index]
        )
    return line


class Client:
    """One client's process."""

    def __init__(self, name: str, child: subprocess.Popen[bytes]) -> None:
        self.name, self._child = name, child

    def round(self, **task: Any) -> Round:
        """One round. Raises BenchFailed, for answers that were not as they should be, too."""
        assert self._child.stdin is not None  # noqa: S101 - for the type checker: it is a pipe
        self._child.stdin.write(orjson.dumps(task) + b"\n")
        self._child.stdin.flush()
        done = Round.of(orjson.loads(_line(self._child, task["seconds"] + _PATIENCE_S)))
        if not done.requests or done.failed:
            raise BenchFailed(f"{self.name}: {done.failed} of {done.requests} answers were no good")
        return done


@contextlib.contextmanager
def client(name: str, url: str) -> Iterator[Client]:
    """A client's process, warm."""
    with _process("-m", "soak.bench.load.child", name, url) as child:
        made = Client(name, child)
        made.round(requests=100, seconds=LONGEST_S, at_once=AT_ONCE, tokens=SHORT_TOKENS, stream=False)
        yield made


def measure(
    extent: Extent, peers: tuple[Peer, ...] = (), say: Callable[[str], None] = lambda _words: None
) -> Measured:
    """All rounds of all clients. Raises BenchFailed."""
    done = Measured(machine=machine())
    names = ("bare", "client", "soak") + (("by-hand",) if extent.limits else ())
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(stub())
        clients = [stack.enter_context(client(name, url)) for name in names]
        for number in range(extent.rounds):
            order = clients[number % 2 :: 1] + clients[: number % 2]  # nobody always runs first
            for stream, tokens, into in (
                (False, SHORT_TOKENS, done.short),
                (True, STREAMED_TOKENS, done.streamed),
            ):
                say(f"round {number + 1} of {extent.rounds}, {'streamed' if stream else 'short'} answers")
                for one in order:
                    if not (stream and one.name == "by-hand"):
                        into.setdefault(one.name, []).append(
                            one.round(
                                requests=max(1, extent.requests // (5 if stream else 1)),
                                seconds=LONGEST_S,
                                at_once=AT_ONCE,
                                tokens=tokens,
                                stream=stream,
                            )
                        )
            for peer in peers if number < extent.peer_rounds else ():
                if peer.name not in done.missing:
                    say(f"round {number + 1} of {extent.rounds}, {peer.name}")
                    _peer_round(done, peer, url)
        for rate in extent.rates:
            say(f"open loop at {rate}/s")
            for one in clients:
                if one.name in ("bare", "soak"):
                    done.rates.setdefault(rate, {})[one.name] = [
                        one.round(seconds=extent.rate_seconds, rate=rate, tokens=SHORT_TOKENS)
                    ]
    return done


def _peer_round(done: Measured, peer: Peer, url: str) -> None:
    try:
        seen = peer.round(url, AT_ONCE, SHORT_TOKENS)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        done.missing[peer.name] = str(error)
        return
    done.peers.setdefault(peer.name, PeerRun(peer.version, [])).rounds.append(seen)
