"""One mutant against the tests of its folder, in a forked process; the file on disk is never touched.

What makes it cheap takes nothing from it: a mutant has survived when every test of the folder passed that
loads its module at all. Those that import it themselves run first and the first failure ends it, a failure is
not shrunk, and what is slow to load is loaded once, before the fork.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.mutation.mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]
_TIMED = {"test_speed.py"}  # what takes a mutant's time tells nothing of its result
_OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]


@dataclass(frozen=True, slots=True)
class Limits:
    """After how much a mutant counts as one that hangs. cpu_s: of its own time; wall_s: on the clock."""

    cpu_s: float = 600.0
    wall_s: float = 1800.0


def load_what_is_slow() -> None:
    """What tests import from elsewhere; nothing of soak, which a mutant has to be the first to import."""
    import aiohttp  # noqa: F401
    import hypothesis
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import ville  # noqa: F401

    no_shrinking = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.shrink]
    # without a database: examples that fail for one mutant are no examples of the project's
    hypothesis.settings.register_profile(
        "mutation",
        database=None,
        deadline=None,
        phases=[p for p in no_shrinking if p is not hypothesis.Phase.explain],
    )
    hypothesis.settings.load_profile("mutation")


def files_in_rounds(path: Path) -> list[list[str]]:
    """The tests of a module's folder that load it, in rounds: its own, those that import it, the others."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    there = [f for f in sorted((ROOT / "tests" / path.parent.name).glob("test_*.py")) if f.name not in _TIMED]
    files = [f for f in there if module in _loaded_by(f)]  # the others never see the mutant
    own = [f for f in files if f.stem == f"test_{path.stem}"]
    near = [f for f in files if f not in own and module in _imported(f)]
    rest = [f for f in files if f not in own and f not in near]
    return [[str(f) for f in some] for some in (own, near, rest) if some]


@functools.cache
def _imported(path: Path) -> frozenset[str]:
    """What a file imports of this project, wherever in it: modules, and names of theirs."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return frozenset(name for name in names if name.split(".")[0] in ("soak", "tests"))


@functools.cache
def _loaded_by(path: Path) -> frozenset[str]:
    """The same, and what those import, and so on; with the packages above each."""
    loaded: set[str] = set()
    waiting = set(_imported(path))
    while waiting:
        name = waiting.pop()
        above = name.rpartition(".")[0]
        if above and above not in loaded:
            waiting.add(above)
        loaded.add(name)
        place = ROOT.joinpath(*name.split("."))
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.exists():
                waiting |= _imported(file) - loaded
    return frozenset(loaded)


class Trial:
    """A mutant that is being tried."""

    def __init__(self, path: Path, mutant: Mutant, limits: Limits) -> None:
        """Starts it. path: the module it stands for."""
        self.path, self.mutant, self._limits = path, mutant, limits
        self._began = time.monotonic()
        self._child = os.fork()
        if self._child == 0:
            _in_child(path, mutant, limits)
        self.cpu_s = 0.0

    def verdict(self) -> str | None:
        """killed, survived, timeout, or None while it runs. Does not wait."""
        ended, status, used = os.wait4(self._child, os.WNOHANG)
        if not ended:
            if time.monotonic() - self._began > self._limits.wall_s:
                os.kill(self._child, signal.SIGKILL)
            return None
        self.cpu_s = used.ru_utime + used.ru_stime
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            return "timeout"
        return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"

    def stop(self) -> None:
        """End it, whatever it was to say."""
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)

    @property
    def wall_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a text instead of its file."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self.name, self.path, self.text = name, path, text

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """The one module, nothing else."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_loader(fullname, self, origin=str(self.path))

    def exec_module(self, module: ModuleType) -> None:
        """Run the text as the module."""
        module.__file__ = str(self.path)
        exec(compile(self.text, str(self.path), "exec"), module.__dict__)


def _in_child(path: Path, mutant: Mutant, limits: Limits) -> None:
    import pytest

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (int(limits.cpu_s) + 1,) * 2)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    sys.meta_path.insert(0, _Mutated(name, path, mutant.text))
    code = 1
    try:
        for files in files_in_rounds(path):
            code = int(pytest.main([*_OPTIONS, *files]))
            if code:
                break
    finally:
        os._exit(code)
