"""One engine for the whole tier, with the base images in it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.compose.host import KIT, ROOT, WORK, Engine

CANNOT = 3  # of kit/setup.sh: this machine cannot run containers so, and its last line says why


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here wants the engine."""
    for item in items:
        if item.path.is_relative_to(KIT.parent):
            item.add_marker(pytest.mark.compose)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    setup = subprocess.run([KIT / "setup.sh"], capture_output=True, text=True, check=False)
    if setup.returncode == CANNOT:
        pytest.skip(setup.stdout.strip().splitlines()[-1])
    assert setup.returncode == 0, setup.stdout + setup.stderr
    usr = (ROOT / "build" / "stack" / "bin").resolve().parent
    images = KIT / "images"
    with Engine() as one:
        one.docker("import", str(WORK / "base.tar"), "soak-test/base")
        one.build("soak-test/build", images / "build.Dockerfile", WORK / "wheels")
        one.build("prom/prometheus:v3.5.0", images / "prometheus.Dockerfile", usr)
        one.build("prom/alertmanager:v0.28.1", images / "alertmanager.Dockerfile", usr)
        yield one
