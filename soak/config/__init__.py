"""The one YAML file of a run, as pydantic models. Every error names its key, what was given, what is allowed.

Nothing here opens a connection; a config that loads has every value inside its range.
"""

from soak.config.metrics import read_token
from soak.config.mistake import ConfigError
from soak.config.reading import build, load
from soak.config.values import duration_s
from soak.config.whole import Config

__all__ = ["Config", "ConfigError", "build", "duration_s", "load", "read_token"]
