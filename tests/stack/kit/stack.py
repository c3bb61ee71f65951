"""The shipped stack on loopback, without containers: soaks of simulators, Prometheus, Alertmanagers, webhook.

Configs are the shipped ones; what differs are addresses, and that Alertmanager does not wait to tell of a
change in a group (as shipped it waits five minutes, in which no flapping would be seen here).
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.stack.kit.program import Program, answers, free_port, until
from tests.stack.kit.tools import Tools

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
TOKEN = "the-token-of-the-stack-tier"
FAULT = "state-not-restored"


class Webhook:
    """Whoever is paged: keeps the time (seconds since 1970) and body of each notification."""

    def __init__(self) -> None:
        self.got: list[tuple[float, dict[str, Any]]] = []
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                got.append((time.time(), json.loads(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/page"

    def close(self) -> None:
        """No more pages."""
        self._server.shutdown()
        self._server.server_close()

    def pages(self, status: str = "firing") -> list[tuple[str, str, str]]:
        """Alert, fleet and fingerprint of each notification with that status, in their order."""
        return [
            (
                alert["labels"]["alertname"],
                alert["labels"].get("fleet", ""),
                alert["labels"].get("fingerprint", ""),
            )
            for _, body in self.got
            for alert in body["alerts"]
            if alert["status"] == status
        ]


@dataclass(slots=True)
class Soak:
    """A simulator and the soak of it."""

    simulator: Program
    soak: Program
    server: str
    metrics: str
    state: Path


@dataclass(slots=True)
class Stack:
    """All that runs: a faulty and a healthy soak by name, an Alertmanager by each value of SOAK_ALERTS."""

    webhook: Webhook
    soaks: dict[str, Soak]
    prometheus: Program
    managers: dict[str, Program]
    url: str
    manager_urls: dict[str, str]
    started_s: float = field(default_factory=time.time)

    def ask(self, path: str, **params: Any) -> Any:
        """Prometheus's HTTP API; gives ``data``."""
        return _get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(params)}")["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """An instant query's vector."""
        result: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        return result

    def series(self, expr: str) -> list[dict[str, Any]]:
        """A range query from the start to now."""
        result: list[dict[str, Any]] = self.ask(
            "query_range", query=expr, start=self.started_s, end=time.time(), step=5
        )["result"]
        return result

    def known_to(self, manager: str) -> list[dict[str, Any]]:
        """Alerts that an Alertmanager holds."""
        held: list[dict[str, Any]] = _get(f"{self.manager_urls[manager]}/api/v2/alerts")
        return held

    def ready(self) -> None:
        """Wait for Prometheus to answer queries."""
        until("Prometheus is ready", lambda: answers(f"{self.url}/-/ready"))


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def start_soak(name: str, fault: str | None, folder: Path, keep: ExitStack) -> Soak:
    """A simulator and a soak with a state file, by the config of the demo."""
    folder = folder / name  # of its own: the journal lies beside the state
    folder.mkdir()
    python = [sys.executable, "-m", "soak"]
    # behind the soak, which leaves out latencies that it spoiled itself by being late
    sim = [
        "nice",
        "-n",
        "10",
        *python,
        "sim",
        "--port",
        "0",
        "--max-total-tokens",
        "65536",
        "--max-mamba-slots",
        "512",
    ]
    env = {"SOAK_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1", "COLUMNS": "2000"}
    simulator = Program(f"sim-{name}", [*sim, *(["--fault", fault] if fault else [])], folder, env)
    keep.callback(simulator.stop)
    server = simulator.says(r"simulator ready on (http://127\.0\.0\.1:\d+)")[1]
    config = yaml.safe_load((ROOT / "workloads" / "demo.yaml").read_text(encoding="utf-8"))
    config["target"] = {"url": server}
    config["run"] |= {"duration": "30m", "state": str(folder / f"{name}.sqlite")}
    config["load"] |= {"rate": 1.5}
    config["detect"] |= {"p0_max": 0.5}
    config["probe"] |= {"top_k": 4}
    config["budget"] |= {"in_flight": 10, "tokens_per_second": 20000}
    config["metrics"] = {"port": free_port()}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    command: list[str | Path] = [*python, "run", folder / f"{name}.yaml", "--out", folder / f"out-{name}"]
    soak = Program(f"soak-{name}", command, folder, env)
    keep.callback(soak.stop)
    return Soak(simulator, soak, server, f"127.0.0.1:{config['metrics']['port']}", folder / f"{name}.sqlite")


def start_stack(tools: Tools, folder: Path, keep: ExitStack) -> Stack:
    """Everything, with a faulty server in one fleet and a healthy one in another."""
    webhook = Webhook()
    keep.callback(webhook.close)
    soaks = {
        name: start_soak(name, fault, folder, keep) for name, fault in (("faulty", FAULT), ("healthy", None))
    }
    managers, urls = {}, {}
    for way in ("alertmanager", "grafana"):
        urls[way] = f"http://127.0.0.1:{free_port()}"
        managers[way] = Program(
            f"manager-{way}", _manager(tools, way, urls[way], webhook, folder), folder, {}
        )
        keep.callback(managers[way].stop)
    url = f"http://127.0.0.1:{free_port()}"
    _prometheus_config(tools, soaks, list(urls.values()), folder)
    flags = ["--enable-feature=native-histograms"] if tools.converts_histograms else []
    prometheus = Program(
        "prometheus",
        [
            tools.prometheus,
            f"--config.file={folder / 'prometheus' / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}",
            f"--web.listen-address={url.removeprefix('http://')}",
            *flags,
        ],
        folder,
        {},
    )
    keep.callback(prometheus.stop)
    stack = Stack(webhook, soaks, prometheus, managers, url, urls)
    stack.ready()
    return stack


def _manager(tools: Tools, way: str, url: str, webhook: Webhook, folder: Path) -> list[str | Path]:
    config = yaml.safe_load((DEPLOY / "alertmanager" / f"{way}.yml").read_text(encoding="utf-8"))
    (folder / "url").write_text(webhook.url)
    for receiver in config["receivers"]:
        for hook in receiver.get("webhook_configs", ()):
            hook["url_file"] = str(folder / "url")
            if not tools.reads_address_from_file:
                hook["url"] = webhook.url
                del hook["url_file"]
    for route in (config["route"], *config["route"].get("routes", ())):
        route["group_interval"] = "1s"
    (folder / f"{way}.yml").write_text(yaml.safe_dump(config))
    return [
        tools.alertmanager,
        f"--config.file={folder / way}.yml",
        f"--storage.path={folder / ('data-' + way)}",
        f"--web.listen-address={url.removeprefix('http://')}",
        "--cluster.listen-address=",
    ]


def _prometheus_config(tools: Tools, soaks: dict[str, Soak], managers: list[str], folder: Path) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    for job in config["scrape_configs"]:
        job["static_configs"] = [
            {
                "targets": [of.metrics if job["job_name"] == "soak" else of.server.removeprefix("http://")],
                "labels": {"fleet": name},
            }
            for name, of in soaks.items()
        ]
        if not tools.converts_histograms:
            job.pop("convert_classic_histograms_to_nhcb", None)
            job.pop("always_scrape_classic_histograms", None)
    targets = [url.removeprefix("http://") for url in managers]
    config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": targets}]}]}
    (folder / "prometheus" / "rules").mkdir(parents=True)
    (folder / "prometheus" / "prometheus.yml").write_text(yaml.safe_dump(config))
    rules = (DEPLOY / "prometheus" / "rules" / "soak.yml").read_text(encoding="utf-8")
    (folder / "prometheus" / "rules" / "soak.yml").write_text(rules)
