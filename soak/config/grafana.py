"""The section ``grafana``: where alarms and acknowledgements are marked on dashboards, if anywhere."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import model_validator

from soak.config.mistake import ConfigError
from soak.config.values import Section


class Grafana(Section):
    """A Grafana that gets annotations; none without an url."""

    url: str | None = None
    """Address of Grafana. null: no annotations."""
    token_env: str = "SOAK_GRAFANA_TOKEN"  # noqa: S105 - a name
    """Environment variable with the token of a service account that may write annotations."""
    token_file: Path | None = None
    """File with that token, instead of the variable."""
    dashboard: str | None = None
    """Uid of the dashboard to mark. null: every dashboard that asks for the tag soak, as the shipped ones do.
    """

    @model_validator(mode="after")
    def _address(self) -> Grafana:
        if self.url is None:
            return self
        shown = re.sub(r"//[^/]*@", "//", self.url)
        try:
            parts = urlsplit(self.url)
            _ = parts.port  # raises where it is no port
        except ValueError as error:
            raise ValueError(f"url {shown!r}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url {shown!r}: an address such as http://127.0.0.1:3000 is wanted")
        if parts.username or parts.password:
            raise ValueError("url: a token does not belong in an address; use token_env or token_file")
        return self

    def token(self) -> str | None:
        """The token, None where no Grafana is named. Raises ConfigError if one is and there is no token."""
        if self.url is None:
            return None
        if self.token_file is None:
            where, text = f"the environment's {self.token_env}", os.environ.get(self.token_env, "")
        else:
            where = str(self.token_file)
            try:
                text = self.token_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
                raise ConfigError(f"grafana.token_file: {self.token_file}: {why}") from error
        if re.fullmatch(r"[\x21-\x7e]{1,1000}", text.strip()) is None:
            raise ConfigError(
                f"grafana.url: no usable token in {where}; set grafana.token_file or grafana.token_env, or "
                "leave grafana.url out"
            )
        return text.strip()
