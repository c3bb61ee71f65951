"""Grafana dashboards and panels as plain values, by the rules that hold for all of ours.

Every query is narrowed by the dashboard's variables, every panel has a title, a description and a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

PROMETHEUS = {"type": "prometheus", "uid": "${datasource}"}
GRAFANA = {"type": "grafana", "uid": "-- Grafana --"}
WIDTH = 24

FILTER = 'job=~"$job",instance=~"$instance",fleet=~"$fleet"'
RATE = "$__rate_interval"

Json = dict[str, Any]


def sel(metric: str, more: str = "") -> str:
    """A selector of one of soak's metrics."""
    return f"{metric}{{{more + ',' if more else ''}{FILTER}}}"


def server(name: str, more: str = "") -> str:
    """A selector of one of the server's metrics, in any spelling that SGLang releases have used."""
    spelled = f'__name__=~"sglang[:_]{name}"'
    return f"{{{spelled},{more + ',' if more else ''}{FILTER}}}"


RANKS = "tp_rank, pp_rank, moe_ep_rank, attn_cp_rank, moe_dp_rank, dcp_rank, pid"
"""Ranks of one replica report the same requests; data-parallel ranks each have their own."""


def per_server(expr: str, by: str = "instance") -> str:
    """A figure of whole servers from what their ranks report."""
    return f"sum by ({by}) (max without ({RANKS}) ({expr}))"


def rate(selector: str) -> str:
    """Per second."""
    return f"rate({selector}[{RATE}])"


