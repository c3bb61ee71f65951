"""From a YAML file and the command line to a checked config; one line per mistake."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from soak.config.mistake import ConfigError
from soak.config.whole import Config


def _line(error: Any) -> str:
    """One pydantic error as one line."""
    path = ".".join(str(part) for part in error["loc"] if not str(part).startswith("function-"))
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = _fields_at(error["loc"][:-1])
        near = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        meant = f", perhaps {near[0]}" if near else ""
        return f"{path}: no such key{meant}" + (f"; allowed are {', '.join(known)}" if known else "")
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


def _in_full(values: dict[str, Any]) -> dict[str, Any]:
    """``load: none`` as the mapping that it stands for, so that more can be laid over it."""
    return {**values, "load": {"shapes": {}}} if values.get("load") == "none" else values


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
        except FileNotFoundError as error:
            raise ConfigError(f"{path}: {error.strerror}; `soak init URL` writes a config") from error
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
    whole = _merge(_in_full(values), _in_full(overrides or {}))
    try:
        return build(whole)
    except ConfigError as error:
        raise ConfigError("\n".join(_where(str(error).splitlines(), path, values))) from None


def _where(mistakes: list[str], path: Path | None, values: dict[str, Any]) -> list[str]:
    """The mistakes, those that the file has by itself behind its name: the others are of the command line."""
    own: set[str] = set()
    try:
        build(values)
    except ConfigError as error:
        own = set(str(error).splitlines())
    return [f"{path}: {mistake}" if path is not None and mistake in own else mistake for mistake in mistakes]
