"""The one YAML file of a run, as pydantic models. Every error names its key, what was given, what is allowed.

Nothing here opens a connection; a config that loads has every value inside its range.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from soak.detect.run_length import run_length_for, run_length_words
from soak.plan.geometry import Geometry
from soak.plan.shapes import SHAPES, chunked_burst
from soak.plan.spec import DEFAULT_WEIGHTS, ResolvedSpec

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MANY = 1 << 62
_ROOM = 3  # a shape's prompt has several parts of min_prompt or so: from here on they fit together
_SMALLEST = 96  # tokens; in less, the shapes cannot be told apart


class ConfigError(Exception):
    """One line per mistake, each with the key's path."""


def duration_s(value: object) -> float:
    """Seconds from 90, "90", "90s", "1.5h", "2d". Raises ValueError in words."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            raise ValueError("a duration such as 90s, 10m, 1.5h or 2d is wanted")
        seconds = float(match[1]) * _UNITS[match[2] or "s"]
    if not 0 < seconds < 1e9:
        raise ValueError("a duration above 0 is wanted")
    return seconds


Seconds = Annotated[float, BeforeValidator(duration_s)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Target(_Strict):
    """Which server, and what may be done to it."""

    url: str = "http://127.0.0.1:30000"
    api_key_env: str = "SGLANG_API_KEY"
    api_key_file: Path | None = None
    allow_load: bool = False
    shared: bool = False

    @model_validator(mode="after")
    def _address(self) -> Target:
        shown = re.sub(r"//[^/]*@", "//", self.url)
        try:
            parts = urlsplit(self.url)
            _ = parts.port  # raises where it is no port
        except ValueError as error:
            raise ValueError(f"url {shown!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {shown!r}: an address such as http://127.0.0.1:30000 is wanted")
        if parts.username or parts.password:
            raise ValueError("url: keys do not belong in an address; use api_key_env or api_key_file")
        if parts.query or parts.fragment:
            raise ValueError(
                "url: nothing may follow ? or # in it; a key goes into api_key_env or api_key_file"
            )
        return self

    @property
    def loopback(self) -> bool:
        """Whether the target is this machine."""
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or re.fullmatch(r"127\.\d+\.\d+\.\d+", host) is not None

    def api_key(self) -> str | None:
        """The key from its file or environment variable, None if neither is there. Raises ConfigError."""
        if self.api_key_file is None:
            return os.environ.get(self.api_key_env) or None
        try:
            return self.api_key_file.read_text().strip() or None
        except OSError as error:
            raise ConfigError(f"target.api_key_file: {self.api_key_file}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ConfigError(f"target.api_key_file: {self.api_key_file}: not text") from None


class Run(_Strict):
    """How long, from which seed, which share of the plan, and the file that outlives it.

    state: SQLite file of evidence, calibration and alarms; without one they end with the run.
    """

    duration: Seconds = 600.0
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1
    nonce: Annotated[int, Field(ge=0, lt=1 << 63)] | None = None
    shard: Annotated[int, Field(ge=0)] = 0
    shards: Annotated[int, Field(ge=1, le=4096)] = 1
    drain: Seconds = 15.0
    state: Path | None = None

    @model_validator(mode="after")
    def _shard_exists(self) -> Run:
        if self.shard >= self.shards:
            raise ValueError(f"shard {self.shard}: with {self.shards} shards it is 0 to {self.shards - 1}")
        return self


class Load(_Strict):
    """The plan's load. Lengths in tokens; rate in plan indices per second (a burst is one index)."""

    arrivals: Literal["poisson", "constant"] = "poisson"
    rate: Annotated[float, Field(ge=1e-6, le=10_000)] = 1.0
    shapes: dict[str, Annotated[int, Field(ge=0, le=1000)]] = Field(
        default_factory=lambda: dict(DEFAULT_WEIGHTS)
    )
    max_context: Annotated[int, Field(ge=_SMALLEST, le=_MANY)] | None = None
    min_prompt: Annotated[int, Field(ge=8, le=65536)] = 64
    max_new_tokens: Annotated[int, Field(ge=4, le=65536)] = 32
    decode_tokens: Annotated[int, Field(ge=4, le=65536)] = 320
    burst: Annotated[int, Field(ge=2, le=256)] = 6
    roots: Annotated[int, Field(ge=1, le=4096)] = 16
    zipf_churn: Annotated[int, Field(ge=1, le=_MANY)] = 64
    sampled_share: Share = 0.3
    served_share: Share = 0.05

    @model_validator(mode="after")
    def _shapes_exist(self) -> Load:
        for name in self.shapes:
            if name not in SHAPES:
                raise ValueError(f"shapes.{name}: no such shape; there are {', '.join(SHAPES)}")
        if not any(self.shapes.values()):
            raise ValueError("shapes: at least one weight must be above 0")
        if self.max_context is not None and self.max_context < _ROOM * self.min_prompt:
            raise ValueError(
                f"max_context {self.max_context} must be at least {_ROOM} times min_prompt {self.min_prompt}"
            )
        return self


