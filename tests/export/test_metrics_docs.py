"""docs/metrics.md lists the metrics that exist, all of them, with the words that Prometheus shows."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry

from soak.export.metrics import RunMetrics
from soak.shards.exposed import EvidenceGauges, ShardMetrics
from tests.export.samples import every_metric

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def rows_of_the_code() -> list[str]:
    registry, crew = CollectorRegistry(), CollectorRegistry()
    every_metric(RunMetrics(registry, shapes=("shared-prefix",)))
    EvidenceGauges(crew, 0.0)
    crew.register(ShardMetrics(lambda: {0: lambda: None}, {}))
    rows = []
    for family in (*registry.collect(), *crew.collect()):
        suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{family.name}{suffix}` | {family.type} | {shown} | {family.documentation} |")
    return rows


def test_every_metric_is_documented_and_nothing_else() -> None:
    documented = [
        line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("| `soak_")
    ]
    wanted = rows_of_the_code()
    assert sorted(documented) == sorted(wanted), "docs/metrics.md should hold:\n" + "\n".join(wanted)
