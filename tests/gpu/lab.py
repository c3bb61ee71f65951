"""Soak real SGLang servers with real CUDA graphs, healthy beside faulty, and keep the summaries.

    python3 -m tests.gpu.lab decode --base SITE --variants DIR --out DIR
    python3 -m tests.gpu.lab rows --base SITE --fa4 SITE2 --variants DIR --out DIR

SITE is an unpacked server (``kit/pack.py``), DIR what ``kit/variants.py`` made of it. Prints a line per soak
as it ends and writes each run's figures to OUT/figures.json. Everything stops with the script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.servers import FALCON, INKLING, Server, start_all


@dataclass(frozen=True)
class Soak:
    """One soak: what it is called, on which server, for how long, with which sections of config."""

    name: str
    server: Server
    seconds: int
    sections: dict[str, dict[str, Any]]
    state: str = ""  # several soaks that name the same one share calibration, evidence and alarms


def decode_seeded(concurrency: int) -> dict[str, dict[str, Any]]:
    """The decode-seeded shape alone, so many generations at once; probes one at a time."""
    return {
        "load": {
            "arrivals": "poisson",
            "rate": 3.0 * concurrency,
            "shapes": {"decode-seeded": 1},
            "max_context": 2048,
            "decode_tokens": 160,
            "served_share": 0.1,
        },
        "probe": {"rate": 30, "concurrency": 1},
        "budget": {"in_flight": concurrency + 1, "probe_share": None, "pool_share_per_minute": None},
        "thresholds": {"delivered_share": 0},
        "detect": {"p0_max": 0.2, "min_valid_probes": 30},
    }


def every_shape() -> dict[str, dict[str, Any]]:
    """All shapes of the plan that disrupt nobody, bursts of up to eight."""
    shapes = ("shared-prefix", "long-context", "chunked-burst", "decode-seeded", "co-batched", "branching")
    return {
        "load": {
            "rate": 6.0,
            "max_context": 4096,
            "burst": 8,
            "decode_tokens": 160,
            "served_share": 0.1,
            "shapes": dict.fromkeys(shapes, 1),
        },
        "probe": {"rate": 30, "concurrency": 1},
        "budget": {"in_flight": 17, "probe_share": None, "pool_share_per_minute": None},
        "thresholds": {"delivered_share": 0},
        "detect": {"p0_max": 0.2, "min_valid_probes": 60},
    }


def bursts() -> dict[str, dict[str, Any]]:
    """Batched prompts that share a prefill, then single ones while their rows are still armed.

    Few enough that a cache of 128 checkpoints still holds what is asked of. A tail of 96 tokens is replayed
    by the graph (from 64 on), so that probes fire too; 43 controls bring exact mode its 4,096 scored tokens.
    """
    return {
        "load": {
            "rate": 2.0,
            "max_context": 1500,
            "burst": 4,
            "max_new_tokens": 4,
            "shapes": {"co-batched": 3, "shared-prefix": 1},
        },
        "probe": {"rate": 30, "concurrency": 1, "max_scored": 96, "tail": 96},
        "budget": {"in_flight": 9, "probe_share": None, "pool_share_per_minute": None},
        "thresholds": {"delivered_share": 0},
        "detect": {"p0_max": 0.2, "min_valid_probes": 60},
    }


def state_of(soak: Soak, out: Path) -> Path:
    """Its state file; the journal lies beside it, and one run at a time has it."""
    folder = out / (soak.state or soak.name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "state.sqlite"


def start(soak: Soak, out: Path) -> subprocess.Popen[bytes]:
    """The soak as a process of its own, as a user would type it."""
    folder = out / soak.name
    folder.mkdir(parents=True, exist_ok=True)
    sections = {
        **soak.sections,
        "target": {"url": soak.server.url},
        "run": {
            "duration": f"{soak.seconds}s",
            "drain": "5s",
            "seed": 1,
            "state": str(state_of(soak, out)),
            "report": False,
        },
        "metrics": {"port": None},
    }
    config = folder / "soak.yaml"
    config.write_text(json.dumps(sections, indent=1))  # JSON is YAML
    with (folder / "soak.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "soak", "run", str(config), "--out", str(folder)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"COLUMNS": "150"},
        )


def figures(soak: Soak, out: Path, code: int) -> dict[str, Any]:
    """What is kept of a run: its summary without what every run has alike."""
    path = out / soak.name / "summary.json"
    if not path.exists():
        log = (out / soak.name / "soak.log").read_text(errors="replace").splitlines()[-12:]
        return {"name": soak.name, "exit_code": code, "verdict": "NO SUMMARY", "log": log}
    summary: dict[str, Any] = json.loads(path.read_text())
    kept = {k: summary[k] for k in summary if k not in ("fingerprint", "schema_version", "worst_probe")}
    return {"name": soak.name, "server": soak.server.name, **kept}


def line(found: dict[str, Any]) -> str:
    """One line for a person."""
    if "probes" not in found:
        return f"{found['name']}: exit {found['exit_code']}: " + " | ".join(found["log"])
    alarms = found["detector"]["alarms"]
    k3 = {
        shape: {
            side: f"{d[side]['k3']['median']:.1e}/{d[side]['k3']['max']:.1e} x{d[side]['count']}"
            for side in ("probe", "control", "cold_repeat", "served")
            if d.get(side, {}).get("count")
        }
        for shape, d in found["divergence"].items()
    }
    return (
        f"{found['name']}: {found['verdict']} exit {found['exit_code']}, "
        f"{found['probes']['valid']} valid probes, invalid {found['probes']['invalid']}, "
        f"evicted {found['probes']['victims_evicted']}, load {found['load']['delivered']}"
        f"/{found['load']['asked']}; "
        f"alarms {[(a['channel'], a['stream'], a['probes'][:1]) for a in alarms]}; "
        f"reasons {found['reasons']}; k3 median/max {json.dumps(k3)}"
    )


def run(soaks: Sequence[Soak], out: Path) -> list[dict[str, Any]]:
    """Soaks side by side, one on each server at a time; their figures."""
    found, waiting = [], list(soaks)
    running: dict[str, tuple[Soak, subprocess.Popen[bytes], float]] = {}
    while waiting or running:
        for soak in list(waiting):
            if soak.server.name not in running:
                waiting.remove(soak)
                running[soak.server.name] = (soak, start(soak, out), time.monotonic())
        for name, (soak, process, began) in list(running.items()):
            if process.poll() is None and time.monotonic() - began > soak.seconds + 60:
                process.kill()
            if process.poll() is not None:
                del running[name]
                found.append(figures(soak, out, process.returncode))
                print(line(found[-1]), "" if soak.server.alive() else "SERVER DIED", flush=True)
        time.sleep(0.2)
    return found


def say(command: Sequence[str], within_s: float) -> tuple[int, str]:
    """Run a command, print what it said at its end; (exit code, all of it)."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=within_s, check=False
        )
        code, said = done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        code, said = 124, (late.stdout or b"").decode(errors="replace")
    print(
        f"$ {' '.join(command[1:])}\n{said[-2500:]}\n(exit {code}, {time.monotonic() - began:.0f} s)",
        flush=True,
    )
    return code, said