def quantile(q: float, by: str, histogram: str, more: str = "") -> str:
    """A quantile of a classic histogram, by labels."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) ({rate(sel(histogram + '_bucket', more))}))"


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and what its series are called."""

    expr: str
    legend: str = "__auto"
    instant: bool = False
    format: str = "time_series"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; width of 24 columns and height in grid rows."""

    title: str
    description: str
    queries: Sequence[Query]
    type: str = "timeseries"
    unit: str = "none"
    width: int = 12
    height: int = 8
    log: bool = False
    options: Json = field(default_factory=dict)
    defaults: Json = field(default_factory=dict)
    overrides: Sequence[Json] = ()
    transformations: Sequence[Json] = ()

    def as_json(self, number: int, x: int, y: int) -> Json:
        """The panel at a place."""
        made: Json = {
            "id": number,
            "type": self.type,
            "title": self.title,
            "description": self.description,
            "datasource": PROMETHEUS,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [self._target(i, query) for i, query in enumerate(self.queries)],
            "fieldConfig": {
                "defaults": {"unit": self.unit, **self._custom(), **self.defaults},
                "overrides": list(self.overrides),
            },
            "options": {**_OPTIONS.get(self.type, {}), **self.options},
        }
        if self.transformations:
            made["transformations"] = list(self.transformations)
        return made

    def _target(self, index: int, query: Query) -> Json:
        return {
            "refId": chr(ord("A") + index),
            "datasource": PROMETHEUS,
            "expr": query.expr,
            "legendFormat": query.legend,
            "editorMode": "code",
            "format": query.format,
            "instant": query.instant,
            "range": not query.instant,
        }

    def _custom(self) -> Json:
        if self.type != "timeseries":
            return {}
        scale: Json = {"type": "log", "log": 10} if self.log else {"type": "linear"}
        return {
            "custom": {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 10,
                "showPoints": "auto",
                "spanNulls": False,
                "scaleDistribution": scale,
            }
        }


_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_REDUCE = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[str, Json] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        "colorMode": "background",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "auto",
        "reduceOptions": _REDUCE,
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    },
    "table": {"showHeader": True, "cellHeight": "sm"},
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "none"},
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "scale": "exponential",
            "exponent": 0.5,
            "fill": "dark-orange",
            "reverse": False,
            "steps": 64,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "reverse": False},
    },
}


def thresholds(*steps: tuple[float | None, str]) -> Json:
    """Colours from values on; the first is the base."""
    return {
        "color": {"mode": "thresholds"},
        "thresholds": {
            "mode": "absolute",
            "steps": [{"value": value, "color": colour} for value, colour in steps],
        },
    }


def heatmap(title: str, description: str, histogram: str, more: str, unit: str) -> Panel:
    """A histogram over time; what is shown are counts per interval."""
    expr = f"sum by (le) (increase({sel(histogram + '_bucket', more)}[{RATE}]))"
    return Panel(
        title,
        description,
        [Query(expr, "{{le}}", format="heatmap")],
        type="heatmap",
        unit=unit,
        options={"yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit}},
    )


def table(title: str, description: str, expr: str, *, hidden: Sequence[str], width: int = 12) -> Panel:
    """The present series of a query, their labels as columns."""
    hide = dict.fromkeys(("Time", *hidden), True)
    organize = {"id": "organize", "options": {"excludeByName": hide, "indexByName": {}, "renameByName": {}}}
    return Panel(
        title,
        description,
        [Query(expr, instant=True, format="table")],
        type="table",
        width=width,
        transformations=[organize],
    )


def laid_out(panels: Sequence[Panel]) -> list[Json]:
    """Panels in reading order, row by row."""
    placed: list[Json] = []
    x = y = tallest = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > WIDTH:
            x, y, tallest = 0, y + tallest, 0
        placed.append(panel.as_json(number, x, y))
        x, tallest = x + panel.width, max(tallest, panel.height)
    return placed


def dashboard(uid: str, title: str, description: str, panels: Sequence[Panel], *, known_by: str) -> Json:
    """A whole dashboard. ``known_by``: a selector, without filter, of series with the jobs and instances."""
    return {
        "uid": uid,
        "title": title,
        "description": description,
        "tags": ["soak", "sglang"],
        "editable": False,
        "graphTooltip": 1,
        "schemaVersion": 41,
        "version": 1,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables(known_by)},
        "annotations": {"list": _annotations()},
        "links": [_link()],
        "panels": laid_out(panels),
    }


def _variables(known_by: str) -> list[Json]:
    def labels(name: str, narrowed: str, all_value: str) -> Json:
        inside = known_by.removeprefix("{").removesuffix("}") if known_by.startswith("{") else ""
        both = ",".join(part for part in (inside, narrowed) if part)
        series = (f"{{{both}}}" if inside else f"{known_by}{{{both}}}") if both else known_by
        query = f"label_values({series}, {name})"
        return {
            "name": name,
            "label": name.capitalize(),
            "type": "query",
            "datasource": PROMETHEUS,
            "query": {"query": query, "refId": f"variable-{name}", "qryType": 1},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": all_value,
            "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
            "hide": 0,
            "options": [],
            "regex": "",
            "skipUrlSync": False,
        }

    source = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {"selected": False, "text": "Prometheus", "value": "soak-prometheus"},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
    }
    fleet = labels("fleet", "", ".*")
    return [
        source,
        fleet,
        labels("job", 'fleet=~"$fleet"', ".+"),
        labels("instance", 'fleet=~"$fleet",job=~"$job"', ".+"),
    ]


def _annotations() -> list[Json]:
    said = {
        "name": "Incidents and acknowledgements",
        "datasource": GRAFANA,
        "enable": True,
        "hide": False,
        "iconColor": "red",
        "type": "tags",
        "target": {
            "refId": "Annotation",
            "type": "tags",
            "tags": ["soak"],
            "matchAny": True,
            "limit": 100,
        },
    }
    appeared = (
        f"(sum by (channel, shape, verdict) ({sel('soak_alarms')}) > 0)"
        f" unless (sum by (channel, shape, verdict) ({sel('soak_alarms')} offset 1m) > 0)"
    )
    raised = {
        "name": "Alarms raised",
        "datasource": PROMETHEUS,
        "enable": True,
        "hide": False,
        "iconColor": "orange",
        "target": {"refId": "Annotation", "expr": appeared},
        "step": "60s",
        "titleFormat": "{{verdict}} by {{channel}}",
        "textFormat": "{{shape}}",
    }
    gone = {
        "name": "Server gone",
        "datasource": PROMETHEUS,
        "enable": True,
        "hide": False,
        "iconColor": "purple",
        "target": {"refId": "Annotation", "expr": f"min by (instance) ({sel('soak_target_up')}) == 0"},
        "step": "15s",
        "titleFormat": "no server",
        "textFormat": "{{instance}}: what was due meanwhile is in no share, and no latency is taken from it",
    }
    return [said, raised, gone]


def _link() -> Json:
    return {
        "title": "soak",
        "type": "dashboards",
        "tags": ["soak"],
        "asDropdown": True,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
