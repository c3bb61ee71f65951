"""The bill of materials names everything that soak needs, by version."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_dependency_is_in_the_bill() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "deploy" / "sbom.py")], capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["name"] == "soak"
    refs = [c["bom-ref"] for c in bill["components"]]
    assert len(set(refs)) == len(refs)
    assert all(re.fullmatch(r"pkg:pypi/[a-z0-9-]+@\S+", c["purl"]) for c in bill["components"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=;\[ ]", d)[0].lower().replace("_", "-") for d in project["dependencies"]}
    assert names <= {ref.partition("/")[2].partition("@")[0] for ref in refs}
