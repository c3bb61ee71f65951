"""What a run has left in its folder, read for a report or a comparison. Changes nothing there.

A run that ended has left summary.json; one that was killed, or still runs, only the state of its last save
in course.json. Files may be somebody else's: what does not fit is refused in words.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from soak.export.course import Course
from soak.export.course_file import COURSE_NAME, MOST_BYTES, read_course_file
from soak.export.summary import SCHEMA_VERSION, SUMMARY_NAME
from soak.incident.journal_file import JOURNAL_NAME

_SHARDS = "shard-*"  # folders of the processes of one run, inside its own
_WANTED = ("verdict", "detector", "probes", "divergence", "coverage", "load", "requests", "incidents", "gaps")


class NotARun(Exception):
    """The folder holds nothing that a report can be made of; the message says what to do."""


@dataclass(frozen=True, slots=True)
class RunOnDisk:
    """One run. ended: it has left a summary; else summary is how it stood at ``saved_s``. began_s, saved_s:
    seconds since 1970.

    course: None for a run of an earlier soak; why says what is missing and why. config: public parts of it.
    """

    folder: Path
    summary: Mapping[str, Any]
    ended: bool
    saved_s: float | None = None
    began_s: float | None = None
    course: Course | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""

    @property
    def journals(self) -> list[Path]:
        """Its journal where the run says it is or beside the summary; of many processes that of each."""
        said = self.summary.get("journal")
        places = [self.folder / JOURNAL_NAME]
        if isinstance(said, dict) and isinstance(said.get("path"), str) and "\0" not in said["path"]:
            places.insert(0, Path(said["path"]))
        own = [place for place in places if place.is_file()][:1]
        return own or sorted(self.folder.glob(f"{_SHARDS}/{JOURNAL_NAME}"))


def read_run_folder(folder: Path) -> RunOnDisk:
    """Raises NotARun."""
    if folder.is_file():
        raise NotARun(
            f"{folder}: is a file; the folder of a run is wanted, as `soak run --out DIR` makes one"
        )
    if not folder.is_dir():
        raise NotARun(
            f"{folder}: no such folder; `soak run --out DIR` makes one, `ls soak-runs` lists others"
        )
    kept, why = _kept(folder / COURSE_NAME)
    if kept is None and not why:
        kept, why = _of_shards(folder)
    summary = _summary(folder / SUMMARY_NAME)
    ended = summary is not None
    if summary is None:
        summary = None if kept is None else kept.get("summary")
    if summary is None:
        raise NotARun(
            f"{folder}: neither {SUMMARY_NAME} nor {COURSE_NAME} in it{': ' + why if why else ''}; a run "
            "leaves them there a few seconds after its first request"
        )
    _check(folder, summary)
    course = None
    if kept is not None:
        try:
            course = Course.from_dict(kept["course"])
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            why = f"{COURSE_NAME} cannot be read ({error})"
    elif not why:
        why = f"there is no {COURSE_NAME}: the run was made by an earlier soak, or its disk was full"
    saved, began = (None if kept is None else kept.get(name) for name in ("saved_s", "began_s"))
    config = {} if kept is None else kept.get("config")
    return RunOnDisk(
        folder,
        summary,
        ended,
        float(saved) if isinstance(saved, int | float) else None,
        float(began) if isinstance(began, int | float) else None,
        course,
        config if isinstance(config, dict) else {},
        why,
    )


def _kept(path: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        return read_course_file(path), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path.name}: {error.strerror}"
    except ValueError as error:
        return None, f"{path.name}: {error}"


def _of_shards(folder: Path) -> tuple[dict[str, Any] | None, str]:
    """The courses of a run of many processes as one, from the start of the first; no summary of its own."""
    parts = [_kept(path) for path in sorted(folder.glob(f"{_SHARDS}/{COURSE_NAME}"))]
    why = next((why for _, why in parts if why), "")
    said = sorted((kept for kept, _ in parts if kept is not None), key=lambda kept: float(kept["began_s"]))
    if not said or why:
        return None, why
    try:
        whole = Course.from_dict(said[0]["course"])
        for other in said[1:]:
            whole.beside(Course.from_dict(other["course"]), other["began_s"] - said[0]["began_s"])
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        return None, f"a course of its processes cannot be read ({error})"
    config = {"run": {}} | said[0].get("config", {})
    shared = {name: config[name] for name in config if name != "run"}
    return {"began_s": said[0]["began_s"], "saved_s": None, "config": shared, "course": whole.as_dict()}, ""


def _summary(path: Path) -> Any:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise NotARun(f"{path}: larger than {MOST_BYTES:,} bytes: not what a run leaves behind")
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NotARun(f"{path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise NotARun(
            f"{path}: not JSON ({error}); it may have been cut off: take it away and try again"
        ) from error


def _check(folder: Path, summary: Any) -> None:
    if not isinstance(summary, dict):
        raise NotARun(f"{folder}: its summary is no JSON object: not what a run leaves behind")
    version = summary.get("schema_version")
    if version != SCHEMA_VERSION:
        raise NotARun(
            f"{folder}: a summary of schema {version}, and this soak reads {SCHEMA_VERSION}: use the soak "
            "that made it"
        )
    missing = [name for name in _WANTED if name not in summary]
    if missing:
        raise NotARun(f"{folder}: its summary lacks {', '.join(missing)}: not what a run leaves behind")
