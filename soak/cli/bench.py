"""``soak bench``: figures about soak itself, measured here and now."""

from __future__ import annotations

import dataclasses
import json

import click


@click.group()
def command() -> None:
    """Measure soak's own parts on this machine. Timings are of one process on a shared machine."""


@command.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def sim(*, as_json: bool) -> None:
    """How fast the simulator prefills and decodes, in tokens per CPU second of one core."""
    from soak.bench.simulator import measure

    for model in ("hybrid", "attention"):
        for numerics in ("exact", "production"):
            speed = measure(model, numerics)
            if as_json:
                click.echo(json.dumps(dataclasses.asdict(speed)))
            else:
                click.echo(
                    f"{model:<10} {numerics:<10} start {speed.startup_s:5.2f} s  "
                    f"prefill {speed.prefill_tokens_per_s:9,.0f} tokens/s  "
                    f"decode at batch 8 {speed.decode_tokens_per_s:9,.0f} tokens/s"
                )
