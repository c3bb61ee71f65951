"""What the checks say of every published release is what the table says; edits go in and come out again."""

from __future__ import annotations

import hashlib
import py_compile
from collections.abc import Callable
from pathlib import Path

import pytest

from soak.runners.applying import apply, revert
from soak.runners.checking import check_site, required_names
from soak.runners.edits import EDITS, KNOWN_RELEASES
from soak.runners.faults import BY_NAME, FAULTS, RELEASES
from soak.runners.site import Site
from tests.runners.wheels.fetch import release

pytestmark = pytest.mark.wheels


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize("version", RELEASES)
def test_the_answers_are_those_of_the_table(version: str) -> None:
    report = check_site(Site.at(release(version)), required_names("34184,32555"))
    assert report.version == version
    expected = {fault.name: fault.releases[version] for fault in FAULTS if fault.releases}
    assert {name: answer.state for name, answer in report.answers.items()} == expected
    bare = {"stale-track-rows": "0.5.18", "stale-track-tail": "0.5.17"}
    missing = [name for name, since in bare.items() if RELEASES.index(version) < RELEASES.index(since)]
    assert list(report.missing) == missing
    assert report.exit_code == (1 if missing else 0)


def test_a_fix_that_is_there_but_off_is_half_a_fix() -> None:
    for version in ("0.5.19", "0.5.20"):
        answer = check_site(Site.at(release(version))).answers["abort-slot-reuse"]
        assert answer.fix == "partial"
        assert "DEFERRED_DECODE_KV_RELEASE=1" in answer.because


@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_edits_go_in_and_come_out_byte_for_byte(
    version: str, copied: Callable[[str], Site], tmp_path: Path
) -> None:
    site = copied(version)
    before = digests(site.package)
    wanted = {name for name in EDITS if BY_NAME[name].releases[version] == "vulnerable"}
    changed = apply(site)
    assert {name for change in changed for name in change.faults} == wanted
    for change in changed:
        py_compile.compile(str(site.package / change.path), cfile=str(tmp_path / "compiled"), doraise=True)
    after = check_site(Site.at(site.package.parent), required_names("34184,32555"))
    assert after.exit_code == 0
    others = {name: answer.state for name, answer in after.answers.items() if name not in EDITS}
    assert others == {name: BY_NAME[name].releases[version] for name in others}
    patched = digests(site.package)
    assert apply(Site.at(site.package.parent)) == []
    assert digests(site.package) == patched
    assert {c.path for c in revert(Site.at(site.package.parent))} == {c.path for c in changed}
    assert digests(site.package) == before


@pytest.mark.parametrize("version", [name for name in RELEASES if name not in KNOWN_RELEASES])
def test_releases_with_the_fixes_are_left_alone(version: str, copied: Callable[[str], Site]) -> None:
    site = copied(version)
    before = digests(site.package)
    assert apply(site) == []
    assert digests(site.package) == before
