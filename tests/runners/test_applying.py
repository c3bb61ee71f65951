"""Fixes are written whole or not at all, only into what is known, and come out again byte for byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from soak.runners import applying
from soak.runners.applying import BACKUP, ApplyRefused, apply, changes, revert
from soak.runners.checking import check_site
from soak.runners.edits import EDITS
from soak.runners.site import Site
from tests.runners.trees import releasable, site

BOTH = set(EDITS)


def contents(package: Path) -> dict[str, bytes]:
    return {str(p.relative_to(package)): p.read_bytes() for p in package.rglob("*") if p.is_file()}


@pytest.fixture
def released(tmp_path: Path) -> Site:
    return site(tmp_path, releasable(), version="0.5.16")


def test_there_and_back(released: Site) -> None:
    before = contents(released.package)
    for name in EDITS:
        (released.package / EDITS[name].path).chmod(0o640)
    assert {c.path for c in apply(released)} == {edit.path for edit in EDITS.values()}
    fresh = Site.at(released.package.parent)
    assert {fresh_state(fresh, name) for name in BOTH} == {"fixed"}
    assert apply(fresh) == []
    assert {name for change in changes(fresh) for name in change.faults} == BOTH
    assert len(revert(fresh)) == 2
    assert contents(fresh.package) == before
    assert all((fresh.package / edit.path).stat().st_mode & 0o777 == 0o640 for edit in EDITS.values())
    assert revert(fresh) == []
    assert {fresh_state(fresh, name) for name in BOTH} == {"vulnerable"}


def fresh_state(at: Site, name: str) -> str:
    return check_site(Site.at(at.package.parent)).answers[name].state


@pytest.mark.parametrize("version", ["0.5.14", "0.5.18", "0.5.17.dev3", ""])
def test_releases_it_was_not_tried_on_are_refused(tmp_path: Path, version: str) -> None:
    found = site(tmp_path, releasable(), version)
    before = contents(found.package)
    with pytest.raises(ApplyRefused, match="lacks SGLang #34184 and SGLang #32555"):
        apply(found)
    assert contents(found.package) == before


def test_an_unknown_place_is_refused_and_the_other_file_left_alone(tmp_path: Path) -> None:
    files = releasable()
    edit = EDITS["stale-track-tail"]
    files[edit.path] = files[edit.path].replace("track_buf[:", "track_buf[0:")
    found = site(tmp_path, files, "0.5.16")
    before = contents(found.package)
    with pytest.raises(ApplyRefused, match=r"#32555: .*is there 0 times, not once"):
        apply(found)
    assert contents(found.package) == before


def test_a_place_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    files = releasable()
    edit = EDITS["stale-track-rows"]
    files[edit.path] = files[edit.path].replace(edit.anchor, edit.anchor * 2)
    with pytest.raises(ApplyRefused, match=r"#34184: .*is there 2 times, not once"):
        apply(site(tmp_path, files, "0.5.17"))


def test_half_a_fix_is_somebody_elses_work(tmp_path: Path) -> None:
    files = releasable()
    edit = EDITS["stale-track-rows"]
    half = edit.anchor + " " * 16 + 'self.buffer_registry.get_slot("mamba_track_mask").buffer[bs:r].zero_()\n'
    files[edit.path] = files[edit.path].replace(edit.anchor, half)
    with pytest.raises(ApplyRefused, match=r"half a fix.*not the released code of 0\.5\.17"):
        apply(site(tmp_path, files, "0.5.17"))


def test_only_what_is_missing_is_written(tmp_path: Path) -> None:
    files = releasable()
    tail = EDITS["stale-track-tail"]
    files[tail.path] = tail.on(files[tail.path])
    found = site(tmp_path, files, "0.5.17")
    assert [c.faults for c in apply(found)] == [("stale-track-rows",)]


def test_a_stop_between_two_files_can_be_taken_up(released: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(released.package)
    replace, calls = applying._replace, []

    def once(path: Path, content: bytes, like: Path | None = None) -> None:
        calls.append(path)
        if len(calls) == 3:
            raise OSError("no space left")
        replace(path, content, like)

    monkeypatch.setattr(applying, "_replace", once)
    with pytest.raises(OSError, match="no space"):
        apply(released)
    monkeypatch.undo()
    again = Site.at(released.package.parent)
    assert len(apply(again)) == 1
    assert {fresh_state(again, name) for name in BOTH} == {"fixed"}
    revert(again)
    assert contents(again.package) == before


def test_later_changes_of_others_are_not_overwritten(released: Site) -> None:
    apply(released)
    path = released.package / EDITS["stale-track-rows"].path
    path.write_bytes(path.read_bytes() + b"# mine\n")
    held = contents(released.package)
    with pytest.raises(ApplyRefused, match="was changed by somebody else since"):
        revert(released)
    assert contents(released.package) == held


def test_a_damaged_original_is_not_put_back(released: Site) -> None:
    apply(released)
    (released.package / BACKUP / EDITS["stale-track-rows"].path).write_text("other")
    with pytest.raises(ApplyRefused, match="not the original any more"):
        revert(released)


def test_files_linked_to_a_package_managers_cache_are_not_written_through(
    released: Site, tmp_path: Path
) -> None:
    path = released.package / EDITS["stale-track-rows"].path
    os.link(path, tmp_path / "cached.py")
    before = path.read_bytes()
    apply(released)
    assert (tmp_path / "cached.py").read_bytes() == before != path.read_bytes()


def test_a_symbolic_link_is_refused(released: Site, tmp_path: Path) -> None:
    path = released.package / EDITS["stale-track-rows"].path
    path.rename(tmp_path / "elsewhere.py")
    path.symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(ApplyRefused, match="is a link to another place"):
        apply(released)
