"""``python -m tests.mutation``: a seeded sample of mutants, each against the tests of its folder.

Each mutant runs in a process of its own, forked from one that has loaded what is slow to load; the file on
disk is never touched. Prints a line per mutant that no test noticed, and the counts.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600


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


def _tests(path: Path) -> list[str]:
    """The module's own test file first, then the rest of its folder's."""
    folder = ROOT / "tests" / path.parent.name
    own = folder / f"test_{path.stem}.py"
    return [str(place) for place in (own, folder) if place.exists()]


def _modules(path: Path) -> list[Path]:
    return [path] if path.suffix == ".py" else sorted(path.glob("*.py"))


def _verdict(path: Path, mutant: Mutant) -> str:
    """killed, survived or timeout."""
    child = os.fork()
    if child == 0:
        _in_child(path, mutant)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return "survived" if os.waitstatus_to_exitcode(status) == 0 else "killed"
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def _in_child(path: Path, mutant: Mutant) -> None:
    import pytest

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    sys.meta_path.insert(0, _Mutated(name, path, mutant.text))
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--ignore-glob=*test_speed.py"]
    code = 1
    try:
        for place in _tests(path):  # most mutants die by their own file, which is soon collected
            code = int(pytest.main([*options, place]))
            if code:
                break
    finally:
        os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 where tests fail without a mutant; what survived is for a person to read."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="*", default=["soak/detect", "soak/oracle"], help="modules or folders")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    given = parser.parse_args(arguments)
    files = [
        f for p in given.paths for f in ([ROOT / p] if p.endswith(".py") else sorted((ROOT / p).glob("*.py")))
    ]
    found = [(file, mutant) for file in files for mutant in mutants(file.read_text(encoding="utf-8"))]
    total = len(found)
    if given.sample:
        found = random.Random(given.seed).sample(found, min(given.sample, total))
        found.sort(key=lambda pair: (str(pair[0]), pair[1].line))
    import hypothesis
    import numpy
    import pytest

    print(
        f"Python {sys.version.split()[0]}, NumPy {numpy.__version__}, pytest {pytest.__version__}, "
        f"Hypothesis {hypothesis.__version__}; {len(found)} of {total} mutants, seed {given.seed}",
        flush=True,
    )
    for file in {file.parent: file for file, _ in found}.values():
        if _verdict(file, Mutant(0, "", "", file.read_text(encoding="utf-8"))) != "survived":
            print(f"the tests of {file.parent.relative_to(ROOT)} fail without any mutant: mend them first")
            return 2
    counts: Counter[str] = Counter()
    try:
        for file, mutant in found:
            verdict = _verdict(file, mutant)
            counts[verdict] += 1
            if verdict != "killed":
                where = f"{file.relative_to(ROOT)}:{mutant.line}"
                print(f"{verdict}: {where}: {mutant.was[:120]}  ->  {mutant.became[:120]}", flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {counts.total()} of {len(found)}")
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
