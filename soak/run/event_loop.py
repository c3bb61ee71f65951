"""The event loop soak runs on: uvloop, eager tasks where Python has them, a garbage collector at rest.

What each of these gains is in docs/performance.md. Must change nothing that a run sends or says.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Iterator

_YOUNG, _MIDDLE, _OLD = 50_000, 20, 50
"""Objects before the youngest generation is looked through, and how many of its passes make the next one's.
What a request leaves behind holds no cycle, so that reference counts alone free it: passes find next to
nothing."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, else asyncio's own."""
    loop: asyncio.AbstractEventLoop
    try:
        import uvloop
    except ImportError:  # Windows has none
        loop = asyncio.new_event_loop()
    else:
        loop = uvloop.new_event_loop()
    if sys.version_info >= (3, 12):
        loop.set_task_factory(asyncio.eager_task_factory)
    return loop


def runner() -> asyncio.Runner:
    """A runner on such a loop."""
    return asyncio.Runner(loop_factory=new_event_loop)


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """While load is sent: what was made before is left out of collections, and they are rare.

    A full pass over a few hundred thousand objects holds the loop for tens of milliseconds, which would
    count as schedule lag. Ends as it was before.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
