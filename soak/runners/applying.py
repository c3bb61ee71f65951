"""Write the missing fixes into an installation, and take them out again byte for byte.

Every edit is tried in memory first: the anchor must stand there once, the result must compile, and the check
must then say fixed. Only then is anything written: first the originals into a folder of their own, then each
file by renaming a finished one into its place. It never edits a file in place (package managers may have
linked it to their cache), never touches a release it was not tried on, and never overwrites what somebody
else changed since.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.runners.answer import ABSENT, FIXED, NOT_APPLICABLE, VULNERABLE, Answer
from soak.runners.checking import CHECKS
from soak.runners.edits import EDITS, KNOWN_RELEASES, EditRefused
from soak.runners.faults import BY_NAME
from soak.runners.reading import Reader
from soak.runners.site import Site

BACKUP = ".soak-runners"
"""Folder in the package that holds the originals and the list of what was changed."""
_LIST = "changed.json"


class ApplyRefused(Exception):
    """Nothing was written. The text says what is not as expected, where, and what to do."""


@dataclass(frozen=True, slots=True)
class Change:
    """One file. before, after: SHA-256 of its bytes; faults: whose fixes it got."""

    path: str
    before: str
    after: str
    faults: tuple[str, ...]


def apply(site: Site) -> list[Change]:
    """Write the fixes that are missing; what was changed, empty if nothing had to be.

    Raises ApplyRefused or SiteError, and then nothing was written.
    """
    answers = {name: CHECKS[name](site) for name in EDITS}
    wanted = [name for name, answer in answers.items() if answer.state not in (FIXED, NOT_APPLICABLE)]
    if not wanted:
        return []
    if site.version not in KNOWN_RELEASES:
        raise ApplyRefused(
            f"{site.package} is SGLang {site.version or 'of no known version'}, and lacks "
            f"{_numbers(wanted)}. Fixes are written into {', '.join(KNOWN_RELEASES)} only; move to a release "
            "that has them (docs/server-image.md)."
        )
    for name in wanted:
        _refuse_unless_plain(site, name, answers[name])
    earlier = {change.path: change for change in changes(site)}
    edited = _edited(site, wanted)
    for path in edited:
        if path in earlier and _digest((site.package / path).read_bytes()) not in (
            earlier[path].before,
            earlier[path].after,
        ):
            raise ApplyRefused(
                f"{site.package / path} was changed after an earlier `soak runners apply`: put back the "
                "released file first."
            )
    planned: dict[str, Change] = dict(earlier)
    for path, (names, source) in edited.items():
        before = (site.package / path).read_bytes()
        origin = earlier[path].before if path in earlier else _digest(before)
        known = earlier[path].faults if path in earlier and origin != _digest(before) else ()
        planned[path] = Change(path, origin, _digest(source), (*known, *names))
    _keep_originals(site, planned, earlier)
    for path, (_, source) in edited.items():
        _replace(site.package / path, source)
        site.forget(path)
    return [planned[path] for path in edited]


def revert(site: Site) -> list[Change]:
    """Put back the original bytes of every file that ``apply`` changed; what was put back.

    Raises ApplyRefused, and then nothing was written.
    """
    listed = changes(site)
    folder = site.package / BACKUP
    waiting: list[tuple[Change, bytes]] = []
    for change in listed:
        now = _digest((site.package / change.path).read_bytes())
        original = (folder / change.path).read_bytes()
        if _digest(original) != change.before:
            raise ApplyRefused(f"{folder / change.path} is not the original any more: reinstall SGLang.")
        if now not in (change.before, change.after):
            raise ApplyRefused(
                f"{site.package / change.path} was changed by somebody else since: its original is "
                f"{folder / change.path}."
            )
        if now == change.after:
            waiting.append((change, original))
    for change, original in waiting:
        _replace(site.package / change.path, original, like=folder / change.path)
        site.forget(change.path)
    if folder.is_dir():
        shutil.rmtree(folder)
    return [change for change, _ in waiting]


def changes(site: Site) -> list[Change]:
    """What ``apply`` changed in this installation, by its own list. Raises ApplyRefused if it is damaged."""
    path = site.package / BACKUP / _LIST
    if not path.is_file():
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["files"]
        return [Change(row["path"], row["before"], row["after"], tuple(row["faults"])) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ApplyRefused(f"{path}: not a list of changes ({error}): reinstall SGLang.") from error


def _refuse_unless_plain(site: Site, name: str, answer: Answer) -> None:
    if answer.state == VULNERABLE and answer.fix == ABSENT:
        path = site.package / EDITS[name].path
        if path.is_symlink():
            raise ApplyRefused(f"{path} is a link to another place: install SGLang with copied files.")
        return
    raise ApplyRefused(
        f"{_numbers([name])}: {answer.state}, {answer.because} ({', '.join(answer.where)}). This is not the "
        f"released code of {site.version}; nothing was written."
    )


def _edited(site: Site, names: Sequence[str]) -> dict[str, tuple[tuple[str, ...], bytes]]:
    """Per file: whose fixes go in, and its new bytes, compiled and checked."""
    found: dict[str, tuple[tuple[str, ...], bytes]] = {}
    for name in names:
        edit = EDITS[name]
        before_names, before = found.get(edit.path, ((), (site.package / edit.path).read_bytes()))
        try:
            source = edit.on(before.decode("utf-8")).encode("utf-8")
            compile(source, edit.path, "exec", dont_inherit=True)
        except (EditRefused, UnicodeDecodeError, SyntaxError, ValueError) as error:
            raise ApplyRefused(f"{_numbers([name])}: {error}; nothing was written.") from error
        found[edit.path] = ((*before_names, name), source)
    for name in names:
        answer = CHECKS[name](_Preview(site, {path: source for path, (_, source) in found.items()}))
        if answer.state != FIXED:
            raise ApplyRefused(f"{_numbers([name])}: after the edit still {answer.state}, {answer.because}.")
    return found


class _Preview(Site):
    """An installation as it would be with some files replaced."""

    def __init__(self, site: Site, files: Mapping[str, bytes]) -> None:
        super().__init__(site.package, site.version)
        self._files = dict(files)

    def reader(self, relative: str) -> Reader:
        if relative in self._files:
            return self.parse(relative, self._files[relative])
        return super().reader(relative)


def _keep_originals(site: Site, planned: Mapping[str, Change], earlier: Mapping[str, Change]) -> None:
    """Copy what has no copy yet, then write the list, before any file of the package is replaced."""
    folder = site.package / BACKUP
    for path, change in planned.items():
        copy = folder / path
        if path in earlier and copy.is_file() and _digest(copy.read_bytes()) == change.before:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(site.package / path, copy)
    rows: list[dict[str, Any]] = [
        {"path": c.path, "before": c.before, "after": c.after, "faults": list(c.faults)}
        for c in planned.values()
    ]
    text = json.dumps({"sglang": site.version, "files": rows}, indent=2) + "\n"
    _replace(folder / _LIST, text.encode("utf-8"))


def _replace(path: Path, content: bytes, like: Path | None = None) -> None:
    """Write a whole new file beside the old one and rename it into place, with the old one's mode.

    ``like``: a file whose mode and times the new one gets.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    made = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if like is not None:
            shutil.copystat(like, made)
        elif path.exists():
            shutil.copymode(path, made)
        else:
            made.chmod(0o644)
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _numbers(names: Sequence[str]) -> str:
    return " and ".join(f"SGLang #{BY_NAME[name].number}" for name in names)
