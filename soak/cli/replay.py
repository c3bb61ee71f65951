"""``soak replay``: an incident, a bundle or a whole plan again; shrink it, or make a script of it."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from soak import config as configs
from soak.chaos.leash import leashed
from soak.chaos.ledger import LedgerUnusable, ledger_folder
from soak.cli.given import overrides
from soak.cli.journals import journal_file, journal_options
from soak.cli.run import run_id_folder, soak
from soak.cli.stoppable import explain, fail, run_stoppable
from soak.config import ConfigError, duration_s
from soak.config.traffic import Load
from soak.drive.doing import Leash, unleashed
from soak.export.patience import Patience
from soak.export.replay_words import as_values, counted, minimised_words, replay_words
from soak.incident import cuts
from soak.incident.about import About
from soak.incident.bundle import BundleError, read_bundle, write_bundle
from soak.incident.journal_file import JournalUnusable, journal_path
from soak.incident.journal_ids import TraceUnavailable
from soak.incident.journal_reader import JournalReader, UnknownIncident
from soak.incident.judge import Reading
from soak.incident.minimise import NotReproducedError, about_minimised
from soak.incident.order import Speed
from soak.incident.player import Manner
from soak.incident.readings import Readings, ReadingsError
from soak.incident.rebuild import read_incident
from soak.incident.script import ScriptError, write_script
from soak.incident.trace import Trace, words_of
from soak.run.exit_code import ExitCode
from soak.run.replanning import read_run, refuse_other_plan, refuse_other_seed
from soak.run.replaying import Replayed, Replaying, Wanted

_AT_LEAST_S = 10.0  # of a plan that is run again until an incident
_AFTER_S = 5.0

_REFUSED = (
    ConfigError,
    BundleError,
    JournalUnusable,
    UnknownIncident,
    ReadingsError,
    ScriptError,
    LedgerUnusable,
)


@dataclass(frozen=True, slots=True)
class Source:
    """What is replayed, and the name that a smaller one gets by default."""

    trace: Trace
    about: About
    name: str


def from_journal(path: Path, name: str) -> Source:
    """An incident's trace. Raises UnknownIncident with those there are, TraceUnavailable, JournalUnusable."""
    reader = JournalReader(path)
    try:
        try:
            found = reader.incident(name)
        except UnknownIncident as error:
            there = ", ".join(incident.id for incident in reader.incidents()) or "none"
            raise UnknownIncident(f"{error}. There are: {there}") from None
        return Source(*read_incident(reader, found.id), f"incident-{found.id}")
    finally:
        reader.close()


def run_of(path: Path, name: str) -> tuple[dict[str, Any], float]:
    """Of an incident's run: what its run.json says, and the seconds until the alarm."""
    reader = JournalReader(path)
    try:
        found = reader.incident(name)
        if found.session is None:
            raise TraceUnavailable(f"incident {found.id}: the journal does not know its run")
        row = reader.session(found.session)
        known = {"run_id": row.run_id, "seed": row.seed, "nonce": row.nonce, "spec": row.spec}
        return {**known, "spec_digest": row.spec_digest}, (found.raised_us - row.started_us) / 1e6
    finally:
        reader.close()


def windowed(trace: Trace, window: str | None) -> Trace:
    """The part that --window names: a number of prompts, or a time such as 30s. Raises ConfigError."""
    if window is None:
        return trace
    if re.fullmatch(r"\d{1,9}", window):
        return cuts.latest(trace, int(window))
    try:
        return cuts.since(trace, round(duration_s(window) * 1e6))
    except ValueError as error:
        raise ConfigError(f"--window {window}: a number of prompts, or {error}") from error


def code_of(result: Replayed) -> ExitCode:
    """1 if it was reproduced, 0 if every replay that gave an answer said no, 3 without any answer."""
    if result.minimised is not None or result.count(Reading.REPRODUCED):
        return ExitCode.CORRUPT
    return ExitCode.CLEAN if result.count(Reading.NOT_REPRODUCED) else ExitCode.INCONCLUSIVE