def hand_over(
    found_by: Soak, elsewhere: Server, out: Path, *, work: Path | None = None, budget_s: int = 70
) -> None:
    """The way of an incident: list, export, replay, minimise, emit, and the script on both servers.

    Bundles and script go to ``work``, or to ``out``.
    """
    work = work or out
    work.mkdir(parents=True, exist_ok=True)
    soak, state, faulty = [sys.executable, "-m", "soak"], state_of(found_by, out), found_by.server
    _, said = say([*soak, "incidents", "--state", str(state), "--json"], 60)
    try:
        incident = json.loads(said)[0]["id"]
    except (ValueError, LookupError):
        print("no incident to hand over", flush=True)
        return
    bundle, small, script = work / "bundle", work / "small", work / "repro.py"
    say([*soak, "incidents", "export", incident, str(bundle), "--state", str(state)], 60)
    say(
        [
            *soak,
            "replay",
            "--bundle",
            str(bundle),
            "--target",
            faulty.url,
            "--repeat",
            "2",
            "--window",
            "20s",
        ],
        120,
    )
    minimise = [
        "--minimize",
        "--budget",
        f"{budget_s}s",
        "--to",
        str(small),
        "--emit",
        str(script),
        "--window",
        "5s",
    ]
    say([*soak, "replay", "--bundle", str(bundle), "--target", faulty.url, *minimise], budget_s + 80)
    for server in (faulty, elsewhere):
        say([sys.executable, str(script), server.url], 60)
    say([*soak, "replay", "--bundle", str(small), "--target", elsewhere.url, "--repeat", "5"], 60)


