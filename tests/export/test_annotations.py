"""Annotations reach Grafana, in the end; and nothing that Grafana does reaches soak."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from soak.export.annotations import DROPPED, QUEUED, SENT, Annotation, GrafanaAnnotations, address
from tests.export.grafana import TOKEN, FakeGrafana

MARK = Annotation(1_772_366_400.25, "CORRUPT by absolute", ("soak", "alarm"))


class Heard:
    """What was said and counted."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.outcomes: list[str] = []

    def to(self, url: str, token: str = TOKEN, dashboard: str | None = None) -> GrafanaAnnotations:
        return GrafanaAnnotations(
            url,
            token,
            dashboard=dashboard,
            say=self.words.append,
            count=self.outcomes.append,
            first_wait_s=0.01,
        )


@pytest.fixture
def grafana() -> Iterator[FakeGrafana]:
    fake = FakeGrafana()
    yield fake
    fake.close()


def test_an_annotation_arrives_with_time_text_and_tags(grafana: FakeGrafana) -> None:
    heard = Heard()
    marks = heard.to(grafana.url)
    marks.put(MARK)
    assert marks.close(10) == 0
    (got,) = grafana.annotations
    assert got["time"] == 1_772_366_400_250
    assert got["text"] == MARK.text
    assert got["tags"] == ["soak", "alarm"]
    assert got["dashboardId"] is None
    assert (heard.outcomes, heard.words) == ([SENT], [])


def test_a_dashboard_is_looked_up_once(grafana: FakeGrafana) -> None:
    marks = Heard().to(grafana.url, dashboard="soak-overview")
    marks.put(MARK)
    marks.put(MARK)
    assert marks.close(10) == 0
    assert [got["dashboardId"] for got in grafana.annotations] == [17, 17]
    assert sum(asked.startswith("GET") for asked in grafana.asked) == 1


def test_a_dashboard_that_is_not_there_costs_only_the_place(grafana: FakeGrafana) -> None:
    heard = Heard()
    marks = heard.to(grafana.url, dashboard="gone")
    marks.put(MARK)
    marks.close(10)
    assert [got["dashboardId"] for got in grafana.annotations] == [None]
    assert heard.words == [
        f"grafana.url: {grafana.url}: no dashboard gone: annotations go to all dashboards instead"
    ]


def test_trouble_is_waited_out_and_said_once(grafana: FakeGrafana) -> None:
    heard = Heard()
    grafana.trouble.extend([-503, -503, None, 502, -429, 200])
    marks = heard.to(grafana.url)
    marks.put(MARK)
    grafana.wait(7)
    marks.close(10)
    assert len(grafana.annotations) == 1
    assert heard.outcomes == [SENT]
    told = [words.removeprefix(f"grafana.url: {grafana.url}: ") for words in heard.words]
    assert told == [
        "no usable answer, trying again: GrafanaServerError",  # said once for two
        "no usable answer, trying again: ConnectionError",
        "no usable answer, trying again: TypeError",  # what grafana-api makes of a proxy's page
        "it answers 429; trying again",
        "no usable answer, trying again: JSONDecodeError",
        "annotations arrive again",
    ]


def test_what_is_refused_is_dropped_and_the_next_one_sent(grafana: FakeGrafana) -> None:
    heard = Heard()
    grafana.trouble.append(-400)
    marks = heard.to(grafana.url)
    marks.put(MARK)
    marks.put(MARK)
    marks.close(10)
    assert heard.outcomes == [DROPPED, SENT]
    assert "refused with 400" in heard.words[0]


def test_a_wrong_token_is_said_without_the_token(grafana: FakeGrafana) -> None:
    heard = Heard()
    marks = heard.to(grafana.url, token="a-wrong-token-x")
    marks.put(MARK)
    marks.close(10)
    assert heard.outcomes == [DROPPED]
    assert "refused with 401" in heard.words[0] and "a-wrong-token-x" not in heard.words[0]


def test_a_grafana_that_is_down_holds_nobody_up() -> None:
    gone = FakeGrafana()
    gone.close()
    heard = Heard()
    marks = heard.to(gone.url)
    started = time.perf_counter()
    for _ in range(QUEUED + 50):
        marks.put(MARK)
    assert time.perf_counter() - started < 1.0
    assert marks.close(5) >= QUEUED - 1
    assert heard.outcomes.count(SENT) == 0 and heard.outcomes.count(DROPPED) >= 49
    assert len(heard.words) == 1, heard.words


def test_without_annotations_there_is_no_thread_to_wait_for() -> None:
    marks = Heard().to("http://127.0.0.1:9")
    started = time.perf_counter()
    assert marks.close(30) == 0
    assert time.perf_counter() - started < 1.0


def test_a_path_in_the_address_is_kept() -> None:
    fake = FakeGrafana("/grafana")
    try:
        marks = Heard().to(f"{fake.url}/")
        marks.put(MARK)
        marks.close(10)
        assert fake.asked == ["POST /grafana/api/annotations"]
    finally:
        fake.close()


@pytest.mark.parametrize(
    ("url", "pieces"),
    [
        ("http://127.0.0.1:3000", ("http", "127.0.0.1", 3000, "")),
        ("https://grafana.example/a/b/", ("https", "grafana.example", None, "a/b/")),
        ("http://[::1]:3000", ("http", "[::1]", 3000, "")),
    ],
)
def test_addresses(url: str, pieces: tuple[str, str, int | None, str]) -> None:
    got = address(url)
    assert (got["protocol"], got["host"], got["port"], got["url_path_prefix"]) == pieces
