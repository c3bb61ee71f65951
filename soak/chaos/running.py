"""One experiment from file to report: undo what others left, open ledger, watchdog and proxy, soak, conclude.

Refuses before it touches anything. However it ends, what it did is undone by it, by its watchdog, by
`soak chaos stop`, or by the next experiment, in this order.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from soak.chaos.acting import Acting, HowToUndo
from soak.chaos.conducting import Conductor
from soak.chaos.ledger import ABORT, Entry, Ledger
from soak.chaos.proxy import Proxy
from soak.chaos.report import build_report
from soak.chaos.schedule import ends_us, schedule
from soak.chaos.spec import Experiment
from soak.chaos.undoing import Undone, undo, undo_all_left
from soak.chaos.watchdog import Watchdog
from soak.config import Config, ConfigError
from soak.export.summary import write_atomically
from soak.export.terminal import Terminal
from soak.run.soaking import SoakRun
from soak.sglang.client import SGLangClient

REPORT_NAME = "chaos.json"
_SLACK_S = 3600.0  # the run ends with the experiment; this only bounds it


class StillInForceError(Exception):
    """What an earlier experiment did cannot be undone; the message says what."""


class ExperimentRun:
    """One experiment; its files go to ``out``. watchdog: whether a process beside it undoes at its death."""

    def __init__(
        self,
        experiment: Experiment,
        out: Path,
        ledgers: Path,
        screen: Terminal,
        *,
        watchdog: bool = True,
        command: str = "",
    ) -> None:
        self._experiment, self._out, self._ledgers, self._screen = experiment, out, ledgers, screen
        self._watchdog, self._command = watchdog, command
        self._planned = schedule(experiment)
        needed = ends_us(self._planned) / 1e6 + experiment.cool_down
        self._config = experiment.config(needed + _SLACK_S)

    async def run(self, stop: asyncio.Event) -> dict[str, Any]:
        """The report, which is also in ``out``/chaos.json.

        Raises StillInForceError, LedgerUnusable, ProxyUnusable, and what SoakRun.run raises.
        """
        self._out.mkdir(parents=True, exist_ok=True)
        left = [one for one in await undo_all_left(self._ledgers, self._screen.say) if not one.ok]
        if left:
            raise StillInForceError(
                "an earlier experiment has left something that cannot be undone: "
                + "; ".join(one.line() for one in left)
            )
        ledger = Ledger(self._ledgers, self._experiment.experiment)
        watchdog = Watchdog(ledger.path, self._out / "watchdog.log") if self._watchdog else None
        try:
            return await self._with_ledger(ledger, stop)
        finally:
            ledger.close()
            if watchdog is not None:
                watchdog.close()

    async def _with_ledger(self, ledger: Ledger, stop: asyncio.Event) -> dict[str, Any]:
        experiment, name = self._experiment, self._experiment.soaked
        sent = ledger.begin("load", name, HowToUndo(experiment.targets[name], self._out)(ABORT))
        undone: list[Undone] = []
        async with AsyncExitStack() as stack:
            clients = {
                each: await stack.enter_async_context(self._client(each)) for each in experiment.targets
            }
            proxy = None
            if experiment.proxied:
                proxy = await stack.enter_async_context(Proxy(experiment.targets[name].url))
            conductor = Conductor(
                experiment,
                self._planned,
                Acting(experiment, ledger, clients, proxy, self._out),
                self._config.detect.max_abs_d,
                self._config.probe.timeout,
            )
            soak = SoakRun(
                self._through(proxy), self._out, self._screen, command=self._command, beside=conductor
            )
            try:
                summary = await soak.run(stop)
            finally:
                undone += await self._take_back(ledger, sent)
        report = build_report(
            experiment, self._planned, conductor.result, conductor.phases, summary, undone=undone
        )
        write_atomically(self._out / REPORT_NAME, report)
        return report

    async def _take_back(self, ledger: Ledger, number: int) -> list[Undone]:
        """The run's own requests, where its session could not take all of them back."""
        entry: Entry = next(each for each in ledger.in_force if each.number == number)
        ok, words = await undo(entry.undo)
        if ok:
            ledger.end(number)
            return []
        return [Undone(self._experiment.experiment, entry, ok, words)]

    def _client(self, name: str) -> SGLangClient:
        target = self._experiment.targets[name]
        return SGLangClient(target.url, api_key=target.as_target(target.url).api_key(), max_connections=64)

    def _through(self, proxy: Proxy | None) -> Config:
        if proxy is None:
            return self._config
        target = self._experiment.targets[self._experiment.soaked].as_target(proxy.url)
        return self._config.model_copy(update={"target": target})


def refuse_commands_that_are_not_there(experiment: Experiment) -> None:
    """Raises ConfigError for a command of a target that cannot be found, before anything is sent."""
    for name, target in experiment.targets.items():
        for what in ("restart", "kill", "start"):
            argv = getattr(target, what)
            if argv and shutil.which(argv[0]) is None:
                raise ConfigError(
                    f"targets.{name}.{what}: there is no program {argv[0]!r}: it is an argv list, not a line "
                    "of a shell"
                )


def experiments() -> Mapping[str, Path]:
    """Those that ship, by name, in a checkout or installed."""
    checkout = Path(__file__).resolve().parents[2] / "experiments"
    folder = checkout if checkout.is_dir() else Path(__file__).resolve().parents[1] / "experiments"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