def kinds_of_lab(given: argparse.Namespace) -> tuple[list[Server], list[list[Soak]]]:
    """The servers and the soaks, in rounds that run one after the other."""
    base, seconds = given.base, given.seconds
    variants: Path = given.variants

    def falcon(name: str, port: int, trees: Iterable[Path] = (), *flags: str) -> Server:
        return Server(
            name, "falcon", port, [*trees, base], [*FALCON, "--disable-prefill-cuda-graph", *flags],
            given.out / f"{name}.log",
        )  # fmt: skip

    def inkling(name: str, port: int, trees: Iterable[Path] = (), *flags: str) -> Server:
        fa4 = [given.fa4 / "nvidia_cutlass_dsl/dsl_packages", given.fa4]
        return Server(
            name, "inkling", port, [*trees, *fa4, base], [*INKLING, *flags], given.out / f"{name}.log"
        )

    if given.lab == "decode":
        healthy = falcon("healthy", 31000)
        faulty = falcon("bug32555", 31001, [variants / "bug32555"])
        rounds = []
        for concurrency, length in ((3, 2 * seconds), (1, seconds), (5, seconds), (16, seconds)):
            sections = decode_seeded(concurrency)
            rounds.append(
                [
                    Soak(f"healthy-{concurrency}", healthy, length, sections, "healthy"),
                    Soak(f"bug32555-{concurrency}", faulty, length, sections),
                ]
            )
        rounds.append([Soak("released-every-shape", healthy, 3 * seconds // 2, every_shape())])
        return [healthy, faulty], rounds
    if given.lab == "handover":
        healthy = falcon("healthy-no-overlap", 31004, [], "--disable-overlap-schedule")
        faulty = falcon("bug32555-no-overlap", 31005, [variants / "bug32555"], "--disable-overlap-schedule")
        return [healthy, faulty], [
            [Soak(f"{s.name}-3", s, seconds, decode_seeded(3)) for s in (healthy, faulty)]
        ]
    if given.lab == "rows":
        absent = inkling("without34184", 31010)
        present = inkling("with34184", 31011, [variants / "fix34184"])
        # one state for both: the fault spoils controls as well, and then exact mode would never begin
        return [present, absent], [
            [Soak(f"{present.name}-bursts", present, 2 * seconds, bursts(), "rows")],
            [Soak(f"{absent.name}-bursts", absent, seconds, bursts(), "rows")],
        ]
    raise SystemExit(f"no lab {given.lab}")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every server came up; the figures are for people to judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("lab", choices=("decode", "handover", "rows"))
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--fa4", type=Path, default=Path("fa4"))
    parser.add_argument("--variants", type=Path, default=Path("variants"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=45)
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    servers, rounds = kinds_of_lab(given)
    try:
        ready = start_all(servers, first_alone=True)
        found: list[dict[str, Any]] = []
        for soaks in rounds:
            found += run([s for s in soaks if s.server in ready], given.out)
            (given.out / "figures.json").write_text(json.dumps(found, indent=1))
        if given.lab == "handover" and len(ready) == 2:
            hand_over(rounds[0][1], servers[0], given.out)
        for server in ready:
            print(server.name, "prefill batches by (sequences, graph):", server.prefill_batches(), flush=True)
        return 0 if len(ready) == len(servers) else 1
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