class Probe(_Strict):
    """What the oracle asks. Shares are of probes; tail and blank context in tokens."""

    tail: Annotated[int, Field(ge=16, le=4096)] = 64
    max_scored: Annotated[int, Field(ge=16, le=4096)] = 256
    rate: Annotated[float, Field(gt=0, le=1000)] = 4.0
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    amnesia_share: Share = 0.25
    control_share: Share = 0.25
    repeat_share: Share = 0.25
    continuation: Annotated[int, Field(ge=16, le=1024)] = 24
    kept_context: Annotated[int, Field(ge=1, le=65536)] = 64
    timeout: Seconds = 120.0


class Budget(_Strict):
    """What a run may cost. null lifts a limit.

    Off loopback in_flight and tokens_per_second must be stated.
    """

    in_flight: Annotated[int, Field(ge=1, le=100_000)] | None = None
    tokens_per_second: Annotated[float, Field(gt=0)] | None = None
    probe_share: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    pool_share_per_minute: Annotated[float, Field(gt=0, le=100)] | None = None


class Stop(_Strict):
    """Limits past which load backs off, whatever the plan wants."""

    queue: Annotated[int, Field(ge=1)] = 64
    token_usage: Annotated[float, Field(gt=0, le=1)] = 0.99
    ttft: Seconds = 30.0
    lost_after: Seconds = 30.0


class Detect(_Strict):
    """The detectors' settings. The run length is stated, or follows from false_alarms_per_year."""

    p0_max: Annotated[float, Field(ge=1e-4, le=0.5)] = 0.2
    run_length: Annotated[float, Field(ge=100, le=1e12)] = 1e6
    false_alarms_per_year: Annotated[float, Field(gt=0, le=1e9)] | None = None
    fleet_size: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    max_abs_d: Annotated[float, Field(gt=0)] | None = None
    min_valid_probes: Annotated[int, Field(ge=1)] = 20
    require_coverage: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _one_run_length(self) -> Detect:
        if self.false_alarms_per_year is None:
            if "fleet_size" in self.model_fields_set:
                raise ValueError("fleet_size: it matters only together with false_alarms_per_year")
        elif "run_length" in self.model_fields_set:
            raise ValueError(
                "false_alarms_per_year: run_length is set too, and either follows from the other: keep one"
            )
        return self


class Thresholds(_Strict):
    """What the load itself must meet, or the run exits 5. null: not asked."""

    delivered_share: Share = 0.95
    error_share: Share = 0.01
    ttft_p99: Seconds | None = None
    latency_p99: Seconds | None = None


