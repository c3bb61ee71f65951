"""A soak of a faulty simulator pages a webhook through Prometheus and Alertmanager; a healthy one does not.

The tests go through one story in the order in which they stand.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import time
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.lint import targets
from tests.stack.kit.program import until
from tests.stack.kit.stack import FAULT, ROOT, TOKEN, Stack
from tests.stack.kit.tools import tools

ALARM_WITHIN_S = 90.0
PAGE_WITHIN_S = 60.0
ALARM = r"CORRUPT: .*\(alarm ([0-9a-f]{8})\)"
ON_THE_CACHE = (
    'ALERTS{alertname=~"SoakCacheCorruption|SoakAmnesia|SoakNonFiniteLogprobs",alertstate="firing"}'
)


def corruption_pages(stack: Stack) -> list[tuple[str, str, str]]:
    return [page for page in stack.webhook.pages() if page[0] == "SoakCacheCorruption"]


def test_a_corruption_reaches_the_webhook_within_a_minute_of_the_alarm(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    stack.soaks["faulty"].soak.says(ALARM, ALARM_WITHIN_S)
    until("the webhook is called", lambda: corruption_pages(stack), PAGE_WITHIN_S)
    alarms = call(f"http://{stack.soaks['faulty'].metrics}/alarms")["alarms"]
    raised = min(a["raised_at"] for a in alarms if a["verdict"] == "CORRUPT")
    took_s = stack.webhook.got[0][0] - datetime.fromisoformat(raised).timestamp()
    assert took_s < PAGE_WITHIN_S
    with capsys.disabled():
        print(f"\nfrom the alarm to the webhook: {took_s:.1f} s")
    ((fingerprint,),) = ({page[2] for page in corruption_pages(stack)},)
    assert re.fullmatch(r"[0-9a-f]{16}", fingerprint)
    _, body = stack.webhook.got[0]
    assert body["groupLabels"] == {"fleet": "faulty", "fingerprint": fingerprint}
    (alert,) = (a for a in body["alerts"] if a["labels"]["alertname"] == "SoakCacheCorruption")
    assert alert["labels"]["severity"] == "page"
    assert alert["annotations"]["runbook_url"].endswith("/d/soak-runbooks?viewPanel=1")


def test_a_healthy_server_pages_nobody_in_the_same_time(stack: Stack) -> None:
    valid = 'sum(soak_probes_total{fleet="healthy",outcome="valid"}) >= 20'
    until("the healthy server was asked as well", lambda: stack.query(valid), 90)
    time.sleep(max(0.0, stack.started_s + 60 - time.time()))
    assert {page[1] for page in stack.webhook.pages()} == {"faulty"}
    assert stack.query('ALERTS{fleet="healthy",alertstate="firing"}') == []
    assert stack.query('soak_alarms{fleet="healthy",verdict="CORRUPT"} > 0') == []


def test_whoever_is_not_chosen_to_notify_knows_and_says_nothing(stack: Stack) -> None:
    """SOAK_ALERTS=grafana: the Alertmanager of that choice has the alert, and its receiver is nobody."""
    held = {alert["labels"]["alertname"]: alert for alert in stack.known_to("grafana")}
    assert [r["name"] for r in held["SoakCacheCorruption"]["receivers"]] == ["nobody"]
    assert {body["receiver"] for _, body in stack.webhook.got} == {"soak"}


def dashboards() -> list[Path]:
    return sorted(p for p in (ROOT / "dashboards").glob("*.json") if p.stem != "soak-runbooks")


def filled_in(expr: str) -> str:
    for name, value in (("$job", ".+"), ("$instance", ".+"), ("$fleet", ".*"), ("$__rate_interval", "1m")):
        expr = expr.replace(name, value)
    return expr


def has_data(series: list[dict[str, Any]]) -> bool:
    return any(not math.isnan(float(value)) for each in series for _, value in each["values"])


@pytest.mark.parametrize("path", dashboards(), ids=lambda p: p.stem)
def test_every_query_of_a_dashboard_returns_data(stack: Stack, path: Path) -> None:
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    empty = dict.fromkeys(filled_in(expr) for _, expr in targets(dashboard))
    deadline = time.monotonic() + 60

    def asked() -> bool:
        for expr in [expr for expr in empty if has_data(stack.series(expr))]:
            del empty[expr]
        return not empty or time.monotonic() > deadline

    until("every query was asked", asked, 90)
    assert not empty, "\n".join(empty)
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found is not None
            assert stack.ask(f"label/{found[2]}/values", **{"match[]": filled_in(found[1])}), variable["name"]


def test_annotations_of_alarms_return_data(stack: Stack) -> None:
    dashboard = json.loads((ROOT / "dashboards" / "soak-overview.json").read_text(encoding="utf-8"))
    by_name = {a["name"]: a["target"] for a in dashboard["annotations"]["list"] if "expr" in a["target"]}
    assert set(by_name) == {"Alarms raised", "Server gone"}
    assert has_data(stack.series(filled_in(by_name["Alarms raised"]["expr"])))
    assert not has_data(stack.series(filled_in(by_name["Server gone"]["expr"]))), "they were there throughout"


def test_histograms_are_native_where_prometheus_can_make_them_so(stack: Stack) -> None:
    histogram = "soak_time_to_first_token_seconds"
    assert stack.query(f"{histogram}_bucket"), "classic"
    native = stack.query(f"histogram_count(sum({histogram}))")
    if tools().converts_histograms:
        assert float(native[0]["value"][1]) > 0
        both = stack.query(
            f"histogram_quantile(0.9, sum({histogram})) - "
            f"histogram_quantile(0.9, sum by (le) ({histogram}_bucket))"
        )
        assert abs(float(both[0]["value"][1])) < 1e-9
    else:
        assert native == []


def test_the_page_passes_promtools_own_review(stack: Stack) -> None:
    with urllib.request.urlopen(f"http://{stack.soaks['faulty'].metrics}/metrics", timeout=10) as answer:
        page = answer.read()
    done = subprocess.run(
        [str(tools().promtool), "check", "metrics"], check=False, input=page, capture_output=True
    )
    complaints = [
        line
        for line in done.stderr.decode().splitlines()
        # a nat is a unit as good as any, but not one that promtool knows
        if "use base unit" not in line
    ]
    assert complaints == [], "\n".join(complaints)


def test_a_restart_of_prometheus_pages_nobody_again(stack: Stack) -> None:
    before = stack.webhook.pages(), stack.webhook.pages("resolved")
    stack.prometheus.stop()
    stack.prometheus.start_again()
    stack.ready()
    restarted = time.time()
    until("the alert fires after the restart", lambda: stack.query(ON_THE_CACHE))
    until(
        "rules were evaluated several times",
        lambda: stack.query(f"timestamp({ON_THE_CACHE}) > {restarted + 10}"),
    )
    assert (stack.webhook.pages(), stack.webhook.pages("resolved")) == before


def test_a_restart_of_soak_pages_nobody_again(stack: Stack) -> None:
    before = stack.webhook.pages(), stack.webhook.pages("resolved")
    faulty = stack.soaks["faulty"]
    faulty.soak.kill()
    until("Prometheus sees it gone", lambda: stack.query('up{job="soak",fleet="faulty"} == 0'))
    time.sleep(6)  # the rules are evaluated without it at least once
    assert stack.query(ON_THE_CACHE), "the alert ended while soak was away"
    said_before = len(faulty.soak.words)
    faulty.soak.start_again()
    faulty.soak.says("still alarmed: CORRUPT", 60, after=said_before)
    until("Prometheus sees it back", lambda: stack.query('up{job="soak",fleet="faulty"} == 1'))
    until("its alarm is scraped again", lambda: stack.query('soak_alarms{verdict="CORRUPT",acked="no"} > 0'))
    time.sleep(6)
    assert (stack.webhook.pages(), stack.webhook.pages("resolved")) == before


def test_what_is_acknowledged_as_known_pages_no_longer(stack: Stack) -> None:
    alarms = f"http://{stack.soaks['faulty'].metrics}/alarms"

    def all_known() -> bool:
        for alarm in call(alarms)["alarms"]:
            if alarm["acked"] == "no":
                call(f"{alarms}/{alarm['id']}/ack", {"known": FAULT, "by": "the stack tier"})
        return not stack.query(ON_THE_CACHE)

    until("the alert has ended", all_known, 45)
    until("the webhook hears of it", lambda: "SoakCacheCorruption" in ended(stack), 30)
    assert stack.query('soak_verdict{fleet="faulty",verdict="CORRUPT"} == 1'), "a mute is no pardon"


def ended(stack: Stack) -> set[str]:
    return {name for name, _, _ in stack.webhook.pages("resolved")}


def call(url: str, body: dict[str, str] | None = None) -> Any:
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    request.add_header("Authorization", f"Bearer {TOKEN}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)
