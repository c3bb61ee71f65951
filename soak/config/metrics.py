"""The section ``metrics``: where they are served, and the token of the API beside them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from soak.config.mistake import ConfigError
from soak.config.values import Section


class Metrics(Section):
    """Where /metrics and, with a token, the alarms API are served."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] | None = 9464
    """0 takes a free one, null serves none."""
    token_file: Path | None = None
    """Bearer token of the alarms API, instead of the environment's SOAK_TOKEN."""

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
