"""Does one action of an experiment, from its begin to its end: over HTTP, by command, or in the proxy.

Whatever has to be undone is in the ledger before it is done. On one target only one action that others can
feel is in force at a time: a reload in the middle of a pause can take a server down.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from soak.chaos.commands import run_command
from soak.chaos.ledger import ABORT, CONTINUE, NOTHING, START, Ledger, Undo
from soak.chaos.proxy import Proxy
from soak.chaos.schedule import Planned
from soak.chaos.spec import ChaosTarget, Experiment
from soak.chaos.steps import AbortStorm, RollingRestart
from soak.chaos.undoing import until_serving
from soak.drive import deed
from soak.drive.deed import Settings
from soak.drive.doing import Hands, Leash, NotDoneError, Own, do, prompts_of
from soak.plan.geometry import Geometry
from soak.plan.words import Draw
from soak.sglang.client import SGLangClient
from soak.sglang.session import Session

_USUAL_POOL = 8192  # tokens, of a server that does not say


@dataclass(slots=True)
class Acting:
    """clients: by target, past the proxy. proxy: None where nothing is done to the network."""

    experiment: Experiment
    ledger: Ledger
    clients: Mapping[str, SGLangClient]
    proxy: Proxy | None
    out: Path
    _alone: dict[str, asyncio.Lock] = field(default_factory=dict)
    _at_once: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is in force yet."""
        self._alone = {name: asyncio.Lock() for name in self.experiment.targets}
        self._at_once = asyncio.Semaphore(self.experiment.blast_radius.at_once)

    @asynccontextmanager
    async def room(self, planned: Planned) -> AsyncIterator[None]:
        """Wait until the blast radius has room for it, and keep the room while inside."""
        if not self.experiment.actions[planned.action].hurts:
            yield
            return
        async with self._at_once:
            names = sorted(set(planned.targets))
            for name in names:
                await self._alone[name].acquire()
            try:
                yield
            finally:
                for name in names:
                    self._alone[name].release()

    def settled(self, planned: Planned, geometry: Geometry, nonce: int, stem_seed: int) -> Settings:
        """The settings with what only the run can tell: how many prompts fill the pool, ids of its own.

        The nonce keeps prompts from being found in what an earlier run of the same seed has left.
        """
        settings = dict(planned.settings)
        if "seed" in settings and planned.name in deed.PLAYABLE:
            settings["seed"] = Draw(int(settings["seed"]), "chaos salt", planned.number, nonce).below(1 << 62)
        if planned.name == deed.PRESSURE:
            pool = geometry.max_total_tokens or _USUAL_POOL
            tokens = min(int(settings["tokens"]), max(16, geometry.context_len // 2))
            each = tokens + int(settings["new_tokens"])
            fill = int(settings.pop("fill_per_mille"))
            settings |= {"tokens": tokens, "prompts": max(1, -(-pool * fill // (1000 * each)))}
        step = self.experiment.actions[planned.action]
        if isinstance(step, AbortStorm) and step.of == "witnesses":
            settings |= {
                "stems": self.experiment.witnesses,
                "stem_tokens": self.experiment.witness_tokens,
                "stem_seed": stem_seed,
            }
        return settings

    async def act(
        self,
        planned: Planned,
        settings: Settings,
        session: Session,
        ordinary: tuple[int, int],
        timeout_s: float,
    ) -> tuple[str, list[Own]]:
        """Do it; words, and what prompts of ours came to. Raises NotDoneError."""
        name, target = planned.name, planned.targets[0]
        if name in deed.OF_THE_NETWORK:
            if self.proxy is None:
                raise NotDoneError("there is no proxy")  # the experiment asked for one: a fault of ours
            with self.ledger.holding(name, target, Undo(NOTHING)), self.proxy.in_force(name, settings):
                await asyncio.sleep(planned.for_us / 1e6)
            return f"{self.proxy.passed} connections so far", []
        if name in deed.PLAYABLE:
            made = prompts_of(settings, ordinary) if settings.get("prompts") else []
            hands = Hands(self.clients[target], session, made, timeout_s, self._leash(target))
            return await do(name, settings, hands)
        if name == deed.KILL:
            return await self._kill(planned, target), []
        return await self._restart(planned.targets, planned), []

    def _leash(self, target: str) -> Leash:
        undo = self.undo(target)

        def holding(name: str) -> AbstractContextManager[object]:
            paused = name in (deed.PAUSE, deed.RETRACTION)
            how = undo(CONTINUE) if paused else Undo(NOTHING)
            return self.ledger.holding(name, target, how)

        return holding

    def undo(self, target: str) -> HowToUndo:
        """Makes undo entries of that target."""
        return HowToUndo(self.experiment.targets[target], self.out)

    async def _kill(self, planned: Planned, name: str) -> str:
        target = self.experiment.targets[name]
        with self.ledger.holding(deed.KILL, name, self.undo(name)(START, target.start)):
            killed = await self._command(target.kill, target)
            await asyncio.sleep(planned.for_us / 1e6)
            started = await self._command(target.start, target)
            await self._serves(name, target)
        return f"{killed}; {started}, and it serves again"

    async def _restart(self, names: Sequence[str], planned: Planned) -> str:
        step, words = self.experiment.actions[planned.action], []
        for place, name in enumerate(names):
            if place and isinstance(step, RollingRestart):
                await asyncio.sleep(step.apart)
            target = self.experiment.targets[name]
            how = self.undo(name)(START, target.restart, wait_s=target.ready_within)
            with self.ledger.holding(planned.name, name, how):
                words.append(f"{name}: {await self._command(target.restart, target)}")
                await self._serves(name, target)
        return "; ".join(words) + ", and serves again"

    async def _command(self, argv: Sequence[str], target: ChaosTarget) -> str:
        ok, words = await run_command(argv, target.ready_within, self.out / "commands.log")
        if not ok:
            raise NotDoneError(words)
        return words

    async def _serves(self, name: str, target: ChaosTarget) -> None:
        if not await until_serving(self.clients[name], target.ready_within):
            raise NotDoneError(f"{name} did not serve within {target.ready_within:g} s")


@dataclass(frozen=True, slots=True)
class HowToUndo:
    """Entries for one target; where its key is, never the key."""

    target: ChaosTarget
    out: Path

    def __call__(self, how: str, argv: Sequence[str] = (), *, wait_s: float = 0.0) -> Undo:
        """An entry."""
        file = self.target.api_key_file
        return Undo(
            how=how,
            url=self.target.url,
            api_key_env=self.target.api_key_env,
            api_key_file=str(file.resolve()) if file is not None else "",
            argv=tuple(argv),
            within_s=self.target.ready_within,
            wait_s=wait_s,
            out=str(self.out.resolve()) if how == ABORT else "",
        )
