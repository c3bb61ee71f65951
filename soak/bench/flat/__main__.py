"""``python -m soak.bench.flat PART FEW MANY``: one part in this process; its figures as a JSON object."""

from __future__ import annotations

import dataclasses
import json
import sys

from soak.bench.flat.measuring import measure

if __name__ == "__main__":
    part, few, many = sys.argv[1:]
    json.dump(dataclasses.asdict(measure(part, int(few), int(many))), sys.stdout)
