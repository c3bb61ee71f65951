"""Shards on a Ray cluster: a thin adapter over the shard function, one actor a shard (extra ``ray``).

An actor stays on the node where it was first put: only there are the journal and the trail with which a lost
one is gone on with.
"""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from soak.config import ConfigError
from soak.shards.exposed import page_at
from soak.shards.shard import Progress, run_shard
from soak.shards.task import ShardTask
from soak.shards.worker import Ended

_LOOK_S = 0.5
_PAGE_S = 2.0


class _Shard:
    """What runs in an actor: one shard, and what it has said since somebody asked last."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._said: list[str] = []
        self._progress: dict[str, Any] | None = None

    async def run(self, task: ShardTask) -> dict[str, Any]:
        """``summary``, or ``kind`` and ``words`` of what went wrong."""
        try:
            summary = await run_shard(task, self._stop, say=self._said.append, progress=self._note)
        except Exception as error:
            known = type(error).__name__ in ("ConfigError", "TargetUnusable", "Interrupted")
            words = str(error) if known else "".join(traceback.format_exception(error))
            return {"kind": type(error).__name__, "words": words}
        return {"summary": summary}

    def _note(self, seen: Progress) -> None:
        self._progress = seen.as_dict()

    async def heard(self) -> tuple[list[str], dict[str, Any] | None]:
        """Lines for people, each once, and how far it is."""
        said, self._said[:] = list(self._said), []
        return said, self._progress

    async def page(self) -> str | None:
        """Its metrics."""
        port = self._progress["port"] if self._progress else 0
        return await asyncio.to_thread(page_at, port) if port else None

    async def stop(self) -> None:
        """Let it end: it takes its requests back and tells its summary."""
        self._stop.set()


class RayWorker:
    """One shard in an actor. node: the id of the node it is put on."""

    def __init__(
        self,
        ray: Any,
        node: str,
        task: ShardTask,
        say: Callable[[str], None],
        progress: Callable[[Progress], None],
    ) -> None:
        self._ray, self._node, self._task = ray, node, task
        self._say, self._progress = say, progress
        self._actor: Any = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Nobody's here."""
        return None

    @property
    def port(self) -> int:
        """Metrics are asked for through Ray, and served nowhere on this machine."""
        return 0

    async def run(self) -> Ended:
        """Start it and listen until it has ended."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        placed = NodeAffinitySchedulingStrategy(node_id=self._node, soft=False)
        kind = self._ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy=placed)(_Shard)
        actor = self._actor = kind.remote()
        try:
            done = asyncio.ensure_future(_result(actor.run.remote(self._task)))
            if self._stopping:
                actor.stop.remote()
            while not done.done():
                await asyncio.wait({done}, timeout=_LOOK_S)
                await self._listen(actor)
            told = await done
        except self._ray.exceptions.RayActorError as error:
            self._say(f"its actor is gone: {str(error).splitlines()[0]}")
            return Ended(code=1)
        finally:
            self._actor = None
            self._ray.kill(actor)
        return Ended(told.get("summary"), told.get("kind", ""), told.get("words", ""))

    async def _listen(self, actor: Any) -> None:
        said, progress = await _result(actor.heard.remote())
        for line in said:
            self._say(line)
        if progress is not None:
            self._progress(Progress(**progress))

    def page(self) -> str | None:
        """Its metrics; blocks."""
        actor = self._actor
        if actor is None:
            return None
        try:
            page: str | None = self._ray.get(actor.page.remote(), timeout=_PAGE_S)
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
            return None
        return page

    def stop(self) -> None:
        """Let it end."""
        self._stopping = True
        if self._actor is not None:
            self._actor.stop.remote()


async def _result(reference: Any) -> Any:
    return await asyncio.wrap_future(reference.future())


@contextmanager
def cluster(
    address: str,
) -> Iterator[Callable[[ShardTask, Callable[[str], None], Callable[[Progress], None]], RayWorker]]:
    """A connection to the cluster; what it gives makes the worker of a task, on the shard's own node.

    address: ``auto``, ``HOST:PORT``, ``ray://...``, or ``local`` for one on this machine alone. Raises
    ConfigError where Ray is missing or the cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "--ray: Ray is not installed here: pip install 'soak[ray]' (on every node, with soak). For the "
            "cores of this machine alone --workers N needs no Ray"
        ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning", include_dashboard=False)
    except Exception as error:  # Ray has no type of its own for it
        raise ConfigError(f"--ray {address}: no cluster answers there: {error}") from error
    try:
        nodes = sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])
        placed: dict[int, str] = {}
        turns = itertools.cycle(nodes)

        def hire(
            task: ShardTask, say: Callable[[str], None], progress: Callable[[Progress], None]
        ) -> RayWorker:
            if task.number not in placed:
                placed[task.number] = next(turns)
            return RayWorker(ray, placed[task.number], task, say, progress)

        yield hire
    finally:
        ray.shutdown()
