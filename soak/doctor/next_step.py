"""What to type next, from how the report stands. Plain words; it decides nothing about the server."""

from __future__ import annotations

import shlex

from soak.config import Config
from soak.doctor.finding import Mark, Report, State

_FIRST = 3  # steps that somebody on call will read


def steps_after(report: Report, config: Config, config_words: str) -> tuple[str, ...]:
    """One to three steps, the first thing to do first."""
    url = shlex.quote(config.target.url)
    if report.state in (State.UNFIT, State.UNUSABLE):
        return tuple(dict.fromkeys(line.step for line in report.marked(Mark.BAD)))[:_FIRST]
    if report.state is State.PARTLY:
        return tuple(dict.fromkeys(line.step for line in report.marked(Mark.UNKNOWN)))[:_FIRST]
    if config_words:
        return (f"soak run {config_words} --target {url}",)
    if config.target.loopback:
        return (f"soak run --target {url} --duration 10m",)
    return (
        f"write soak.yaml:  target: {{url: '{config.target.url}', allow_load: true}}",
        f"                  budget: {{in_flight: {config.budget.in_flight}, "
        f"tokens_per_second: {config.budget.tokens_per_second:.0f}}}",
        "soak plan soak.yaml --cost; soak run soak.yaml --duration 10m",
    )
