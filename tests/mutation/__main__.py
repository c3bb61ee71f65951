"""``python -m tests.mutation``: a seeded sample of mutants, each against the tests of its folder.

Prints a line for each mutant that no test noticed, and the counts. With --records what came of each mutant is
written down at once, and a run that was stopped goes on where it was. Mutants are tried in the order in which
they were drawn, so that the first n are a sample as well.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants
from tests.mutation.trial import ROOT, Limits, Trial, load_what_is_slow

HANGS_AFTER = 5  # times what the tests take without a mutant


def _drawn(paths: Sequence[str], sample: int, seed: int) -> tuple[list[tuple[Path, Mutant]], int]:
    """The sample, and how many there are in all."""
    files = [f for p in paths for f in ([ROOT / p] if p.endswith(".py") else sorted((ROOT / p).glob("*.py")))]
    found = [(file, mutant) for file in files for mutant in mutants(file.read_text(encoding="utf-8"))]
    count = min(sample, len(found)) if sample else len(found)
    return random.Random(seed).sample(found, count), len(found)


def _name(file: Path, mutant: Mutant) -> str:
    """The same for the same change of the same text of a module."""
    return hashlib.sha256(f"{file.relative_to(ROOT)}\n{mutant.text}".encode()).hexdigest()[:16]


def _known(records: Path | None) -> dict[str, dict[str, str]]:
    if records is None or not records.exists():
        return {}
    lines = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    return {line["name"]: line for line in lines}


def _record(file: Path, mutant: Mutant, verdict: str) -> dict[str, str]:
    where = f"{file.relative_to(ROOT)}:{mutant.line}"
    return {
        "name": _name(file, mutant),
        "verdict": verdict,
        "where": where,
        "was": mutant.was,
        "became": mutant.became,
    }


def _say(record: dict[str, str]) -> None:
    if record["verdict"] != "killed":
        was, became = (" ".join(record[key].split())[:120] for key in ("was", "became"))
        print(f"{record['verdict']}: {record['where']}: {was}  ->  {became}", flush=True)


def _unharmed(file: Path) -> Limits | None:
    """What the tests of a module's folder take without a mutant, times a few; None where they do not pass."""
    trial = Trial(file, Mutant(0, "", "", file.read_text(encoding="utf-8")), Limits())
    while (verdict := trial.verdict()) is None:
        time.sleep(0.02)
    if verdict != "survived":
        return None
    return Limits(HANGS_AFTER * trial.cpu_s + 10, HANGS_AFTER * trial.wall_s + 60)


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 where tests fail without a mutant; what survived is for a person to read."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("paths", nargs="*", default=["soak/detect", "soak/oracle"], help="modules or folders")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument(
        "--records", type=Path, help="a file: a line of JSON per mutant; what it has is not tried again"
    )
    given = parser.parse_args(arguments)
    drawn, total = _drawn(given.paths, given.sample, given.seed)
    import hypothesis
    import numpy
    import pytest

    print(
        f"Python {sys.version.split()[0]}, NumPy {numpy.__version__}, pytest {pytest.__version__}, "
        f"Hypothesis {hypothesis.__version__}; {len(drawn)} of {total} mutants, seed {given.seed}",
        flush=True,
    )
    known = _known(given.records)
    told = [known[_name(*pair)] for pair in drawn if _name(*pair) in known]
    for record in told:
        _say(record)
    counts = Counter(record["verdict"] for record in told)
    waiting = [pair for pair in drawn if _name(*pair) not in known]
    if waiting:
        load_what_is_slow()
    limits: dict[Path, Limits] = {}
    for folder, file in {file.parent: file for file, _ in waiting}.items():
        allowed = _unharmed(file)
        if allowed is None:
            print(f"the tests of {folder.relative_to(ROOT)} fail without any mutant: mend them first")
            return 2
        limits[folder] = allowed
    running: list[Trial] = []
    try:
        while waiting or running:
            while waiting and len(running) < given.jobs:
                file, mutant = waiting.pop(0)
                running.append(Trial(file, mutant, limits[file.parent]))
            time.sleep(0.02)
            for trial in list(running):
                verdict = trial.verdict()
                if verdict is None:
                    continue
                running.remove(trial)
                counts[verdict] += 1
                record = _record(trial.path, trial.mutant, verdict)
                _say(record)
                if given.records:
                    given.records.parent.mkdir(parents=True, exist_ok=True)
                    with given.records.open("a", encoding="utf-8") as lines:
                        lines.write(json.dumps(record) + "\n")
    except KeyboardInterrupt:
        for trial in running:
            trial.stop()
        print(f"interrupted after {counts.total()} of {len(drawn)}")
    print(", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
