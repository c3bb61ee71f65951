"""Where an SGLang lies, and its source as syntax trees. Reads files only; never imports what it finds."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from soak.runners.reading import Reader

_ASK = (
    "import importlib.util as u; s = u.find_spec('sglang'); "
    "print(next(iter(s.submodule_search_locations)) if s and s.submodule_search_locations else '')"
)
_ANSWERS_S = 60


class SiteError(Exception):
    """There is no SGLang where one was named, or its source cannot be read. The text says where and what."""


@dataclass(slots=True)
class Site:
    """One installed SGLang. package: the folder that holds ``srt``; version: as installed, "" if not said."""

    package: Path
    version: str
    _readers: dict[str, Reader] = field(default_factory=dict)

    def has(self, relative: str) -> bool:
        """Whether the package has this file."""
        return (self.package / relative).is_file()

    def find(self, *patterns: str) -> list[str]:
        """Files of the package that match any of the glob patterns, relative to it, sorted."""
        found = {path for pattern in patterns for path in self.package.glob(pattern) if path.is_file()}
        return sorted(str(path.relative_to(self.package)) for path in found)

    def reader(self, relative: str) -> Reader:
        """A file as syntax tree, kept. Raises SiteError if it cannot be read or is no Python."""
        if relative not in self._readers:
            path = self.package / relative
            try:
                content = path.read_bytes()
            except OSError as error:
                raise SiteError(f"{path}: {error.strerror}") from error
            self._readers[relative] = self.parse(relative, content)
        return self._readers[relative]

    def parse(self, relative: str, content: bytes) -> Reader:
        """Bytes of a file of the package as syntax tree. Raises SiteError if they are no Python."""
        try:
            return Reader(ast.parse(content, filename=str(self.package / relative)))
        except (SyntaxError, ValueError) as error:
            raise SiteError(
                f"{self.package / relative}: {error}. A damaged installation, or written for a newer Python "
                f"than this one ({sys.version.split()[0]}): run the check with the server's own interpreter."
            ) from error

    def forget(self, relative: str) -> None:
        """Read the file again the next time, because it was changed."""
        self._readers.pop(relative, None)

    def mentions(self, word: str, under: str = "srt") -> list[str]:
        """Files below ``under`` in which the word stands, comments included: where a person would look."""
        pattern = re.compile(rb"\b" + re.escape(word.encode()) + rb"\b")
        folder = self.package / under
        paths: Iterator[Path] = folder.rglob("*.py") if folder.is_dir() else iter(())
        return sorted(str(p.relative_to(self.package)) for p in paths if pattern.search(p.read_bytes()))

    @staticmethod
    def at(folder: Path) -> Site:
        """The SGLang in a folder: site-packages, a source checkout, or the package. Raises SiteError."""
        for package in (folder / "sglang", folder / "python" / "sglang", folder):
            if (package / "srt").is_dir():
                return Site(package.resolve(), _version(package))
        raise SiteError(
            f"{folder}: no SGLang here (looked for sglang/srt, python/sglang/srt and srt). Name the folder "
            "that holds the package sglang, such as site-packages."
        )

    @staticmethod
    def of(python: str) -> Site:
        """The SGLang that an interpreter would import. It is asked where, and imports nothing of it.

        Raises SiteError.
        """
        try:
            answer = subprocess.run(
                [python, "-c", _ASK],
                capture_output=True,
                text=True,
                timeout=_ANSWERS_S,
                check=False,
                # a folder here that happens to be called sglang is not what the server imports
                env={**os.environ, "PYTHONSAFEPATH": "1"},
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SiteError(f"{python}: cannot be asked where its sglang is: {error}") from error
        lines = answer.stdout.strip().splitlines()
        if answer.returncode or not lines or not lines[-1]:
            detail = answer.stderr.strip().splitlines()
            raise SiteError(
                f"{python} has no package sglang{': ' + detail[-1] if detail else ''}. Name the server's "
                "interpreter with --python, or its site-packages with --site."
            )
        return Site.at(Path(lines[-1]))


def _version(package: Path) -> str:
    """Of the metadata beside the package, else of its version file."""
    for metadata in sorted(package.parent.glob("sglang-*.dist-info/METADATA")):
        found = re.search(r"^Version: *(\S+)", metadata.read_text(encoding="utf-8", errors="replace"), re.M)
        if found:
            return found[1]
    for name in ("_version.py", "version.py"):
        path = package / name
        if path.is_file():
            found = re.search(r"^(?:__version__|version)\b[^\n\"']*[\"']([^\"'\n]+)", path.read_text(), re.M)
            if found:
                return found[1]
    return ""
