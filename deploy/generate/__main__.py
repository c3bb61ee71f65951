"""``python -m deploy.generate``: write the generated files into the repository."""

from __future__ import annotations

from pathlib import Path

import click

from deploy.generate.alerts import Links
from deploy.generate.files import generated

ROOT = Path(__file__).parents[2]


@click.command()
@click.option("--dashboards-url", default=Links().dashboards, show_default=True, help="Where Grafana is.")
@click.option("--runbooks-url", help="A folder of the pages in docs/runbooks; by default Grafana shows them.")
def main(dashboards_url: str, runbooks_url: str | None) -> None:
    """Make alert rules and dashboards from their sources; the links of alerts lead to these addresses."""
    for name, content in generated(Links(dashboards_url.rstrip("/"), runbooks_url)).items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        click.echo(name)


main()
