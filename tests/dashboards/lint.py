"""What grafana/dashboard-linter asks of a dashboard, rule by rule under its names, and what we ask beyond it.

Each rule gives the complaints about one dashboard; none means that it keeps the rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

Json = dict[str, Any]
Rule = Callable[[Json], Iterator[str]]

WANT_UNIT = {"stat", "singlestat", "graph", "table", "timeseries", "gauge", "heatmap"}
WANT_TARGETS = WANT_UNIT | {"barchart", "piechart", "state-timeline"}
UNITS = {
    "none", "short", "percent", "percentunit", "s", "ms", "reqps", "ops", "cps", "rps", "bool_yes_no",
    "dateTimeAsIso", "bytes",
}  # fmt: skip
"""Those of Grafana's units that fit what we show."""

SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)?\{([^{}]*)\}(\[[^\]]*\])?")
WORDS = {
    "by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "offset", "bool",
    "sum", "max", "min", "avg", "topk", "count", "rate", "increase", "histogram_quantile", "time", "le",
}  # fmt: skip


def targets(dashboard: Json) -> Iterator[tuple[str, str]]:
    """Title of the panel and expression of each query."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def _variable(dashboard: Json, name: str) -> Json | None:
    return next((v for v in dashboard["templating"]["list"] if v["name"] == name), None)


def template_datasource(dashboard: Json) -> Iterator[str]:
    """A data source that can be chosen, under the names that people expect."""
    found = [v for v in dashboard["templating"]["list"] if v["type"] == "datasource"]
    if len(found) != 1:
        yield "there is no one templated data source"
    for variable in found:
        if variable["name"] not in ("datasource", "prometheus_datasource"):
            yield f"the data source is named {variable['name']}"
        if variable["label"] not in ("Data source", "Prometheus data source"):
            yield f"the data source is labelled {variable['label']}"
        if variable["query"] != "prometheus":
            yield f"the data source is {variable['query']}"


def _templated(dashboard: Json, name: str) -> Iterator[str]:
    variable = _variable(dashboard, name)
    if variable is None:
        yield f"no variable {name}"
        return
    wanted = {
        "type": "query",
        "label": name.capitalize(),
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
    }
    for key, value in wanted.items():
        if variable.get(key) != value:
            yield f"{name}: {key} is {variable.get(key)!r}, not {value!r}"
    if variable["datasource"]["uid"] not in ("$datasource", "${datasource}"):
        yield f"{name}: not from the templated data source"


def template_job(dashboard: Json) -> Iterator[str]:
    """Jobs can be chosen, several and all."""
    yield from _templated(dashboard, "job")


def template_instance(dashboard: Json) -> Iterator[str]:
    """Instances can be chosen, several and all."""
    yield from _templated(dashboard, "instance")


def template_label_promql(dashboard: Json) -> Iterator[str]:
    """Variables ask for the values of a label."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = variable["query"]["query"]
        if not re.fullmatch(r"label_values\(\S.*, ?[a-z_]+\)", query):
            yield f"{variable['name']}: {query}"


def template_on_time_change_reload(dashboard: Json) -> Iterator[str]:
    """Variables are read again when the time range changes."""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query" and variable["refresh"] != 2:
            yield f"{variable['name']} is not read again when the time changes"


def panel_datasource(dashboard: Json) -> Iterator[str]:
    """Panels use the data source that was chosen."""
    for panel in dashboard["panels"]:
        if panel["type"] in WANT_TARGETS:
            uids = {panel.get("datasource", {}).get("uid")}
            uids |= {t.get("datasource", {}).get("uid") for t in panel.get("targets", ())}
            if uids != {"${datasource}"}:
                yield f"{panel['title']}: {uids}"


def panel_title_description(dashboard: Json) -> Iterator[str]:
    """Every panel says what it shows."""
    for panel in dashboard["panels"]:
        if not panel.get("title") or not panel.get("description"):
            yield f"panel {panel['id']} has no title or no description"


def panel_units(dashboard: Json) -> Iterator[str]:
    """Every figure has a unit."""
    for panel in dashboard["panels"]:
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
        if panel["type"] in WANT_UNIT and unit not in UNITS:
            yield f"{panel['title']}: unit {unit!r}"


