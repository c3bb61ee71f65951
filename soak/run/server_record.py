"""What the server's image says of its runner fixes, joined to what the server says of itself.

The server cannot be asked: the record is a file that its image carries and somebody mounts or copies
(``target.runners_record``). It is read before any load, and believed only if it is of the server's version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from soak.config import Config, ConfigError
from soak.runners.record import Record, RecordError, read
from soak.sglang.preflight import Target


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The record that the config names, or none."""

    record: Record | None

    @staticmethod
    def of(config: Config) -> ServerRecord:
        """Reads the file. Raises ConfigError if it is named and cannot be read."""
        path = config.target.runners_record
        if path is None:
            return ServerRecord(None)
        try:
            return ServerRecord(read(path))
        except RecordError as error:
            raise ConfigError(f"target.runners_record: {error}") from error

    def join(self, target: Target) -> Target:
        """The target with the fixes as fields of its fingerprint. Raises ConfigError for another's."""
        if self.record is None:
            return target
        said, recorded = target.version.partition("+")[0], self.record.version.partition("+")[0]
        if said != recorded:
            raise ConfigError(
                f"target.runners_record is of SGLang {recorded or 'no version'}, and the server says {said}: "
                "name the record of the image that the server runs from"
            )
        return replace(target, fingerprint=target.fingerprint.joined(self.record.fields()))

    @property
    def states(self) -> dict[str, str]:
        """State by fault; empty without a record."""
        return dict(self.record.states) if self.record is not None else {}
