"""``soak sim``: run the embedded simulator, by itself, with faults planted by name."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading

import click


def end_with_stdin() -> None:
    """Whoever started it holds the other end of stdin: it ends with them, even if they were killed."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="soak-sim-parent", daemon=True).start()


@click.command(
    "sim",
    epilog="""\b
Examples:
  soak sim
  soak sim --fault stale-track-tail --port 30001
  soak sim --list-faults""",
)
@click.option(
    "--port", default=30000, show_default=True, type=click.IntRange(0, 65535), help="0: any free port."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--fault", "faults", default="", metavar="NAME[,NAME]", help="Faults to plant; see --list-faults."
)
@click.option("--list-faults", is_flag=True, help="Print the known faults and exit.")
@click.option(
    "--numerics", type=click.Choice(["exact", "production"]), default="production", show_default=True
)
@click.option("--model", type=click.Choice(["hybrid", "attention"]), default="hybrid", show_default=True)
@click.option("--seed", default=0, show_default=True, help="Seed of the weights and of the noise.")
@click.option("--context-len", default=4096, show_default=True)
@click.option("--page-size", default=1, show_default=True)
@click.option("--chunked-prefill-size", default=256, show_default=True)
@click.option("--max-running-requests", default=16, show_default=True)
@click.option("--max-total-tokens", default=32768, show_default=True)
@click.option("--max-mamba-slots", default=192, show_default=True)
@click.option(
    "--mamba-radix-cache-strategy",
    "radix_strategy",
    type=click.Choice(["no_buffer", "extra_buffer"]),
    default=None,
    help="Default: what the planted faults need, else no_buffer.",
)
@click.option("--mamba-track-interval", default=128, show_default=True)
@click.option("--host-tokens", default=0, show_default=True, help="Size of the host tier; 0: none.")
@click.option("--overlap/--no-overlap", default=None, help="Overlap of scheduling and forward.")
@click.option("--mixed-chunk/--no-mixed-chunk", default=None, help="Decode rows in prefill batches.")
@click.option("--tokenizer", is_flag=True, help="Take and give text, and answer by JSON schemas.")
@click.option("--lora-adapter", "lora_adapters", multiple=True, help="Name of an adapter; repeatable.")
@click.option("--disable-radix-cache", is_flag=True)
@click.option("--enable-metrics/--no-enable-metrics", default=True, help="Whether /metrics is served.")
@click.option("--api-key", default=None, envvar="SOAK_SIM_API_KEY", help="Ask for this bearer key.")
@click.option("--while-stdin", is_flag=True, hidden=True, help="End when stdin ends.")
def command(  # noqa: PLR0917
    port: int,
    host: str,
    faults: str,
    list_faults: bool,
    numerics: str,
    model: str,
    seed: int,
    context_len: int,
    page_size: int,
    chunked_prefill_size: int,
    max_running_requests: int,
    max_total_tokens: int,
    max_mamba_slots: int,
    radix_strategy: str | None,
    mamba_track_interval: int,
    host_tokens: int,
    overlap: bool | None,
    mixed_chunk: bool | None,
    tokenizer: bool,
    lora_adapters: tuple[str, ...],
    disable_radix_cache: bool,
    enable_metrics: bool,
    api_key: str | None,
    while_stdin: bool,
) -> None:
    """Run the SGLang-compatible simulator. It holds no real model, and says so in /server_info."""
    from soak.runners.faults import FAULTS, settings_for
    from soak.sim.config import SimConfig
    from soak.sim.server import run

    if list_faults:
        for fault in FAULTS:
            click.echo(f"{fault.name:26} {fault.title}")
        return
    names = tuple(name.strip() for name in faults.split(",") if name.strip())
    given = {
        "numerics": numerics,
        "model": model,
        "seed": seed,
        "context_len": context_len,
        "page_size": page_size,
        "chunked_prefill_size": chunked_prefill_size,
        "max_running_requests": max_running_requests,
        "max_total_tokens": max_total_tokens,
        "max_mamba_slots": max_mamba_slots,
        "radix_strategy": radix_strategy,
        "mamba_track_interval": mamba_track_interval,
        "host_tokens": host_tokens or None,
        "overlap": overlap,
        "mixed_chunk": mixed_chunk,
        "tokenizer": tokenizer,
        "lora_adapters": lora_adapters or None,
        "disable_radix_cache": disable_radix_cache,
        "enable_metrics": enable_metrics,
        "api_key": api_key,
    }
    try:
        settings = settings_for(names) | {key: value for key, value in given.items() if value is not None}
        config = SimConfig(faults=names, **settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if while_stdin:
        end_with_stdin()
    planted = f" with {', '.join(names)} planted" if names else ""
    try:
        run(
            config,
            host,
            port,
            lambda url: click.echo(f"simulator ready on {url} ({model}, {numerics} numerics{planted})"),
        )
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            why = "another program does; choose another --port, 0 for any free one"
        raise click.ClickException(f"cannot listen on {host}:{port}: {why}") from error
