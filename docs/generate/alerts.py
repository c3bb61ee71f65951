"""docs/reference/alerts.md: every alert rule, from ``deploy/alerts.yaml``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

HEAD = """# Alerts

Written once, in [deploy/alerts.yaml](../../deploy/alerts.yaml); `python -m deploy.generate` makes the rules
for Prometheus and for Grafana of it. Who is told, and how to choose: [operations.md](../operations.md). This
page is made from that file by `python -m docs.generate`.
"""

SOURCE = Path(__file__).resolve().parents[2] / "deploy" / "alerts.yaml"


def alerts() -> list[dict[str, Any]]:
    """The rules as the file has them."""
    found: list[dict[str, Any]] = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))["alerts"]
    return found


def page() -> str:
    """The whole page, Markdown."""
    return "\n".join([HEAD, *(_section(alert) for alert in alerts())])


def _section(alert: dict[str, Any]) -> str:
    name = alert["name"]
    waits = f", after {alert['for']}" if "for" in alert else ""
    lines = [
        f"## {name}",
        "",
        f"{alert['severity'].capitalize()}{waits}. {_words(alert['summary'])}.",
        _words(alert["description"]),
        f"[What to do](../runbooks/{name}.md).",
        "",
        "```promql",
        *alert["expr"].strip().splitlines(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _words(text: str) -> str:
    """Prometheus' templates as words for a reader."""
    for label in ("fleet", "fingerprint", "job", "instance"):
        text = text.replace(f"{{{{ .Labels.{label} }}}}", f"*{label}*")
    return " ".join(text.split())
