"""Dashboards are what Grafana's own types say a dashboard is, down to the options of each kind of panel.

Needs node and npm; what npm installs lies in a cache folder outside the repository.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.stack.kit.tools import CACHE, KIT, said

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "dashboards").glob("*.json"))
SCHEMA = KIT / "schema"
PANELS = "@grafana/schema/dist/esm/raw/composable/{0}/panelcfg/x/{1}PanelCfg_types.gen"
OPTIONS = {"stat": "Stat", "timeseries": "TimeSeries", "heatmap": "Heatmap", "table": "Table", "text": "Text"}
WITH_FIELDS = ("timeseries",)
"""Kinds of panels whose ``custom`` settings we use."""


@pytest.fixture(scope="module")
def compiler() -> Path:
    """A folder with the schema and tsc in it."""
    npm = shutil.which("npm")
    assert npm, "npm is needed here: install Node.js 18 or newer (on Debian: apt-get install npm)"
    folder = CACHE / "schema"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "tsconfig.json"):
        shutil.copy(SCHEMA / name, folder / name)
    said(
        npm, "install", "--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"
    )
    return folder


def as_typescript(dashboard: dict[str, Any]) -> str:
    """Declarations that compile only if the dashboard is one."""
    kinds = sorted({panel["type"] for panel in dashboard["panels"]})
    lines = ['import type { Ours, Values } from "./values";']
    for kind in kinds:
        fields = f", FieldConfig as {kind}Fields" if kind in WITH_FIELDS else ""
        where = PANELS.format(kind, OPTIONS[kind])
        lines.append(f'import type {{ Options as {kind}Options{fields} }} from "{where}";')
    lines.append(f"export const whole: Ours = {json.dumps(dashboard, indent=1)};")
    for panel in dashboard["panels"]:
        kind, number = panel["type"], panel["id"]
        options = json.dumps(panel["options"], indent=1)
        lines.append(f"export const options{number}: Values<Partial<{kind}Options>> = {options};")
        custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom")
        assert (custom is not None) == (kind in WITH_FIELDS), panel["title"]
        if custom is not None:
            given = json.dumps(custom, indent=1)
            lines.append(f"export const custom{number}: Values<Partial<{kind}Fields>> = {given};")
    return "\n".join(lines) + "\n"


def complaints(compiler: Path, dashboards: dict[str, dict[str, Any]]) -> str:
    """What tsc --strict says of them; empty if nothing."""
    checked = compiler / "checked"
    shutil.rmtree(checked, ignore_errors=True)
    checked.mkdir()
    shutil.copy(SCHEMA / "values.ts", checked / "values.ts")
    for name, dashboard in dashboards.items():
        (checked / f"{name}.ts").write_text(as_typescript(dashboard), encoding="utf-8")
    tsc = compiler / "node_modules" / ".bin" / "tsc"
    done = subprocess.run(
        [str(tsc), "--project", str(compiler)], check=False, capture_output=True, text=True, timeout=120
    )
    return done.stdout + done.stderr if done.returncode else ""


def test_every_dashboard_is_one(compiler: Path) -> None:
    read = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in PATHS}
    assert len(read) == 4
    said_of_them = complaints(compiler, read)
    assert not said_of_them, said_of_them


def _panel(dashboard: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(p for p in dashboard["panels"] if p["type"] == kind)
    return found


SPOILED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "unknown_key": lambda d: d.update(titel="Soak"),
    "wrong_type": lambda d: d.update(editable="no"),
    "grid": lambda d: d["panels"][0]["gridPos"].update(x="0"),
    "threshold_mode": lambda d: d["panels"][1]["fieldConfig"]["defaults"]["thresholds"].update(
        mode="absolut"
    ),
    "variable": lambda d: d["templating"]["list"][1].update(multi="yes"),
    "stat_option": lambda d: _panel(d, "stat")["options"].update(textMode="names"),
    "legend": lambda d: _panel(d, "timeseries")["options"]["legend"].update(placement="below"),
    "custom": lambda d: _panel(d, "timeseries")["fieldConfig"]["defaults"]["custom"].update(
        drawStyle="lines"
    ),
    "annotation": lambda d: d["annotations"]["list"][0]["target"].update(tags="soak"),
    "heatmap_option": lambda d: _panel(d, "heatmap")["options"].update(cellgap=1),
}


def test_every_defect_is_found(compiler: Path) -> None:
    overview = json.loads((ROOT / "dashboards" / "soak-overview.json").read_text(encoding="utf-8"))
    spoiled = {}
    for name, spoil in SPOILED.items():
        spoiled[name] = copy.deepcopy(overview)
        spoil(spoiled[name])
    found = complaints(compiler, spoiled)
    missed = [name for name in SPOILED if f"{name}.ts(" not in found]
    assert not missed, f"{missed} not in\n{found}"
