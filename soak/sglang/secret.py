"""The API key: where it may go (one header) and how it is kept out of everything else."""

from __future__ import annotations

import re

_SHOWN_AS = "[redacted]"


class Secret:
    """A key that prints as [redacted]. Raises ValueError for one that cannot travel in a header."""

    __slots__ = ("_key",)

    def __init__(self, key: str | None) -> None:
        if key is not None and not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", key):
            raise ValueError("the API key must be printable ASCII, not empty, without spaces around it")
        self._key = key

    def __repr__(self) -> str:
        return "None" if self._key is None else _SHOWN_AS

    def header(self) -> dict[str, str]:
        """The header that carries the key; empty without one."""
        return {} if self._key is None else {"Authorization": f"Bearer {self._key}"}

    def redact(self, text: str) -> str:
        """The text without the key."""
        return text if self._key is None else text.replace(self._key, _SHOWN_AS)

    def scrub(self, value: object) -> object:
        """A parsed JSON value without the key in any string or name of it, however deep; changed in place."""
        if self._key is None:
            return value
        holder: list[object] = [value]
        todo: list[list[object] | dict[str, object]] = [holder]
        while todo:
            node = todo.pop()
            if isinstance(node, dict):
                items = list(node.items())
                node.clear()
                for name, item in items:
                    node[self.redact(name)] = self.redact(item) if isinstance(item, str) else item
                children = list(node.values())
            else:
                node[:] = [self.redact(item) if isinstance(item, str) else item for item in node]
                children = node
            todo.extend(child for child in children if isinstance(child, list | dict))
        return holder[0]
