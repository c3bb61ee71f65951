from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from soak.export.exposition import Exposition, MetricsUnavailable
from soak.export.metrics import RunMetrics
from tests.export.samples import observation, probe, report


@pytest.fixture
async def served() -> AsyncIterator[Exposition]:
    registry = CollectorRegistry()
    metrics = RunMetrics(registry)
    metrics.observe_load(observation())
    metrics.observe_probe(probe(size=0.1))
    metrics.set_report(report())
    exposition = Exposition(registry, port=0)
    await exposition.start()
    yield exposition
    await exposition.stop()


async def test_prometheus_can_read_the_page(served: Exposition) -> None:
    async with aiohttp.ClientSession() as session, session.get(served.url) as response:
        assert response.status == 200
        assert response.headers["Content-Type"].startswith("text/plain; version=")
        found = {family.name for family in parse_text(await response.text())}
    assert {"soak_requests", "soak_divergence_k3_nats", "soak_verdict"} <= found


async def test_openmetrics_on_request(served: Exposition) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    async with aiohttp.ClientSession() as session, session.get(served.url, headers=accept) as response:
        assert "openmetrics" in response.headers["Content-Type"]
        text = await response.text()
    found = {f.name for f in openmetrics.text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]
    assert "soak_amnesia_ratio" in found


async def test_health_and_nothing_else(served: Exposition) -> None:
    base = served.url.removesuffix("/metrics")
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{base}/healthz") as response:
            assert (response.status, await response.text()) == (200, "ok\n")
        async with session.get(f"{base}/") as response:
            assert response.status == 404
        async with session.post(f"{base}/metrics") as response:
            assert response.status == 405


async def test_loopback_unless_told_otherwise(served: Exposition) -> None:
    assert served.url.startswith("http://127.0.0.1:")


async def test_a_taken_port_is_said_with_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MetricsUnavailable, match=rf"^metrics\.port: 127\.0\.0\.1:{port} is taken"):
            await Exposition(CollectorRegistry(), port=port).start()


async def test_a_foreign_address_is_said_with_its_key() -> None:
    with pytest.raises(MetricsUnavailable, match=r"^metrics\.host: 203\.0\.113\.1:0 cannot be opened"):
        await Exposition(CollectorRegistry(), host="203.0.113.1", port=0).start()


async def test_stopping_frees_the_port_and_can_be_repeated() -> None:
    exposition = Exposition(CollectorRegistry(), port=0)
    await exposition.stop()
    await exposition.start()
    port = int(exposition.url.rsplit(":", 1)[1].removesuffix("/metrics"))
    await exposition.stop()
    await exposition.stop()
    with pytest.raises(RuntimeError):
        _ = exposition.url
    socket.create_server(("127.0.0.1", port)).close()
