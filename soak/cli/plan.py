"""``soak plan``: what a config would send, as JSON lines, or what it would cost. Touches no server."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import click

from soak import config as configs
from soak.cli.given import overrides, settings, shard_pair
from soak.detect.calibration import controls_needed
from soak.plan.cost import ProbeTerms, cost
from soak.plan.geometry import Geometry
from soak.plan.plan import Plan
from soak.run.exit_code import ExitCode


@click.command(
    epilog="""\b
Examples:
  soak plan workloads/smoke.yaml --count 20
  soak plan --seed 7 --cost"""
)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--count", type=click.IntRange(1), default=10, show_default=True, help="How many indices.")
@click.option("--first", type=click.IntRange(0, 10**8), default=0, show_default=True, help="The first index.")
@click.option("--seed", type=int, help="Instead of the config's.")
@click.option("--nonce", type=int, default=0, show_default=True, help="Salts token ids, nothing else.")
@click.option("--shard", metavar="I/N", default="0/1", show_default=True)
@click.option("--cost", "show_cost", is_flag=True, help="Print what the plan costs the server an hour.")
@click.option(
    "--set", "given", multiple=True, metavar="SECTION.KEY=VALUE", help="Any other value of the config."
)
@click.option("--ids", is_flag=True, help="Print token ids in full, not only their digests.")
def command(
    *,
    config: Path | None,
    count: int,
    first: int,
    seed: int | None,
    nonce: int,
    shard: str,
    given: tuple[str, ...],
    show_cost: bool,
    ids: bool,
) -> None:
    """Print the items of a plan as JSON lines. The same seed gives the same bytes on every machine.

    Without a server the geometry is the default one; a run writes the one it read to its run.json.
    """
    try:
        index, shards = shard_pair(shard)
        loaded = configs.load(
            config, settings(given, overrides(run__shard=index, run__shards=shards, run__seed=seed))
        )
        spec = loaded.resolve(Geometry())
    except configs.ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(ExitCode.USAGE)
    plan = Plan(loaded.run.seed, spec, nonce)
    if show_cost:
        terms = ProbeTerms(
            rate=loaded.probe.rate,
            tail=loaded.probe.tail,
            prefill_share=loaded.probe_share,
            pool_share_per_minute=loaded.probes_pool_share,
            controls_needed=controls_needed(loaded.detect.p0_max),
        )
        click.echo(cost(plan, terms).words())
        return
    for items in itertools.islice(plan.walk(index, shards, first), count):
        for item in items:
            row = plan.row(item)
            if ids:
                row["ids"] = [plan.ids(p).tolist() for p in item.prompts]
            click.echo(json.dumps(row, separators=(",", ":")))