class Metrics(_Strict):
    """Where /metrics is served; port 0 chooses a free one, null serves none.

    token_file: the bearer token of the alarms API beside it, instead of the environment's SOAK_TOKEN.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] | None = 9464
    token_file: Path | None = None

    def token(self) -> str | None:
        """The token, None if neither place has one. Raises ConfigError."""
        return read_token(self.token_file, "metrics.token_file")


def read_token(file: Path | None, key: str) -> str | None:
    """The token of the alarms API from a file or from SOAK_TOKEN, None if there is none. Raises ConfigError.

    ``key`` names in the error what gave the file.
    """
    if file is None:
        key, text = "SOAK_TOKEN", os.environ.get("SOAK_TOKEN", "")
        if not text:
            return None
    else:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(f"{key}: {file}: {why}") from error
    if re.fullmatch(r"[\x21-\x7e]{16,1000}", text.strip()) is None:
        raise ConfigError(f"{key}: a token of at least 16 printable characters without spaces is wanted")
    return text.strip()


class Config(_Strict):
    """A whole run."""

    target: Target = Field(default_factory=Target)
    run: Run = Field(default_factory=Run)
    load: Load = Field(default_factory=Load)
    probe: Probe = Field(default_factory=Probe)
    budget: Budget = Field(default_factory=Budget)
    stop: Stop = Field(default_factory=Stop)
    detect: Detect = Field(default_factory=Detect)
    thresholds: Thresholds = Field(default_factory=Thresholds)
    metrics: Metrics = Field(default_factory=Metrics)

    @model_validator(mode="after")
    def _load_is_never_an_accident(self) -> Config:
        if self.target.loopback:
            return self
        if not self.target.allow_load:
            raise ValueError(
                f"target.allow_load: {self.target.url} is not this machine, so load on it must be allowed "
                "in words: set target.allow_load: true"
            )
        unstated = [k for k in ("in_flight", "tokens_per_second") if getattr(self.budget, k) is None]
        if unstated:
            raise ValueError(
                f"budget.{unstated[0]}: {self.target.url} is not this machine, so a budget must be stated: "
                "set budget.in_flight and budget.tokens_per_second"
            )
        return self

    @model_validator(mode="after")
    def _run_length_is_one(self) -> Config:
        try:
            _ = self.run_length
        except ValueError as error:
            raise ValueError(f"detect.{error}") from None
        return self

    @property
    def run_length(self) -> float:
        """A, in probes: as stated, or such that the fleet keeps to its false alarms at the highest rate."""
        per_year = self.detect.false_alarms_per_year
        if per_year is None:
            return self.detect.run_length
        return run_length_for(per_year, self.detect.fleet_size, self.probe.rate)

    @property
    def run_length_words(self) -> str:
        """Where A comes from, empty if it was stated."""
        per_year = self.detect.false_alarms_per_year
        if per_year is None:
            return ""
        return run_length_words(per_year, self.detect.fleet_size, self.probe.rate)

    @property
    def pool_share_per_minute(self) -> float | None:
        """Share of the server's pools that probes may fill a minute, or None without limit."""
        if "pool_share_per_minute" in self.budget.model_fields_set:
            return self.budget.pool_share_per_minute
        return 0.02 if self.target.shared else 0.5

    @model_validator(mode="after")
    def _bursts_fit_the_budget(self) -> Config:
        most, burst = self.budget.in_flight, self.load.burst
        if most is not None and most < burst and self.load.shapes.get(chunked_burst.NAME):
            raise ValueError(
                f"budget.in_flight: given {most}; a burst of load.burst ({burst}) prompts would pass it: "
                "raise it, or lower load.burst"
            )
        return self

    def resolve(self, geometry: Geometry) -> ResolvedSpec:
        """The plan's spec: this config's load, on that geometry. Raises ConfigError if it does not fit."""
        load = self.load
        limit = geometry.context_len - 1
        if limit < max(_SMALLEST, _ROOM * load.min_prompt):
            raise ConfigError(
                f"load.min_prompt: given {load.min_prompt}; the server takes {limit} tokens, prompt and "
                f"output together: at least {_SMALLEST} are wanted, and {_ROOM} times min_prompt"
            )
        return ResolvedSpec(
            geometry=geometry,
            arrivals=load.arrivals,
            rate=repr(load.rate),
            weights=tuple((name, load.shapes.get(name, 0)) for name in SHAPES),
            max_context=min(load.max_context or limit, limit),
            min_prompt=load.min_prompt,
            max_new_tokens=load.max_new_tokens,
            decode_tokens=load.decode_tokens,
            burst=load.burst,
            roots=load.roots,
            zipf_churn=load.zipf_churn,
            sampled_per_mille=round(load.sampled_share * 1000),
            served_per_mille=round(load.served_share * 1000),
        )


def _line(error: Any) -> str:
    """One pydantic error as one line."""
    path = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-"))
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = _fields_at(error["loc"][:-1])
        return f"{path}: no such key" + (f"; allowed are {', '.join(known)}" if known else "")
    if error["type"] == "value_error" and (not path or message.startswith(path)):
        return message
    if error["type"] == "value_error" and isinstance(error["input"], dict):
        return f"{path}.{message}"
    given = repr(error["input"])
    message = message.replace("Input should be", "must be")
    return f"{path}: given {given[:77] + '...' if len(given) > 80 else given}; {message}"


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    model: Any = Config
    for part in location:
        field = model.model_fields.get(part) if hasattr(model, "model_fields") else None
        if field is None:
            return []
        model = field.annotation
    return list(getattr(model, "model_fields", ()))


def build(values: dict[str, Any]) -> Config:
    """A checked config from plain values. Raises ConfigError with one line per mistake."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(e) for e in error.errors(include_url=False))) from None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


class _Once(yaml.SafeLoader):
    """YAML as ever, but a key that is given twice is a mistake: the first of two sections would vanish."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: Path | None, overrides: dict[str, Any] | None = None) -> Config:
    """Read a YAML file (or nothing) and lay the command line's values over it. Raises ConfigError."""
    values: Any = {}
    if path is not None:
        try:
            values = yaml.load(path.read_text(encoding="utf-8"), _Once)  # noqa: S506 - a SafeLoader
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
            raise ConfigError(f"{path}:{where} not YAML: {getattr(error, 'problem', error)}") from error
        except RecursionError:
            raise ConfigError(f"{path}: nested too deep") from None
        values = {} if values is None else values
        if not isinstance(values, dict):
            raise ConfigError(f"{path}: a mapping of sections is wanted, not {type(values).__name__}")
    return build(_merge(values, overrides or {}))
