"""The section ``target``: which server, and what may be done to it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import model_validator

from soak.config.mistake import ConfigError
from soak.config.values import Section


class Target(Section):
    """Which server, and what may be done to it."""

    url: str = "http://127.0.0.1:30000"
    """Address of the SGLang server, up to the port. Without a key in it."""
    api_key_env: str = "SGLANG_API_KEY"
    """Environment variable that holds the server's API key. Unset or empty: no key is sent."""
    api_key_file: Path | None = None
    """File that holds the server's API key, instead of the variable."""
    allow_load: bool = False
    """Off this machine load must be allowed in words, and ``budget`` must state in_flight and
    tokens_per_second.
    """
    shared: bool = False
    """Other people's traffic runs beside ours: a busy server is not refused, and probes get 2% of the pool a
    minute.
    """
    disruptive: bool = False
    """What holds other users up, or pushes out their prefixes, is allowed."""
    runners_record: Path | None = None
    """What ``soak runners check --json`` said of the server's installation, as its image holds it."""
    replicas: tuple[str, ...] = ()
    """Addresses of further servers of the same kind. Shards are dealt to ``url`` and these in turn, each
    server is judged by its own shards, and no prefix is asked about on another than it was written on.
    """
    worker_header: str = "x-smg-worker-id"
    """Header by which a router in front names the worker that answered, as SGLang's gateway does."""

    @model_validator(mode="after")
    def _addresses(self) -> Target:
        _address("url", self.url)
        for url in self.replicas:
            _address("replicas", url)
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("replicas: an address is named twice, in it or in url: name each server once")
        if re.fullmatch(r"[A-Za-z0-9-]{1,100}", self.worker_header) is None:
            raise ValueError(f"worker_header {self.worker_header!r}: the name of an HTTP header is wanted")
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """Every address that is soaked."""
        return (self.url, *self.replicas)

    @property
    def loopback(self) -> bool:
        """Whether every server is this machine."""
        return all(_is_loopback(url) for url in self.urls)

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


def _address(key: str, url: str) -> None:
    """Raises ValueError, in words, for what is no address of a server."""
    shown = re.sub(r"//[^/]*@", "//", url)
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no port
    except ValueError as error:
        raise ValueError(f"{key} {shown!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{key} {shown!r}: an address such as http://127.0.0.1:30000 is wanted")
    if parts.username or parts.password:
        raise ValueError(f"{key}: keys do not belong in an address; use api_key_env or api_key_file")
    if parts.query or parts.fragment:
        raise ValueError(
            f"{key}: nothing may follow ? or # in it; a key goes into api_key_env or api_key_file"
        )


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or re.fullmatch(r"127\.\d+\.\d+\.\d+", host) is not None
