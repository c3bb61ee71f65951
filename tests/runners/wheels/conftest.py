"""Copies of published releases to read and to change."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.runners.site import Site
from tests.runners.wheels.fetch import release


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Site]:
    """A fresh copy of what is kept of a release."""

    def copy(version: str) -> Site:
        return Site.at(Path(shutil.copytree(release(version), tmp_path / version)))

    return copy