@click.command(
    epilog="""\b
Exit codes: 0 not reproduced, 1 reproduced, 2 bad usage, bundle or config, 3 no replay gave an answer,
4 the server is unusable, lost or another one (--anyway), 70 soak itself failed, 130 interrupted.

\b
Examples:
  soak replay --incident 3fa9c1d2 --state soak-state.sqlite
  soak replay --bundle incident-3fa9c1d2 --target http://127.0.0.1:30000 --repeat 5
  soak replay --bundle incident-3fa9c1d2 --minimize --budget 10m --emit repro.py
  soak replay --seed 7 workloads/smoke.yaml"""
)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--seed", type=int, help="The run's seed; alone, with its CONFIG, the whole plan runs again.")
@click.option("--incident", metavar="ID", help="An incident of a journal.")
@click.option("--bundle", type=click.Path(path_type=Path), help="A folder that `soak incidents export` made.")
@journal_options
@click.option("--target", metavar="URL", help="The server, e.g. http://127.0.0.1:30000.")
@click.option("--repeat", type=click.IntRange(0, 1000), default=3, show_default=True, help="0: with --emit.")
@click.option("--window", metavar="N|TIME", help="Only so much before the question and around its prefix.")
@click.option(
    "--speed", type=click.Choice([s.value for s in Speed]), help="1: as recorded; max: no idle time."
)
@click.option("--forced", is_flag=True, help="Follow-ups go on from the recorded outputs.")
@click.option("--exact-ids", is_flag=True, help="The recorded token ids, not others of the same pattern.")
@click.option("--anyway", is_flag=True, help="Also on a server that is another one.")
@click.option("--minimize", "minimise", is_flag=True, help="Shrink the trace while it reproduces.")
@click.option(
    "--budget", metavar="TIME", default="10m", show_default=True, help="Server time for --minimize."
)
@click.option("--to", type=click.Path(path_type=Path), help="Folder for the smaller bundle.")
@click.option("--emit", type=click.Path(path_type=Path), help="Write a stand-alone script of the trace.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def command(*, config: Path | None, as_json: bool, quiet: bool, **given: Any) -> None:
    """Send again what led to a wrong answer, ask again, and say whether it is wrong again.

    A replay keeps the order, the co-batching and what ran beside what. Token ids are other ones of the same
    pattern in every repeat, so that none finds in the cache what the one before left there; --exact-ids sends
    the recorded ones (repeats then get a namespace each). CONFIG says what may be done to the server.
    """
    try:
        with Patience(sys.stderr, quiet=quiet) as patience:
            code = _Chosen(config, as_json, given, patience).replay()
    except _REFUSED as error:
        code = fail(ExitCode.USAGE, str(error))
    except TraceUnavailable as error:
        code = fail(ExitCode.USAGE, f"{error}. To run the whole plan again: --seed and the run's CONFIG")
    except NotReproducedError as error:
        code = fail(ExitCode.CLEAN, f"not reproduced: {error}")
    except (asyncio.CancelledError, Exception) as error:
        code = explain(error, config or Path(), "no result was written")
    sys.exit(code)


class _Chosen:
    """The options of one call, and what they come to."""

    def __init__(self, config: Path | None, as_json: bool, given: dict[str, Any], patience: Patience) -> None:
        self._path, self._json, self._given, self._patience = config, as_json, given, patience
        if given["incident"] and given["bundle"]:
            raise ConfigError("--incident and --bundle each name a trace: give one of them")
        if given["incident"] is None and given["bundle"] is None and given["seed"] is None:
            raise ConfigError(
                "what is to be replayed? Give --incident ID, --bundle DIR, or --seed and CONFIG"
            )
        self._traced = given["incident"] is not None or given["bundle"] is not None
        if not self._traced:
            for name in ("window", "forced", "minimise", "to", "emit", "speed"):
                if given[name]:
                    option = "minimize" if name == "minimise" else name
                    raise ConfigError(f"--{option}: it is about a trace; give --incident or --bundle, too")
        if given["to"] and not given["minimise"]:
            raise ConfigError("--to: only --minimize makes a smaller bundle")
        if given["minimise"] and given["exact_ids"]:
            raise ConfigError("--exact-ids: --minimize repeats too often to send the same ids again")
        self._stack = ExitStack()  # what is open until the end of the command
        self._config = configs.load(config, overrides(target__url=given["target"], run__seed=given["seed"]))

    def replay(self) -> int:
        """Do what was asked; the exit code."""
        with self._stack:
            return self._replay()

    def _replay(self) -> int:
        if not self._traced:
            return self._whole_plan()
        given = self._given
        try:
            source = self._source()
        except TraceUnavailable as error:
            if given["seed"] is None or self._path is None:
                raise
            self._say(f"{error}: the plan is run again instead, from its start until then")
            return self._whole_plan()
        refuse_other_seed(given["seed"], source.about.seed, source.name)
        trace = windowed(source.trace, given["window"])
        if given["minimise"]:
            return self._minimise(trace, source)
        if given["emit"]:
            self._emit(given["emit"], trace, source.about)
            self._say(f"written: {given['emit']}")
            if not given["repeat"]:
                return int(ExitCode.CLEAN)
        result = run_stoppable(self._replaying(trace, source.about).replay)
        self._show(result)
        return int(code_of(result))

    def _source(self) -> Source:
        given = self._given
        if given["bundle"] is not None:
            trace, about = read_bundle(given["bundle"])
            return Source(trace, about, given["bundle"].resolve().name)
        return from_journal(journal_file(given["state"], given["out"], given["journal"]), given["incident"])

    def _replaying(self, trace: Trace, about: About) -> Replaying:
        given = self._given
        exact, repeat = given["exact_ids"], max(1, given["repeat"])
        default = Speed.MAX if given["minimise"] else Speed.RECORDED
        act, leash = self._acting(trace)
        manner = Manner(
            act=act,
            leash=leash,
            speed=Speed(given["speed"]) if given["speed"] else default,
            forced=given["forced"],
            apart=exact and repeat > 1,
            timeout_s=self._config.probe.timeout,
        )
        first = 0 if exact else 1 + secrets.randbits(61)
        return Replaying(
            self._config, trace, about, Wanted(repeat, manner, first, given["anyway"]), self._say
        )

    def _emit(self, path: Path, trace: Trace, about: About) -> None:
        write_script(path, trace, about)
        if trace.acted:
            names = counted([words_of(acted) for acted in trace.acted])
            self._say(f"{path} sends the prompts alone, without what was done to the server: {names}")

    def _acting(self, trace: Trace) -> tuple[bool, Leash]:
        """Whether load's pauses and the actions of an experiment are done again, and on which leash."""
        if not trace.acted:
            return False, unleashed
        done = counted([words_of(acted) for acted in trace.acted if acted.playable])
        left = counted([words_of(acted) for acted in trace.acted if not acted.playable])
        if left:
            self._say(f"an experiment's actions that no replay can do: {left}")
        if not done:
            return False, unleashed
        if not self._config.target.disruptive:
            self._say(
                f"what was done to the server is left out ({done}): everybody on it would feel that; a "
                "CONFIG with target.disruptive: true lets it be done again"
            )
            return False, unleashed
        self._say(f"done to the server again: {done}")
        return True, self._stack.enter_context(leashed(self._config.target, ledger_folder()))

    def _say(self, words: str) -> None:
        self._patience.say(words)

    def _show(self, result: Replayed) -> None:
        for line in result.differences:
            self._say(f"another server: {line}")
        if result.held_s:
            self._say(f"budgets or the server's queue held requests back for {result.held_s:.1f} s in all")
        if self._json:
            values = as_values(result.original, result.judged, result.repeats)
            click.echo(json.dumps(values | {"differences": result.differences}, indent=2))
        else:
            click.echo(replay_words(result.original, result.judged, result.repeats))

    def _minimise(self, trace: Trace, source: Source) -> int:
        given = self._given
        folder = given["to"] or Path(f"{source.name}-min")
        if folder.exists():
            raise ConfigError(f"--to: {folder} is there already; name a folder that is not")
        if given["emit"] and given["emit"].exists():
            raise ConfigError(f"--emit: {given['emit']} is there already; name a file that is not")
        try:
            budget_s = duration_s(given["budget"])
        except ValueError as error:
            raise ConfigError(f"--budget {given['budget']}: {error}") from error
        kept = folder.with_name(f"{folder.name}.readings.jsonl")
        with Readings(kept, trace) as readings:
            if readings.replays:
                self._say(f"going on with {readings.replays} replays of an earlier attempt, in {kept}")
            replaying = self._replaying(trace, source.about)
            self._patience.now(
                f"minimising {len(trace.sent)} prompts",
                lambda: f"{readings.replays} replays, {readings.seconds:.0f} s of {budget_s:.0f} s",
            )
            result = run_stoppable(lambda stop: replaying.minimise(stop, readings, budget_s))
        found = result.minimised
        if found is None:
            raise LookupError("the search ended without a result")
        about = about_minimised(source.about, trace, found)
        write_bundle(folder, found.trace, about)
        click.echo(minimised_words(len(trace.sent), found))
        self._say(f"written: {folder}")
        if given["emit"]:
            self._emit(given["emit"], found.trace, about)
            self._say(f"written: {given['emit']}")
        return int(code_of(result))

    def _recorded(self, known: dict[str, Any] | None) -> Load:
        """The config's load, by the run's decisions if it is adaptive. Raises ConfigError without them."""
        given, load = self._given, self._config.load
        if load.adaptive is None:
            return load
        if known is None:
            raise ConfigError(
                "load.adaptive: a seed means the same load only with the decisions of the run, which are in "
                "its journal: name it with --out, or an incident of it with --incident"
            )
        if given["out"]:
            kept = self._config.journal.path or journal_path(self._config.run.state, given["out"])
        else:
            kept = journal_file(given["state"], None, given["journal"])
        reader = JournalReader(kept)
        try:
            rows = tuple(reader.decisions(known["run_id"]))
        finally:
            reader.close()
        self._say(f"{len(rows)} decisions of run {known['run_id']} are followed")
        return load.model_copy(update={"adaptive": load.adaptive.model_copy(update={"recorded": rows})})

    def _whole_plan(self) -> int:
        """The plan from index 0, probed as the run was; its alarms are the answer."""
        given, config = self._given, self._config
        self._patience.now("")  # the run's own display tells more
        if self._path is None:
            raise ConfigError(
                "--seed: a seed means the same plan only with the config of the run, and none was given: add "
                "CONFIG"
            )
        known: dict[str, Any] | None = None
        duration = config.run.duration
        if given["incident"]:
            file = journal_file(given["state"], given["out"], given["journal"])
            known, until_s = run_of(file, given["incident"])
            duration = min(duration, max(_AT_LEAST_S, until_s + _AFTER_S))
        elif given["out"]:
            known = read_run(given["out"] / "run.json")
        if known is not None:
            run = known
            refuse_other_seed(given["seed"], run["seed"], f"run {run['run_id']}")
            run_stoppable(lambda stop: refuse_other_plan(config, run, stop))
        if given["exact_ids"] and known is None:
            raise ConfigError("--exact-ids: the run's nonce is wanted for that: name its folder with --out")
        load = self._recorded(known)
        codes = []
        for number in range(max(1, given["repeat"])):
            folder = run_id_folder().with_name(f"{run_id_folder().name}-replay-{number + 1}")
            nonce = known["nonce"] if known is not None and given["exact_ids"] else None
            again = config.model_copy(
                update={
                    "load": load,
                    "run": config.run.model_copy(
                        update={"nonce": nonce, "state": None, "duration": duration}
                    ),
                }
            )
            code, _ = soak(again, folder, command=f"soak replay --seed {given['seed']} {self._path}")
            if code not in (ExitCode.CLEAN, ExitCode.CORRUPT, ExitCode.INCONCLUSIVE, ExitCode.LOAD):
                return code
            codes.append(code)
        k = codes.count(ExitCode.CORRUPT)
        click.echo(f"reproduced {k} of {len(codes)}: runs of the whole plan that raised an alarm")
        return int(ExitCode.CORRUPT if k else ExitCode.CLEAN)