def panel_no_targets(dashboard: Json) -> Iterator[str]:
    """Every panel that shows figures asks for some."""
    for panel in dashboard["panels"]:
        if panel["type"] in WANT_TARGETS and not panel.get("targets"):
            yield f"{panel['title']}: no query"


def target_promql(dashboard: Json) -> Iterator[str]:
    """Brackets match and every metric is narrowed; that it parses, a real Prometheus says."""
    for title, expr in targets(dashboard):
        if not expr.strip():
            yield f"{title}: empty"
        for opening, closing in ("()", "{}", "[]"):
            if expr.count(opening) != expr.count(closing):
                yield f"{title}: {opening}{closing} do not match in {expr}"
        grouped = r"\b(by|on|without|ignoring|group_left) \([^)]*\)"
        bare = re.sub(grouped, " ", SELECTOR.sub(" ", re.sub(r'"[^"]*"', '""', expr)))
        for word in re.findall(r"[a-zA-Z_:][\w:]*", bare):
            if word not in WORDS:
                yield f"{title}: {word} is not narrowed by the variables in {expr}"


def target_rate_interval(dashboard: Json) -> Iterator[str]:
    """Ranges follow the zoom."""
    for title, expr in targets(dashboard):
        for found in re.findall(r"\[([^\]]*)\]", re.sub(r'"[^"]*"', '""', expr)):
            if found != "$__rate_interval":
                yield f"{title}: [{found}]"


def _matcher(dashboard: Json, name: str) -> Iterator[str]:
    for title, expr in targets(dashboard):
        selectors = SELECTOR.findall(expr)
        if not selectors:
            yield f"{title}: no selector in {expr}"
        for _, inside, _ in selectors:
            if f'{name}=~"${name}"' not in inside.split(","):
                yield f"{title}: no {name} matcher in {{{inside}}}"


def target_job(dashboard: Json) -> Iterator[str]:
    """Every selector is narrowed to the jobs chosen."""
    yield from _matcher(dashboard, "job")


def target_instance(dashboard: Json) -> Iterator[str]:
    """Every selector is narrowed to the instances chosen."""
    yield from _matcher(dashboard, "instance")


def target_counter_agg(dashboard: Json) -> Iterator[str]:
    """A counter is only ever looked at through rate or increase."""
    for title, expr in targets(dashboard):
        for found in SELECTOR.finditer(expr):
            name = found[1] or re.sub(r'.*__name__=~"([^"]*)".*', r"\1", found[2])
            if re.search(r"_total\)?\??$|_bucket$|_count$", name) is None:
                continue
            if not re.search(r"\b(i?rate|increase)\($", expr[: found.start()]) or not found[3]:
                yield f"{title}: {name} without rate or increase"


def uneditable(dashboard: Json) -> Iterator[str]:
    """Not editable, since the files are what counts."""
    if dashboard.get("editable") is not False:
        yield "it can be edited"


def stable_identity(dashboard: Json) -> Iterator[str]:
    """A uid that links can rely on, and panel ids that are each used once."""
    if not re.fullmatch(r"[a-z0-9-]{1,40}", dashboard.get("uid", "")):
        yield f"uid {dashboard.get('uid')!r}"
    ids = [p["id"] for p in dashboard["panels"]]
    if len(set(ids)) != len(ids):
        yield "a panel id is used twice"


def no_overlap(dashboard: Json) -> Iterator[str]:
    """Panels lie beside each other, inside 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if cells & taken or at["x"] + at["w"] > 24:
            yield f"{panel['title']} lies on another panel or outside"
        taken |= cells


RULES: dict[str, Rule] = {
    "template-datasource-rule": template_datasource,
    "template-job-rule": template_job,
    "template-instance-rule": template_instance,
    "template-label-promql-rule": template_label_promql,
    "template-on-time-change-reload-rule": template_on_time_change_reload,
    "panel-datasource-rule": panel_datasource,
    "panel-title-description-rule": panel_title_description,
    "panel-units-rule": panel_units,
    "panel-no-targets-rule": panel_no_targets,
    "target-promql-rule": target_promql,
    "target-rate-interval-rule": target_rate_interval,
    "target-job-rule": target_job,
    "target-instance-rule": target_instance,
    "target-counter-agg-rule": target_counter_agg,
    "uneditable-dashboard-rule": uneditable,
    "stable identity": stable_identity,
    "no overlap": no_overlap,
}
