"""The dashboard *Soak runbooks*: the pages of ``docs/runbooks``, where the links of alerts lead by "
"default."""

from __future__ import annotations

from pathlib import Path

from deploy.generate.alerts import names
from deploy.generate.panels import WIDTH, Json

PAGES = Path(__file__).parents[2] / "docs" / "runbooks"


def soak_runbooks() -> Json:
    """The dashboard; panel n is the page of the nth alert."""
    panels = [
        {
            "id": number,
            "type": "text",
            "title": name,
            "description": f"What {name} means and what to do. The same text is docs/runbooks/{name}.md.",
            "gridPos": {"x": 0, "y": 12 * (number - 1), "w": WIDTH, "h": 12},
            "options": {"mode": "markdown", "content": (PAGES / f"{name}.md").read_text(encoding="utf-8")},
        }
        for number, name in enumerate(names(), start=1)
    ]
    return {
        "uid": "soak-runbooks",
        "title": "Soak runbooks",
        "description": "What each alert means and what to do about it.",
        "tags": ["soak", "sglang"],
        "editable": False,
        "schemaVersion": 41,
        "version": 1,
        "timezone": "browser",
        "templating": {"list": []},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }
