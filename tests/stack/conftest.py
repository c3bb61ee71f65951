"""One stack for the whole tier: it warms up while promtool and the compiler work; its own tests come last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.stack.kit.stack import Stack, start_stack
from tests.stack.kit.tools import tools


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all of this folder, so that a new module cannot be forgotten, and put what uses the stack last."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.stack)
    items.sort(key=uses_the_stack)


def uses_the_stack(item: pytest.Item) -> bool:
    """Whether a test asks for the running stack."""
    return "stack" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Soaks, simulators, Prometheus, Alertmanagers and a webhook, all running."""
    with ExitStack() as keep:
        yield start_stack(tools(), tmp_path_factory.mktemp("stack"), keep)


@pytest.fixture(scope="session", autouse=True)
def started_early(request: pytest.FixtureRequest) -> None:
    """Start the stack before the first test, if any test will use it."""
    here = Path(__file__).parent
    if any(uses_the_stack(item) and here in item.path.parents for item in request.session.items):
        request.getfixturevalue("stack")
