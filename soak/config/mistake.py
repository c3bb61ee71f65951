"""What a wrong config, file or option comes to: words for the person who wrote it."""

from __future__ import annotations


class ConfigError(Exception):
    """One line per mistake, each with the key's path."""
